"""What states call stages: names that are written down, so that a stage can be renamed."""

import importlib
import pkgutil
import sys

import pytest

import webdataset as wds
from webdataset.core.errors import StateMismatch
from webdataset.flow.stage_runner import stage_name
from webdataset.stages.base import Composed, FilterFunction, Stage, transform
from webdataset.stages.shuffle import Shuffle

# class to name; these names are a format: states that were saved hold them
CLASSES = {
    "fluent.mixes.RandomMix": "RandomMix",
    "fluent.mixes.RoundRobin": "RoundRobin",
    "loading.loader_stage.LoaderStage": "LoaderStage",
    "stages.augment.ImageStage": "ImageStage",
    "stages.augment.Patches": "Patches",
    "stages.base.Composed": "Composed",
    "stages.batch.Batched": "Batched",
    "stages.batch.Unbatched": "Unbatched",
    "stages.checks.CheckSamples": "CheckSamples",
    "stages.checks.SplitAssigned": "SplitAssigned",
    "stages.interleaved_documents.Interleaved": "Interleaved",
    "stages.interleaved_documents.SiblingFields": "SiblingFields",
    "stages.mix.Concat": "Concat",
    "stages.mix.EvenMix": "EvenMix",
    "stages.mix.RandomMix": "RandomMix",
    "stages.mix.RoundRobin": "RoundRobin",
    "stages.bucketing.Bucketed": "Bucketed",
    "stages.packing.Pack": "Pack",
    "stages.randomness.NumberDraws": "NumberDraws",
    "stages.open_shards.OpenShards": "OpenShards",
    "stages.read_shards.ReadShards": "ReadShards",
    "stages.record_readers.ReadRecords": "ReadRecords",
    "stages.sample_cache.Cached": "Cached",
    "stages.sample_cache.LMDBCached": "LMDBCached",
    "stages.select.Rsample": "Rsample",
    "stages.select.Slice": "Slice",
    "stages.sharding.EqualShare": "EqualShare",
    "stages.sharding.ShareSamples": "ShareSamples",
    "stages.shuffle.DetShuffle": "DetShuffle",
    "stages.shuffle.Shuffle": "Shuffle",
    "stages.shuffle.ShuffleBytes": "ShuffleBytes",
    "stages.shuffle_blocks.BlockShuffle": "BlockShuffle",
    "tariterators.SelectedTarSamples": "SelectedTarSamples",
    "tariterators.TarSamples": "TarSamples",
}
# these go by the function that they were given, or are never in a state
UNNAMED = {
    "flow.index_tracing.IndexReader",
    "flow.key_tracing.PassItems", "flow.key_tracing.TracedBuckets", "flow.key_tracing.TracedPack",
    "flow.key_tracing.TracedReader", "flow.key_tracing.TracedStage",
    "flow.shuffle_quality._NumberReader", "flow.stage_runner._OpaqueStage", "loading.read_plan._ListingReader",
    "stages.base.FilterFunction",
    "stages.base.ObservingFunction", "stages.base.PassThroughStage", "stages.base.TransparentFunction",
    "stages.interleaved_documents.JoinStage", "stages.map.Map", "stages.mix.Mixture", "stages.randomness.MapWithRng",
    "stages.read_shards.SelectSamples", "stages.select.Select",
}  # fmt: skip
FUNCTIONS = {
    "stages.fields": "associate extract_keys rename rename_keys to_dict to_tuple",
    "stages.map": "add_label decode info keep_fields keep_first log_keys map map_dict map_tuple xdecode",
    "stages.select": "select",
}


def subclasses(kind):
    """All subclasses of a class that the package defines."""
    for each in kind.__subclasses__():
        # a twin for torch has the name of its class, and no object is made of it
        if each.__module__.startswith("webdataset.") and vars(sys.modules[each.__module__]).get(each.__name__) is each:
            yield each
        yield from subclasses(each)


def test_every_stage_has_a_name_of_its_own():
    """The names are those of the table, and no class inherits one."""
    for module in pkgutil.walk_packages(wds.__path__, "webdataset."):
        if module.name.split(".")[1] in ("stages", "flow", "fluent", "tariterators") or module.name.endswith(
            ("loader_stage", "read_plan")
        ):
            importlib.import_module(module.name)
    found = {f"{kind.__module__}.{kind.__qualname__}".removeprefix("webdataset."): kind for kind in subclasses(Stage)}
    assert {name: vars(kind).get("state_name") for name, kind in found.items() if name not in UNNAMED} == CLASSES
    assert found.keys() >= UNNAMED
    assert not any("state_name" in vars(found[name]) for name in UNNAMED)


@pytest.mark.parametrize("module", FUNCTIONS)
def test_stages_made_of_functions_have_one_too(module):
    """It is the function's name as it was when states were first saved: with its underscore."""
    makers = importlib.import_module(f"webdataset.{module}")
    for name in FUNCTIONS[module].split():
        function = getattr(makers, f"_{name}")
        assert vars(function)["state_name"] == f"_{name}" == stage_name(FilterFunction(function))
        assert stage_name(getattr(makers, name)) == name


def test_a_renamed_stage_takes_up_its_state():
    """Class and function may be called anything: the name in the state is what counts."""

    class Renamed(Shuffle):
        """The same under another name."""

        state_name = "Shuffle"

    class Other(Shuffle):
        """Another stage: it inherits no name."""

    def plain(source):
        return source

    state = None
    for stage in (Shuffle(3, 2), Renamed(3, 2)):
        with wds.DataPipeline([list(range(20))], stage).start() as run:
            first = [next(run) for _ in range(5)]
            snapshot, rest = run.snapshot(), list(run)
            assert snapshot["flow"]["stages"] == ["list", "Shuffle"]
        state = state or (snapshot, rest)
    with wds.DataPipeline([list(range(20))], Renamed(3, 2)).start(state[0]) as run:
        assert list(run) == state[1]
    with pytest.raises(StateMismatch, match="of other stages: from stage 0 on list, Shuffle; .*list, .*Other"):
        wds.DataPipeline([list(range(20))], Other(3, 2)).start(state[0])
    assert len(first) == 5
    assert stage_name(transform(plain, state_name="_older")()) == "_older"
    assert stage_name(Composed()) == "Composed"
