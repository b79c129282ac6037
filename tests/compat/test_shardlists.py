"""The compatibility module ``shardlists``: names, and lists as stages of a pipeline."""

import multiprocessing
import subprocess
import sys

import webdataset as wds
from webdataset import shardlists


def test_names():
    """What callers import is there, at the top too."""
    for name in (
        "DirectoryShardList MultiShardSample ResampledShards SimpleShardList expand_urls non_empty resampled shardspec "
        "single_node_only split_by_node split_by_worker"
    ).split():
        assert getattr(wds, name) is getattr(shardlists, name)
    for name in ("ResampledShardList", "expand_source", "MSSource"):
        assert hasattr(shardlists, name)


def test_resampled_is_a_stage_maker():
    """``wds.resampled(n)`` makes a stage."""
    assert len(list(wds.resampled(5)([1, 2]))) == 5


def test_splitters_are_stages():
    """Used uncalled in a pipeline."""
    pipeline = wds.DataPipeline(wds.SimpleShardList("x{0..3}"), wds.split_by_node, wds.split_by_worker)
    assert [shard["url"] for shard in pipeline] == ["x0", "x1", "x2", "x3"]


def test_subclasses_are_sources():
    """A caller's subclass of ResampledShards is a pipeline's source."""

    class Mine(wds.ResampledShards):
        def __iter__(self):
            yield {"url": "mine"}

    assert list(wds.DataPipeline(Mine("x"))) == [{"url": "mine"}]


def test_lists_travel():
    """Lists pickle to spawned processes."""
    lists = [wds.SimpleShardList("x{0..9}", seed=3), wds.ResampledShards("x{0..9}", 10, deterministic=True)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(list, lists) == [list(shards) for shards in lists]


def test_nothing_heavy_is_imported():
    """The compatibility modules of this part load neither torch, numpy, Pillow nor YAML."""
    code = (
        "import sys\nfrom webdataset import shardlists, utils, handlers, cache, gopen\n"
        "shardlists.SimpleShardList('x{0..3}')\n"
        "print([m for m in ('torch', 'numpy', 'PIL', 'yaml', 'urllib3', 'subprocess') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
