"""Generators that belong to samples: wds.rng, map(f, rng=), map_with_rng."""

import random

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import FlowError, UsageError
from webdataset.stages.base import Run
from webdataset.stages.randomness import NumberDraws, map_with_rng, rng
from webdataset.testing.stages import check_stage

SAMPLES = [{"__key__": f"k{n}", "__url__": "folder/s-0.tar", "a": n} for n in range(13)]


def python_draw(sample, generator):
    """The sample with two draws."""
    return {**sample, "drawn": [generator.random(), generator.randrange(1000)]}


def numpy_draw(sample, generator):
    """The sample with an array."""
    return {**sample, "drawn": generator.normal(size=3)}


def seed_draw(sample, seed):
    """The sample with its seed."""
    return {**sample, "drawn": seed}


def odd(sample, generator):
    """The sample, or None where its number is even."""
    return sample if sample["a"] % 2 else None


KINDS = {"python": python_draw, "numpy": numpy_draw, "seed": seed_draw}


@pytest.mark.parametrize("kind", KINDS)
def test_the_stage_keeps_the_contract(kind):
    """Repr, pickle, early close, snapshots, samples made again for a shuffle's buffer with the draws they had."""
    check_stage(map_with_rng(KINDS[kind], kind), SAMPLES)


def test_dropping_keeps_the_contract():
    """None drops the sample."""
    check_stage(map_with_rng(odd), SAMPLES)
    assert [sample["a"] for sample in map_with_rng(odd)(SAMPLES)] == [1, 3, 5, 7, 9, 11]


def drawn(stage, run, samples=SAMPLES):
    """What each key drew."""
    return {sample["__key__"]: sample["drawn"] for sample in stage.flow(iter(samples), stage.begin(run))}


def test_draws_follow_seed_and_epoch():
    """And differ between samples."""
    stage = map_with_rng(python_draw)
    first = drawn(stage, Run(seed=1))
    assert first == drawn(stage, Run(seed=1))
    assert len({repr(value) for value in first.values()}) == len(SAMPLES)
    for run in (Run(seed=2), Run(seed=1, epoch=1)):
        other = drawn(stage, run)
        assert all(first[key] != other[key] for key in first)


def test_draws_do_not_depend_on_anything_else():
    """Not on order, other samples, place in the pipeline, or the folder of the shard."""
    stage = map_with_rng(python_draw)
    first = drawn(stage, Run(seed=1))
    assert drawn(stage, Run(seed=1, position=7), SAMPLES[::-1]) == first
    moved = [{**sample, "__url__": "https://host/s-0.tar?signature=5"} for sample in SAMPLES[3:5]]
    assert drawn(stage, Run(seed=1), moved) == {key: first[key] for key in ("k3", "k4")}


def test_two_stages_draw_differently():
    """By the names of their functions, or by salt."""
    again = lambda sample, generator: python_draw(sample, generator)
    found = [drawn(stage, Run(seed=1)) for stage in (map_with_rng(python_draw), map_with_rng(again))]
    salted = drawn(map_with_rng(python_draw, salt=1), Run(seed=1))
    assert found[0]["k0"] != found[1]["k0"] != salted["k0"] != found[0]["k0"]


def test_chained_lambdas_draw_differently():
    """The fluent method numbers its stages."""
    flow = wds.WebDataset.__new__(wds.WebDataset)
    wds.DataPipeline.__init__(flow, [[dict(sample) for sample in SAMPLES]])
    flow.seed = 5
    chained = flow.map(lambda s, r: {**s, "x": r.random()}, rng=True).map(lambda s, r: {**s, "y": r.random()}, rng=True)
    assert all(sample["x"] != sample["y"] for sample in chained)


def test_kinds_of_generators():
    """True is python's; torch is seeded by a number."""
    assert isinstance(rng(SAMPLES[0]), random.Random)
    assert isinstance(rng(SAMPLES[0], kind="numpy"), np.random.Generator)
    assert 0 <= rng(SAMPLES[0], kind="seed") < 2**63
    seen = []
    list(map_with_rng(lambda sample, generator: seen.append(generator), True)(SAMPLES[:1]))
    assert isinstance(seen[0], random.Random)


def test_the_function_is_a_function_of_its_arguments():
    """Sample, seed, epoch and names; recorded, so that no version changes it."""
    found = rng(SAMPLES[3], "crop", seed=1, epoch=2, kind="seed")
    assert found == rng(dict(SAMPLES[3]), "crop", seed=1, epoch=2, kind="seed") == RECORDED
    others = [
        rng(SAMPLES[4], "crop", seed=1, epoch=2, kind="seed"),
        rng(SAMPLES[3], "flip", seed=1, epoch=2, kind="seed"),
        rng(SAMPLES[3], "crop", seed=2, epoch=2, kind="seed"),
        rng(SAMPLES[3], "crop", seed=1, epoch=3, kind="seed"),
    ]
    assert len({found, *others}) == 5


