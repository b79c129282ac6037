# ruff: noqa: A004, F401, I001  each name is passed on, in the order in which the script writes them
# Names of the package and where they live, for type checkers. Written by scripts/package_stub.py.
from collections.abc import Callable
from typing import Any

from . import (
    autodecode as autodecode,
    cache as cache,
    cborsiterators as cborsiterators,
    compat as compat,
    config as config,
    extradatasets as extradatasets,
    filters as filters,
    handlers as handlers,
    index as index,
    loading as loading,
    mix as mix,
    pipeline as pipeline,
    pytorch as pytorch,
    shardlists as shardlists,
    specs as specs,
    tariterators as tariterators,
    tenbin as tenbin,
    testing as testing,
    utils as utils,
    writer as writer,
)
from .core import errors as errors
from .loading import states as states
from .autodecode import (
    Continue as Continue,
    Decoder as Decoder,
    DecodingError as DecodingError,
    add_safe_globals as add_safe_globals,
    audio as audio,
    gzfilter as gzfilter,
    handle_extension as handle_extension,
    imagehandler as imagehandler,
    torch_audio as torch_audio,
    torch_loads as torch_loads,
    torch_safetensors as torch_safetensors,
    torch_video as torch_video,
    video as video,
    video_clips as video_clips,
)
from .cache import (
    LRUCleanup as LRUCleanup,
    cached_tarfile_samples as cached_tarfile_samples,
    cached_tarfile_to_samples as cached_tarfile_to_samples,
    lru_cleanup as lru_cleanup,
    maybe_cached_tarfile_to_samples as maybe_cached_tarfile_to_samples,
    pipe_cleaner as pipe_cleaner,
)
from .cborsiterators import (
    cbors2_to_samples as cbors2_to_samples,
    cbors_to_samples as cbors_to_samples,
    msgpacks_to_samples as msgpacks_to_samples,
)
from .cluster.map_shards import map_shards as map_shards
from .cluster.mapped_functions import sample_rng as sample_rng, stream_function as stream_function
from .codecs.images.crop import (
    center_crop as center_crop,
    decode_crop as decode_crop,
    random_resized_crop as random_resized_crop,
)
from .codecs.media import random_clips as random_clips
from .compat import (
    FluidInterface as FluidInterface,
    FluidWrapper as FluidWrapper,
    Processor as Processor,
    WebDataset as WebDataset,
    WebLoader as WebLoader,
)
from .core.distributed import WorkerContext as WorkerContext
from .core.errors import WebDatasetError as WebDatasetError
from .extradatasets import (
    AISBatch as AISBatch,
    MockDataset as MockDataset,
    with_epoch as with_epoch,
    with_length as with_length,
)
from .filters import (
    Cached as Cached,
    LMDBCached as LMDBCached,
    PaddingCollator as PaddingCollator,
    associate as associate,
    batched as batched,
    block_shuffle as block_shuffle,
    bucket as bucket,
    compose as compose,
    decode as decode,
    default_collation_fn as default_collation_fn,
    detshuffle as detshuffle,
    extract_keys as extract_keys,
    getfirst as getfirst,
    info as info,
    interleaved as interleaved,
    interleaved_to_dict as interleaved_to_dict,
    listed as listed,
    log_keys as log_keys,
    map as map,
    map_dict as map_dict,
    map_tuple as map_tuple,
    map_with_rng as map_with_rng,
    pack as pack,
    pipelinefilter as pipelinefilter,
    rename as rename,
    rename_keys as rename_keys,
    rng as rng,
    rsample as rsample,
    select as select,
    shuffle as shuffle,
    sibling_fields as sibling_fields,
    slice as slice,
    to_dict as to_dict,
    to_tuple as to_tuple,
    transform_with as transform_with,
    unbatched as unbatched,
    unlisted as unlisted,
    xdecode as xdecode,
)
from .flow.shuffle_quality import (
    measure_shuffle_quality as measure_shuffle_quality,
    simulate_shuffle_quality as simulate_shuffle_quality,
)
from .gopen import gopen_schemes as gopen_schemes
from .handlers import (
    ignore_and_continue as ignore_and_continue,
    ignore_and_stop as ignore_and_stop,
    reraise_exception as reraise_exception,
    warn_and_continue as warn_and_continue,
    warn_and_stop as warn_and_stop,
)
from .index.build import index_shard as index_shard, index_shards as index_shards
from .index.column_files import write_columns as write_columns
from .index.indexed_dataset import IndexedDataset as IndexedDataset
from .index.indexed_shard import IndexedShard as IndexedShard
from .index.lookup import sample_counts as sample_counts
from .index.publish import IndexWhileReading as IndexWhileReading, write_indexes as write_indexes
from .inspection.check import check_shards as check_shards, iterate_checks as iterate_checks
from .inspection.repair import repair_shards as repair_shards
from .loading.loader import Loader as Loader
from .loading.stats import LoaderStats as LoaderStats
from .loading.torch_distributed import check_ranks as check_ranks, equal_steps as equal_steps
from .loading.torch_nodes import DatasetNode as DatasetNode
from .loading.torch_trainers import for_accelerate as for_accelerate, for_trainer as for_trainer
from .mix import RandomMix as RandomMix, RoundRobin as RoundRobin
from .pipeline import DataPipeline as DataPipeline, explain as explain, merge_states as merge_states
from .serving.remote_loader import RemoteLoader as RemoteLoader
from .serving.shared_loader import SharedLoader as SharedLoader
from .shardlists import (
    DirectoryShardList as DirectoryShardList,
    InfiniteShardList as InfiniteShardList,
    MultiShardSample as MultiShardSample,
    NamedResampledShards as NamedResampledShards,
    ResampledShards as ResampledShards,
    SimpleShardList as SimpleShardList,
    expand_urls as expand_urls,
    non_empty as non_empty,
    resampled as resampled,
    shardspec as shardspec,
    single_node_only as single_node_only,
    split_by_node as split_by_node,
    split_by_sample as split_by_sample,
    split_by_worker as split_by_worker,
)
from .shards.lists import SimpleShardList as ShardList
from .specs import (
    DatasetSpec as DatasetSpec,
    from_open_clip as from_open_clip,
    from_spec as from_spec,
    load_spec as load_spec,
)
from .tariterators import (
    sibling_keys as sibling_keys,
    tarfile_samples as tarfile_samples,
    tarfile_to_samples as tarfile_to_samples,
    url_opener as url_opener,
)
from .utils import PipelineStage as PipelineStage, repeatedly as repeatedly
from .writer import (
    DocumentWriter as DocumentWriter,
    RecordShardWriter as RecordShardWriter,
    RecordWriter as RecordWriter,
    ShardWriter as ShardWriter,
    TarWriter as TarWriter,
    numpy_dumps as numpy_dumps,
    torch_dumps as torch_dumps,
)

