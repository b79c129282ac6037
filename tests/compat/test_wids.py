"""The package ``wids``: every public name of the published versions is there, or says what to write."""

import importlib
import inspect
import subprocess
import sys

import pytest

import wids

NAMES = {
    "wids": """ShardListDataset ShardListSampler ShardedSampler ChunkedSampler DistributedChunkedSampler wids
        wids_decode wids_dl wids_lru wids_mmtar wids_specs wids_tar""",
    "wids.wids": """CacheLocalname ChunkedSampler DefaultLocalname DistributedChunkedSampler IndexedTarSamples LRUCache
        LRUShards MMIndexedTar ShardListDataset ShardListSampler ShardedSampler TarFileReader cache_localname
        compute_file_md5sum compute_num_samples default_decoder default_localname download_and_open find_index_file
        group_by_key hash_dataset_name hash_localname interpret_transformations intersect_range intersect_ranges
        iterate_ranges lengths_to_ranges load_dsdesc_and_resolve splitname urldir""",
    "wids.wids_decode": """check_keys decode_all_gz decode_basic decode_images_to_numpy decode_images_to_pil
        default_decoder""",
    "wids.wids_dl": "SimpleDownloader copy_file download_and_open download_file pipe_download",
    "wids.wids_index": "load_remote_dsdesc_raw main urldir",
    "wids.wids_lru": "LRUCache",
    "wids.wids_mmtar": "MMIndexedTar",
    "wids.wids_specs": """SimpleDownloader check_shards download_and_open load_dsdesc_and_resolve load_remote_dsdesc_raw
        rebase_shardlist resolve_dsdesc set_all urldir urlmerge""",
    "wids.wids_tar": "TarFileReader find_index_file",
    "wids.wids_dir": "",
}
GONE = {
    "wids.wids_dl": """ConcurrentDownloader ULockFile cleanup_downloads default_cmds max_open_objects mkresult
        open_objects recent_downloads splitresult vcmd verbose_cmd""",
    "wids.wids_mmtar": "TarHeader keep_while_reading next_header parse_tar_header",
    "wids.wids_cleanup": "ExclusiveLock create_cleanup_background_process keep_most_recent_files",
    "wids.wids_bench": "main_wds main_wids",
    "wids.wids_index": """AtomicJsonUpdate format_with_suffix main_create main_info main_sample main_update maybe_decode
        maybe_read print_long_info shorten_name urldirbase urlfile""",
}
# Calls that bind in every version that has the name: (module, name, positional, keywords).
CALLS = [
    ("wids", "ShardListDataset", ["shards"], {}),
    ("wids", "ShardListDataset", ["shards", 10, None, "name", None, "PIL", False, None, None], {}),
    ("wids", "ShardListDataset", ["shards"], {
        "cache_size": 1e12, "cache_dir": None, "lru_size": 10, "dataset_name": None, "localname": None,
        "transformations": "PIL", "keep": False, "base": None, "options": None}),
    ("wids", "ShardedSampler", ["dataset", None, 1, False], {}),
    ("wids", "ShardListSampler", ["dataset"], {"lengths": None, "seed": 0, "shufflefirst": False}),
    ("wids", "ChunkedSampler", ["dataset"], {
        "dslength_per_replica": -1, "num_samples": None, "chunksize": 2000, "seed": 0, "shuffle": True,
        "shufflefirst": False}),
    ("wids", "DistributedChunkedSampler", ["dataset"], {
        "num_replicas": None, "num_samples": None, "rank": None, "shuffle": True, "shufflefirst": False, "seed": 0,
        "drop_last": None, "chunksize": 1000000}),
    ("wids.wids", "IndexedTarSamples", ["x.tar", None, None, None, True, None], {}),
    ("wids.wids", "IndexedTarSamples", [], {
        "path": "x", "stream": None, "md5sum": None, "expected_size": None, "use_mmap": True, "index_file": None}),
    ("wids.wids", "LRUShards", [10], {"keep": False, "localname": None}),
    ("wids.wids", "LRUCache", [10], {"release_handler": None}),
    ("wids.wids", "MMIndexedTar", ["x.tar"], {"index_file": None, "verbose": True, "cleanup_callback": None}),
    ("wids.wids", "TarFileReader", ["x.tar"], {"index_file": None, "verbose": True}),
    ("wids.wids", "compute_file_md5sum", ["x.tar"], {"chunksize": 10}),
    ("wids.wids", "iterate_ranges", ["ranges", "rng"], {"indexshuffle": True, "shardshuffle": True}),
    ("wids.wids_decode", "default_decoder", ["sample"], {"format": True, "gz_update_key": False}),
    ("wids.wids_decode", "decode_all_gz", ["sample"], {"format": True, "update_key": True}),
    ("wids.wids_dl", "download_and_open", ["remote", "local"], {"mode": "rb", "handlers": {}, "verbose": False}),
    ("wids.wids_specs", "load_dsdesc_and_resolve", ["source"], {"options": None, "base": None}),
    ("wids.wids_specs", "resolve_dsdesc", ["dsdesc"], {"options": None, "base": None}),
]  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_names_are_there(module):
    """Each name can be imported from where callers import it, and is documented."""
    home = importlib.import_module(module)
    for name in NAMES[module].split():
        found = getattr(home, name)
        assert inspect.getdoc(found)
    assert set(getattr(home, "__all__", ())) <= set(NAMES[module].split())


@pytest.mark.parametrize("module", GONE)
def test_names_that_are_gone_say_what_to_write(module):
    """The error names the way out, and a name that never was gets a plain error."""
    home = importlib.import_module(module)
    for name in GONE[module].split():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': \w+"):
            getattr(home, name)
    with pytest.raises(AttributeError, match="no attribute 'never_was'$"):
        home.never_was


@pytest.mark.parametrize(("module", "name", "arguments", "keywords"), CALLS)
def test_signatures_of_all_versions_bind(module, name, arguments, keywords):
    """Calls as written for 0.2.86 and for 0.2.111 bind."""
    inspect.signature(getattr(importlib.import_module(module), name)).bind(*arguments, **keywords)


def test_importing_is_light():
    """``import wids`` loads neither torch nor numpy nor Pillow, and has the modules as attributes."""
    script = (
        "import sys, wids; wids.wids_specs.urlmerge, wids.wids_dl.download_file\n"
        "print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError):
        wids.never_was