RECORDED = 4232807422986896642


def test_numpys_bits_are_recorded():
    """PCG64 takes the digest as it is; numpy promises its bits for ever."""
    generator = rng(SAMPLES[3], seed=1, kind="numpy")
    assert generator.bit_generator.random_raw(2).tolist() == RAW


RAW = [6441644965321393259, 11491354093805729307]


def test_uniform_over_samples():
    """First draws of many samples fill the unit interval evenly."""
    first = [rng({"__key__": str(n)}).random() for n in range(4000)]
    counts, _ = np.histogram(first, 10, (0, 1))
    assert counts.min() > 330
    assert counts.max() < 470
    numpys = [rng({"__key__": str(n)}, kind="numpy").random() for n in range(4000)]
    counts, _ = np.histogram(numpys, 10, (0, 1))
    assert counts.min() > 330
    assert counts.max() < 470


@pytest.mark.parametrize("sample", [(1, 2), {"a": 1}, b"x", None])
def test_samples_without_a_key_are_told(sample):
    """Behind to_tuple or batched there is nothing to know a sample by."""
    with pytest.raises(UsageError, match="__key__"):
        list(map_with_rng(python_draw)([sample]))
    with pytest.raises(UsageError, match="__key__"):
        rng(sample)


def test_other_kinds_are_refused():
    """When the stage is made."""
    with pytest.raises(UsageError, match="'numpy'"):
        map_with_rng(python_draw, "torch")
    with pytest.raises(UsageError, match="kind|rng"):
        rng(SAMPLES[0], kind="torch")


def test_a_failing_function_is_blamed_and_the_handler_decides():
    """As in map."""

    def fails(sample, generator):
        raise ValueError("no")

    with pytest.raises(ValueError) as caught:
        list(map_with_rng(fails)(SAMPLES))
    assert any("fails" in note and "test_randomness.py" in note for note in caught.value.__notes__)
    assert list(map_with_rng(fails, handler=lambda error: True)(SAMPLES)) == []
    asked = []
    assert list(map_with_rng(fails, handler=lambda error: asked.append(error))(SAMPLES)) == []
    assert len(asked) == 1


def test_results_keep_the_key():
    """A dictionary without one gets the sample's."""
    assert list(map_with_rng(lambda s, r: {"x": 1})(SAMPLES[:1])) == [{"x": 1, "__key__": "k0"}]
    assert list(map_with_rng(lambda s, r: 5)(SAMPLES[:1])) == [5]


def test_samples_are_not_made_again_outside_of_a_run():
    """The seed would not be known."""
    with pytest.raises(FlowError, match="own run"):
        map_with_rng(python_draw).refetch([0], lambda addresses: SAMPLES[:1])


def test_a_function_that_is_not_pure_is_told_on_restore():
    """It gave another number of samples than before."""
    stage = map_with_rng(lambda sample, generator: None)
    with pytest.raises(FlowError, match="0 of 1"):
        stage.refetch([0], lambda addresses: SAMPLES[:1], stage.begin(Run()))


def test_draws_are_numbered():
    """Each shard of an epoch gets a number of its own, the same again in an equal run."""
    stage = NumberDraws()
    shards = [{"url": "a"}] * 3
    found = [[shard["__draw__"] for shard in stage.flow(iter(shards), stage.begin(Run()))] for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_resampled_samples_draw_anew(tmp_path):
    """A sample that comes twice in an epoch is changed in two ways, reproducibly; other datasets have no number."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "k", "txt": "x"})
    url = str(tmp_path / "a.tar")

    def found():
        drawing = wds.WebDataset(url, resampled=True, seed=1).map(python_draw, rng=True).slice(6)
        return [sample["drawn"] for sample in drawing]

    assert found() == found()
    assert len({repr(value) for value in found()}) == 6
    plain = wds.WebDataset(url, shardshuffle=False).map(python_draw, rng=True)
    assert [sorted(sample) for sample in plain] == [["__key__", "__url__", "drawn", "txt"]]


@pytest.mark.torch
def test_torch_takes_the_seed():
    """Any 63-bit number will do."""
    torch = pytest.importorskip("torch")
    seed = rng(SAMPLES[0], kind="seed")
    first, second = (torch.rand(3, generator=torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(first, second)
