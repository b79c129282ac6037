"""States whose streams were changed, under a sum that is right, are refused by name."""

import copy
import json
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import build_state


def passing(samples):
    """A user's stage."""
    yield from samples


WRONG = [-1, "5", None, {}, 1.5, True, 1 << 70]
READER = [(4, 0, 0, number) for number in range(4)]
COUNT = (4, 0, 0, "count")
ENDED = (3,)
CASES = [(place, wrong) for place in (*READER, COUNT, ENDED) for wrong in WRONG if (place, wrong) != (ENDED, None)]


@pytest.mark.parametrize(("place", "wrong"), CASES)
def test_changed_states_are_refused_by_name(tmp_path, place, wrong):
    """The address of the reader, the count of a user's stage, and which stage has ended."""
    url = str(tmp_path / "0.tar")
    with wds.TarWriter(url) as sink:
        for index in range(9):
            sink.write({"__key__": f"{index}", "txt": "x"})
    dataset = wds.WebDataset([url], shardshuffle=False, seed=1)
    dataset = (dataset.compose(passing) if place == COUNT else dataset).elastic(1)
    run = iter(dataset)
    next(run)
    state = json.loads(json.dumps(run.state_dict()))
    run.close()
    changed: Any = copy.deepcopy(state["memories"])
    part = changed["0"]
    for name in place[:-1]:
        part = part[name]
    assert place[-1] in part or isinstance(part, list)
    part[place[-1]] = wrong
    header = {name: entry for name, entry in state.items() if name not in ("received", "memories", "check")}
    with pytest.raises(StateMismatch):  # noqa: PT012  where the state is built, taken up, or used
        dataset.load_state_dict(build_state(header, changed))
        list(dataset)
