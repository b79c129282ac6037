"""The sum in a state: the same wherever it is made, and whatever carried the state."""

import itertools
import json

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch
from webdataset.flow.elastic_state import _SEEDS, Sums, _describe_differences, check_shape, sum_stream
from webdataset.stages.base import normalize_json

MEMORY = [3, 0, -3, None, [[[1, 2, 1 << 40], [5]], None, [{"a": "é"}, {"b": [True, 1.5, "x" * 300]}]]]


def test_the_sum_does_not_change_with_the_version_of_python():
    """One value, with a sum that was written down."""
    assert sum_stream(MEMORY, (None, 0, None, 0, 7))[1] == 3243796749


def test_plain_values():
    """Tuples become lists, keys are sorted, at any depth; the sum of what is no JSON value is refused."""
    value = normalize_json({"b": (1, (2,)), "a": [{"d": 1, "c": ()}]})
    assert json.dumps(value) == '{"a": [{"c": [], "d": 1}], "b": [1, [2]]}'
    with pytest.raises(StateMismatch, match="no JSON value"):
        Sums().add({"functions": [], "seed": 0, "epoch": 0, "streams": 1}, {"0": [1, 0, 1, None, [[object(), 1]]]})


def every_third(source):
    """Yield every third sample: a stage that is resumed by replay."""
    return itertools.islice(source, 0, None, 3)


def mixed(urls):
    """Return a mix of two datasets."""
    sources = [wds.WebDataset(part, shardshuffle=False, seed=1).shuffle(9) for part in (urls[:2], urls[2:])]
    return wds.RandomMix(sources, longest=True)


KINDS = {
    "plain": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1),
    "shuffled": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(20),
    "seeded": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(20, seed=4),
    "bound in bytes": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).shuffle(20, max_bytes=200),
    "blocks": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).block_shuffle(12),
    "side by side": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1, open_shards=2),
    "batches": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).batched(3).shuffle(4).unbatched(),
    "foreign": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=1).compose(every_third).shuffle(8),
    "mixed": lambda urls: wds.DataPipeline(mixed(urls), wds.shuffle(10)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_carries_the_state(tmp_path, kind):
    """A state whose keys were sorted on the way, and one that never left the process, are both taken, and go on."""
    urls = []
    for number in range(4):
        urls.append(str(tmp_path / f"{number}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for index in range(15):
                sink.write({"__key__": f"{number}-{index}", "txt": "x" * index})

    def keys(run):
        return [sample["__key__"] for sample in run]

    run = KINDS[kind](urls).elastic(2).elastic_run()
    keys(itertools.islice(run, 11))
    state = run.state_dict()
    carried = json.loads(json.dumps(state, sort_keys=True))
    rest = keys(run)
    assert rest
    assert keys(KINDS[kind](urls).elastic(2).elastic_run(state=state)) == rest
    assert keys(KINDS[kind](urls).elastic(2).elastic_run(state=carried)) == rest
    carried["memories"]["1"][0] += 1
    carried["received"] += 1
    with pytest.raises(StateMismatch, match="changed or damaged"):
        keys(KINDS[kind](urls).elastic(2).elastic_run(state=carried))


def test_descriptions_are_compared_both_ways():
    """What only the state has, or only the dataset, is a difference, and is named."""
    assert _describe_differences({"passes": 2, "items": 5}, {"items": 5}) == ["passes 2 (here None)"]
    assert _describe_differences({"items": 5}, {"passes": 2, "items": 5}) == ["passes None (here 2)"]
    assert _describe_differences({"items": 5}, {"items": 5}) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_seed_passes(sign):
    """A seed of a state is bounded; the bound itself is refused."""
    run = iter(wds.DataPipeline(range(6)).elastic(2))
    next(run)
    state = run.state_dict()
    check_shape({**state, "seed": sign * (_SEEDS - 1)})
    with pytest.raises(StateMismatch, match="'seed' is too long"):
        check_shape({**state, "seed": sign * _SEEDS})
