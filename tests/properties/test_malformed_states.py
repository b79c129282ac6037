"""States whose streams were changed, under a sum that is right, are refused by name, and never read without end.

``make test`` draws some hundreds of changes, ``MALFORMED_STATES`` says how many.
"""

import copy
import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds

sys.path.insert(0, str(Path(__file__).parent))  # the generator is in a module beside this one
try:
    from state_mutations import Trials, ignore_warnings, make_pipelines
finally:
    sys.path.pop(0)
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


CASES_DRAWN = int(os.environ.get("MALFORMED_STATES", "400"))
GROUPS = 4
HANGS_SECONDS = 300  # a loop in C is ended only by the end of the process


@pytest.mark.repeats
@pytest.mark.parametrize("group", range(GROUPS))
def test_malformed_states_of_all_stages_end_in_typed_errors(tmp_path, group):
    """Any part of any stage's memory may be of another type, size or order: a typed error, or items and an end."""
    trials = Trials(make_pipelines(tmp_path))
    wrong = []
    with ignore_warnings():
        for seed in range(group, CASES_DRAWN, GROUPS):
            faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
            wrong.append(trials.play(seed))
    faulthandler.cancel_dump_traceback_later()
    assert not any(wrong), "\n".join(filter(None, wrong))


# where the number of a shard stands
ENDLESS = {"plain": ("0", 4, 0, 0, 0), "robin": ("0", 4, 0, 0, "live", "1", "flow", "memories", 0, 0)}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_shard_number_beyond_the_list_is_refused(tmp_path, name):
    """It was skipped to, one by one: that took minutes, and hours for a larger one."""
    makers = {name: make_pipelines(tmp_path)[name]}
    trials = Trials(makers)
    state = trials.states[name][1]
    memories = copy.deepcopy(state["memories"])
    inside: Any = memories
    for part in ENDLESS[name][:-1]:
        inside = inside[part]
    inside[ENDLESS[name][-1]] = (1 << 32) - 1
    with ignore_warnings():
        found = trials.load(name, state, memories, name)
    assert not found
