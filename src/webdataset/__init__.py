"""WebDataset: stream tar shards of samples into training.

Importing this package loads nothing else: every public name is looked up in the module that holds it when it is first
used. ``import webdataset as wds`` therefore costs a few milliseconds and pulls in neither torch, numpy nor Pillow.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "2.0.0.dev0"

_HOMES = {
    "cluster.map_shards": "map_shards",
    "cluster.mapped_functions": "sample_rng stream_function",
    "core.distributed": "WorkerContext",
    "inspection.check": "check_shards iterate_checks",
    "inspection.repair": "repair_shards",
    "flow.shuffle_quality": "measure_shuffle_quality simulate_shuffle_quality",
    "autodecode": """Continue Decoder DecodingError add_safe_globals gzfilter handle_extension imagehandler
        audio pytorch_weights_only torch_audio torch_loads torch_safetensors torch_video video video_clips""",
    "cache": """LRUCleanup cached_tarfile_samples cached_tarfile_to_samples lru_cleanup
        maybe_cached_tarfile_to_samples pipe_cleaner""",
    "compat": "FluidInterface FluidWrapper Processor WebDataset WebLoader",
    "codecs.images.crop": "center_crop decode_crop random_resized_crop",
    "codecs.media": "random_clips",
    "cborsiterators": "cbors2_to_samples cbors_to_samples msgpacks_to_samples",
    "extradatasets": "AISBatch MockDataset with_epoch with_length",
    "filters": """Cached LMDBCached PaddingCollator associate batched block_shuffle bucket compose decode
        default_collation_fn detshuffle extract_keys getfirst info interleaved interleaved_to_dict listed log_keys map
        map_dict map_tuple map_with_rng pack pipelinefilter rename rename_keys rng rsample select shuffle
        sibling_fields slice to_dict to_tuple transform_with unbatched unlisted xdecode""",
    "handlers": "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue warn_and_stop",
    "index": """IndexWhileReading IndexedDataset IndexedShard index_shard index_shards sample_counts write_columns
        write_indexes""",
    "loading": "DatasetNode Loader LoaderStats check_ranks equal_steps for_accelerate for_trainer",
    "mix": "RandomMix RoundRobin",
    "pipeline": "DataPipeline explain merge_states",
    "serving.remote_loader": "RemoteLoader",
    "serving.shared_loader": "SharedLoader",
    "shardlists": """DirectoryShardList InfiniteShardList MultiShardSample NamedResampledShards ResampledShards
        SimpleShardList expand_urls non_empty resampled shardspec single_node_only split_by_node split_by_sample
        split_by_worker""",
    "specs": "DatasetSpec from_open_clip from_spec load_spec",
    "tariterators": "sibling_keys tarfile_samples tarfile_to_samples url_opener",
    "utils": "PipelineStage repeatedly",
    "writer": "DocumentWriter RecordShardWriter RecordWriter ShardWriter TarWriter numpy_dumps torch_dumps",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_ROOT = [*(home for home in _HOMES if "." not in home), "config", "gopen", "pytorch", "tenbin", "testing"]
_MODULES = {**dict(zip(_ROOT, _ROOT, strict=True)), "errors": "core.errors", "states": "loading.states"}
_HINTS = {
    "Dataset": ": write wds.WebDataset(urls)",
    "PytorchShardList": ": write wds.SimpleShardList(urls), with wds.split_by_node and wds.split_by_worker after it",
    "ShardedWriter": ": write wds.ShardWriter(pattern)",
    "ddp_equalize": ": write with_epoch(n) on a resampled dataset, which gives every rank the same number of samples",
}
_ELSEWHERE = {"ShardList": "shards.lists", "gopen_schemes": "gopen", "WebDatasetError": "core.errors"}

_ALIASES = {"ShardList": "SimpleShardList"}

_ASKED = {"DatasetNode"}  # a subclass of what an extra brings: not for ``import *``

__all__ = sorted({*_HOME, "gopen", "gopen_schemes"} - _ASKED)  # noqa: PLE0605  names served by __getattr__


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name`` and return it (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    home = _HOME.get(name) or _ELSEWHERE.get(name)
    if home is None:
        import difflib  # noqa: PLC0415  only where a name is wrong

        from webdataset.core.lazy_modules import missing_name_error  # noqa: PLC0415  likewise

        near = difflib.get_close_matches(name, __all__, 1, 0.75) if name[:1] != "_" else []
        hint = _HINTS.get(name) or (f"; did you mean {near[0]!r}?" if near else "")
        raise missing_name_error(f"module 'webdataset' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, and the special ones of every module."""
    return sorted({*__all__, *_ASKED, *_MODULES, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """This module: the switch that is assigned here is the one of ``webdataset.autodecode``."""

    @property
    def pytorch_weights_only(self) -> Any:
        """Whether ``.pth`` fields are loaded with ``weights_only=True``."""
        return importlib.import_module(f"{__name__}.autodecode").pytorch_weights_only

    @pytorch_weights_only.setter
    def pytorch_weights_only(self, only: bool) -> None:
        module: Any = importlib.import_module(f"{__name__}.autodecode")
        module.pytorch_weights_only = only

    @property
    def __native__(self) -> str:
        """Whether samples are read by the native core: ``yes``, or ``no`` and why."""
        return importlib.import_module(f"{__name__}.samples.native_core").describe_native()  # type: ignore[no-any-return]

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Pickle by name: functions that mention ``wds`` go to workers under spawn."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
