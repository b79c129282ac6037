"""Compatibility modules filters, mix and extradatasets: the names that public code imports, and the calls it makes."""

import random
import subprocess
import sys

import pytest

import webdataset as wds
import webdataset.filters as filters_module
from webdataset import extradatasets, filters, mix
from webdataset.stages.base import Stage

MAKERS = """associate batched decode detshuffle extract_keys info log_keys map map_dict map_tuple rename rename_keys
    rsample select shuffle slice to_tuple unbatched unlisted xdecode compose listed Cached LMDBCached""".split()
FUNCTIONS = """_associate _batched _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename _rename_keys
    _rsample _select _shuffle _to_tuple _unbatched _unlisted _xdecode compose2 decode_bin decode_pickle decode_text
    default_collation_fn find_decoder getfirst identity parse_field_spec pick pipeline pipelinefilter
    reraise_exception transform_with combine_values""".split()
CLASSES = "FilterFunction RestCurried PipelineStage".split()


@pytest.mark.parametrize("name", [*MAKERS, *FUNCTIONS, *CLASSES])
def test_filters_has_the_name(name):
    """Callable, and listed."""
    assert callable(getattr(filters, name))
    assert name in filters_module.__all__


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "compose"])
def test_the_package_has_the_name(name):
    """wds.map is filters.map."""
    assert getattr(wds, name) is getattr(filters, name)


def test_the_other_compatibility_modules():
    """RandomMix and the rest, here and at the top."""
    for module, names in (
        (mix, ["RandomMix", "RoundRobin"]),
        (extradatasets, ["MockDataset", "with_epoch", "with_length"]),
    ):
        for name in names:
            assert getattr(module, name) is getattr(wds, name)


def test_compatibility_modules_load_neither_torch_nor_numpy_nor_pillow():
    """Importing a compatibility module costs little."""
    code = (
        "import sys, webdataset.filters, webdataset.mix, webdataset.extradatasets as e; "
        "assert not {'torch', 'numpy', 'PIL'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_private_generators_are_called_by_position():
    """As open_clip, open_flamingo and timm call _shuffle, within their own stages."""
    assert sorted(filters._shuffle(iter(range(20)), 5, 3, random.Random(0))) == list(range(20))
    assert list(filters._map(iter([1]), str)) == ["1"]
    assert list(filters._batched(iter(range(3)), 2, None)) == [[0, 1], [2]]
    assert list(filters._to_tuple(iter([{"a": 1}]), "a")) == [(1,)]
    assert list(filters._rename(iter([{"a": 1}]), b="a")) == [{"b": 1}]


def test_a_class_of_detshuffle_as_public_code_writes_it():
    """A PipelineStage with run(src) that counts epochs and calls _shuffle."""

    class Detshuffle2(filters.PipelineStage):
        def __init__(self, epoch=-1):
            self.epoch = epoch

        def run(self, src):
            self.epoch += 1
            return filters._shuffle(src, 10, 5, random.Random(self.epoch))

    pipeline = wds.DataPipeline(lambda: iter(range(30)), Detshuffle2())
    first, second = list(pipeline), list(pipeline)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


def test_filters_of_ones_own():
    """The decorator makes a stage maker of a generator function."""

    @filters.pipelinefilter
    def every(source, n, start=0):
        for place, sample in enumerate(source):
            if place % n == start:
                yield sample

    assert list(wds.DataPipeline(lambda: iter(range(9)), every(4, start=1))) == [1, 5]


def test_call_shapes_of_public_code():
    """Keywords and alternatives as they are met in the wild."""
    samples = [{"__key__": str(n), "jpg": n, "txt": f"t{n}", "json": {}} for n in range(6)]
    pipeline = wds.DataPipeline(
        lambda: iter([dict(sample) for sample in samples]),
        wds.rename(image="jpg;png;jpeg;webp", control="jpg", text="txt", keep=False, handler=wds.warn_and_continue),
        wds.map_dict(image=float, text=str.upper, handler=wds.warn_and_continue),
        wds.to_tuple(["webp", "image"], "text", "control"),
        wds.map_tuple(int, None),
        wds.shuffle(690, handler=wds.warn_and_continue),
        wds.batched(2, partial=False, collation_fn=filters.default_collation_fn),
    )
    batches = list(pipeline)
    assert len(batches) == 3
    images, texts, controls = batches[0]
    assert images.shape == (2,)
    assert texts == [f"T{n}" for n in controls]


def test_every_maker_gives_a_stage():
    """So that pipelines can snapshot it."""
    made = [filters.map(len), filters.shuffle(3), filters.batched(2), filters.slice(2), filters.compose(len)]
    assert all(isinstance(stage, Stage) for stage in [*made, filters.detshuffle(), filters.Cached()])
