"""``wds.states.change_weights``: a run continues with other weights of its mix."""

import itertools
import json
from collections import Counter
from operator import itemgetter
from typing import Any

import pytest

import webdataset as wds
from support.elastic_resumes import start_runs
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.stages.mix import EvenMix


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return the urls of three sources of 240 samples."""
    path = tmp_path_factory.mktemp("sources")
    for source in "abc":
        for shard in range(4):
            with wds.TarWriter(str(path / f"{source}{shard}.tar")) as sink:
                for number in range(60):
                    sink.write({"__key__": f"{source}{shard}{number:02d}", "cls": number})
    return [str(path / f"{source}{{0..3}}.tar") for source in "abc"]


def weighted(sources, weights, kind=wds.RandomMix, streams=6, buffer=30, seed=None):
    """Return the keys of a mix, elastic."""
    parts = [wds.WebDataset(urls, shardshuffle=10) for urls in sources]
    mixed = wds.DataPipeline(kind(parts, weights, longest=True), wds.shuffle(buffer), wds.map(itemgetter("__key__")))
    mixed.seed = seed
    return mixed.elastic(streams)


def given_by(dataset, ranks, workers, state, count=None):
    """Return the positions and keys that the workers of a job give from a state on, and the state after them."""
    runs = start_runs(dataset, ranks, workers, state)
    found = [pair for run in runs for pair in itertools.islice(run.positions(), count)]
    return sorted(found), wds.merge_states([run.state_dict() for run in runs])


@pytest.mark.parametrize("kind", [wds.RandomMix, EvenMix])
@pytest.mark.parametrize("epoch", [0, 1])
def test_other_weights_from_a_state_on(sources, kind, epoch):
    """Nothing is lost, nothing comes twice, what follows does not depend on ranks, and the shares are the new ones."""
    before, after = (weighted(sources, weights, kind, seed=7) for weights in ([8, 2, 0], [1, 2, 5]))
    for dataset in (before, after):
        dataset.set_epoch(epoch)
    start = before.elastic_run(WorkerContext(0, 1, 0, 1)).header()
    first, state = given_by(before, 2, 1, start, 60)
    assert {key[0] for _, key in first} == {"a", "b"}
    with pytest.raises(StateMismatch, match=r"probs=\[8.0, .*here .*probs=\[1.0, .*; to continue with other weights"):
        after.load_state_dict(state)
    state = wds.states.change_weights(json.loads(json.dumps(state)), after)
    rest, _ = given_by(after, 1, 1, state)
    for ranks, workers in ((2, 2), (3, 1)):
        begun, later = given_by(after, ranks, workers, state, 40)
        ended, _ = given_by(after, 1, 2, later)
        assert sorted(begun + ended) == rest
    keys = [key for _, key in first + rest]
    assert len(keys) == len(set(keys)) == 720
    shares = Counter(key[0] for _, key in rest[:240])
    assert shares["c"] > 100 > shares["a"] > 0
    assert set(wds.states.change_weights(state, after)) == set(state)


def test_epochs_after_other_weights_are_those_of_the_new_mix(sources):
    """As though it had never been another one."""
    before, after, new = (weighted(sources, weights, seed=3) for weights in ([8, 2, 1], [1, 2, 5], [1, 2, 5]))
    run = iter(before)
    for _ in range(50):
        next(run)
    after.load_state_dict(wds.states.change_weights(run.state_dict(), after))
    assert len(list(after)) == 670
    new.set_epoch(1)
    assert list(after) == list(new)


def test_weights_of_a_specification_and_of_a_mix_in_a_mix(sources, tmp_path):
    """They change in the same way, also in a loader and its state."""

    def specified(weights):
        parts = [{"shards": urls, "weight": weight} for urls, weight in zip(sources, weights, strict=True)]
        return wds.from_spec({"version": 1, "sources": parts}).map(itemgetter("__key__")).elastic(4)

    def nested(weights):
        parts = [wds.WebDataset(urls, shardshuffle=10) for urls in sources]
        inner = wds.RandomMix(parts[:2], weights[:2], longest=True)
        return wds.RandomMix([inner, parts[2]], [1, weights[2]], longest=True).map(itemgetter("__key__")).elastic(4)

    for make in (specified, nested):
        with wds.Loader(make([8, 2, 1]), 10) as loader:
            batches = iter(loader)
            first = [key for _ in range(8) for key in next(batches)]
            state = loader.state_dict()
        with wds.Loader(make([1, 2, 8]), 10, workers=2) as loader:
            with pytest.raises(StateMismatch, match="probs"):
                loader.load_state_dict(state)
            loader.load_state_dict(wds.states.change_weights(state, loader))
            rest = [key for batch in itertools.islice(loader, 64) for key in batch]
        if make is nested:  # the sources of a specification begin again
            assert len(set(first + rest)) == len(first + rest) == 720
        assert Counter(key[0] for key in first)["a"] > Counter(key[0] for key in rest[:80])["a"], make


def through(samples):
    """Let samples pass: a stage that is not ours."""
    yield from samples


@pytest.mark.parametrize("how", ["after", "wrapped", "outer", "source", "shuffled"])
def test_a_stage_that_repeats_what_a_mix_gave(sources, how):
    """In the midst of an epoch other weights would lose samples there, and are refused; not at its end."""

    def make(weights):
        parts = [wds.WebDataset(urls, shardshuffle=10) for urls in sources]
        if how == "source":
            parts[0] = parts[0].compose(through)
        mix = wds.RandomMix(parts, weights, longest=True)
        if how == "outer":
            mixed = wds.DataPipeline(wds.RoundRobin([wds.DataPipeline(mix), wds.DataPipeline(mix)], True), through)
        else:
            first = wds.FluidWrapper(mix) if how == "wrapped" else mix
            mixed = wds.DataPipeline(first, *([] if how == "source" else [through]))
        if how == "shuffled":
            mixed = mixed.compose(wds.shuffle(40))
        mixed = mixed.compose(wds.map(itemgetter("__key__")))
        mixed.seed = 5
        return mixed.elastic(6)

    before, after = make([8, 2, 1]), make([1, 2, 8])
    run = iter(before)
    start = run.state_dict()
    first = [next(run) for _ in range(100)]
    midst = json.loads(json.dumps(run.state_dict()))
    whole = first + list(run)
    if how == "source":
        after.load_state_dict(wds.states.change_weights(midst, after))
        assert sorted(first + list(after)) == sorted(whole)
    else:
        with pytest.raises(StateMismatch, match=r"weights cannot change in the midst of an epoch here: through .*py:"):
            wds.states.change_weights(midst, after)
        assert wds.states.change_weights(midst, before) == midst
    for state in (start, run.state_dict()):
        after.load_state_dict(wds.states.change_weights(json.loads(json.dumps(state)), after))
        assert sorted(after) == sorted(whole)


def test_nothing_but_weights_may_differ(sources):
    """Everything else that differs is named, as it is in loading."""
    state = iter(weighted(sources, [1, 2, 3], seed=1)).state_dict()
    others: dict[str, dict[str, Any]] = {
        r"Shuffle\(bufsize=30, .* \(here Shuffle\(bufsize=31": {"buffer": 31},
        r"seed 1 \(here 2\)": {"seed": 2},
        r"streams 6 \(here 5\)": {"streams": 5},
        r"EvenMix\(": {"kind": EvenMix},
    }
    for words, other in others.items():
        with pytest.raises(StateMismatch, match=words):
            wds.states.change_weights(state, weighted(sources, [3, 2, 1], **{"seed": 1, **other}))
    with pytest.raises(StateMismatch, match="stages .* \\(here"):
        wds.states.change_weights(state, weighted(sources[:2], [3, 2], seed=1))
    with pytest.raises(UsageError, match="only an elastic dataset has a state"):
        wds.states.change_weights(state, wds.WebDataset(sources[0]))
    with pytest.raises(StateMismatch, match="not the state of an elastic dataset"):
        wds.states.change_weights({}, weighted(sources, [3, 2, 1]))