__all__ = [
    "AISBatch",
    "Cached",
    "Continue",
    "DataPipeline",
    "DatasetSpec",
    "Decoder",
    "DecodingError",
    "DirectoryShardList",
    "DocumentWriter",
    "FluidInterface",
    "FluidWrapper",
    "IndexWhileReading",
    "IndexedDataset",
    "IndexedShard",
    "InfiniteShardList",
    "LMDBCached",
    "LRUCleanup",
    "Loader",
    "LoaderStats",
    "MockDataset",
    "MultiShardSample",
    "NamedResampledShards",
    "PaddingCollator",
    "PipelineStage",
    "Processor",
    "RandomMix",
    "RecordShardWriter",
    "RecordWriter",
    "RemoteLoader",
    "ResampledShards",
    "RoundRobin",
    "ShardWriter",
    "SharedLoader",
    "SimpleShardList",
    "TarWriter",
    "WebDataset",
    "WebLoader",
    "WorkerContext",
    "add_safe_globals",
    "associate",
    "audio",
    "batched",
    "block_shuffle",
    "bucket",
    "cached_tarfile_samples",
    "cached_tarfile_to_samples",
    "cbors2_to_samples",
    "cbors_to_samples",
    "center_crop",
    "check_ranks",
    "check_shards",
    "compose",
    "decode",
    "decode_crop",
    "default_collation_fn",
    "detshuffle",
    "equal_steps",
    "expand_urls",
    "explain",
    "extract_keys",
    "for_accelerate",
    "for_trainer",
    "from_open_clip",
    "from_spec",
    "getfirst",
    "gopen",
    "gopen_schemes",
    "gzfilter",
    "handle_extension",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "index_shard",
    "index_shards",
    "info",
    "interleaved",
    "interleaved_to_dict",
    "iterate_checks",
    "listed",
    "load_spec",
    "log_keys",
    "lru_cleanup",
    "map",
    "map_dict",
    "map_shards",
    "map_tuple",
    "map_with_rng",
    "maybe_cached_tarfile_to_samples",
    "measure_shuffle_quality",
    "merge_states",
    "msgpacks_to_samples",
    "non_empty",
    "numpy_dumps",
    "pack",
    "pipe_cleaner",
    "pipelinefilter",
    "pytorch_weights_only",
    "random_clips",
    "random_resized_crop",
    "rename",
    "rename_keys",
    "repair_shards",
    "repeatedly",
    "reraise_exception",
    "resampled",
    "rng",
    "rsample",
    "sample_counts",
    "sample_rng",
    "select",
    "shardspec",
    "shuffle",
    "sibling_fields",
    "sibling_keys",
    "simulate_shuffle_quality",
    "single_node_only",
    "slice",
    "split_by_node",
    "split_by_sample",
    "split_by_worker",
    "stream_function",
    "tarfile_samples",
    "tarfile_to_samples",
    "to_dict",
    "to_tuple",
    "torch_audio",
    "torch_dumps",
    "torch_loads",
    "torch_safetensors",
    "torch_video",
    "transform_with",
    "unbatched",
    "unlisted",
    "url_opener",
    "video",
    "video_clips",
    "warn_and_continue",
    "warn_and_stop",
    "with_epoch",
    "with_length",
    "write_columns",
    "write_indexes",
    "xdecode",
]

class _Gopen:
    gopen_schemes: dict[str, Callable[..., Any]]
    info: dict[str, Any]
    def __call__(self, url: Any, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

gopen: _Gopen
pytorch_weights_only: bool
__version__: str
