"""Compatibility import path of the stages; the code lives in :mod:`webdataset.stages`.

A maker such as ``filters.map(f)`` returns a stage; the names with an underscore are the plain generator functions.
Late-bound: replacing a maker in this module changes what the method of that name chains (``dataset.map``).
"""

from typing import TYPE_CHECKING

from webdataset.core.error_handlers import reraise_exception
from webdataset.core.lazy_modules import lazy_attributes, lazy_dir
from webdataset.core.upstream_utils import PipelineStage, identity
from webdataset.stages.base import FilterFunction, RestCurried, pipelinefilter

if TYPE_CHECKING:
    from webdataset.stages.base import compose, compose2, pipeline
    from webdataset.stages.batch import (
        _batched,
        _unbatched,
        _unlisted,
        batched,
        combine_values,
        default_collation_fn,
        dict2tuple,
        listed,
        tuple2dict,
        unbatched,
        unlisted,
    )
    from webdataset.stages.bucketing import bucket
    from webdataset.stages.fields import (
        _associate,
        _extract_keys,
        _rename,
        _rename_keys,
        _to_dict,
        _to_tuple,
        associate,
        extract_keys,
        getfirst,
        interleaved_to_dict,
        parse_field_spec,
        rename,
        rename_keys,
        to_dict,
        to_tuple,
    )
    from webdataset.stages.interleaved_documents import interleaved, interleaved_behind, sibling_fields
    from webdataset.stages.map import (
        _decode,
        _info,
        _log_keys,
        _map,
        _map_dict,
        _map_tuple,
        _xdecode,
        decode,
        decode_bin,
        decode_pickle,
        decode_text,
        default_decoders,
        find_decoder,
        info,
        log_keys,
        map,  # noqa: A004
        map_dict,
        map_tuple,
        transform_with,
        xdecode,
    )
    from webdataset.stages.packing import pack
    from webdataset.stages.padding import PaddingCollator
    from webdataset.stages.randomness import map_with_rng, rng
    from webdataset.stages.sample_cache import Cached, LMDBCached
    from webdataset.stages.select import _rsample, _select, rsample, select, slice  # noqa: A004
    from webdataset.stages.shuffle import _shuffle, detshuffle, pick, shuffle
    from webdataset.stages.shuffle_blocks import block_shuffle

__all__ = [
    "Cached",
    "FilterFunction",
    "LMDBCached",
    "PaddingCollator",
    "PipelineStage",
    "RestCurried",
    "_associate",
    "_batched",
    "_decode",
    "_extract_keys",
    "_info",
    "_log_keys",
    "_map",
    "_map_dict",
    "_map_tuple",
    "_rename",
    "_rename_keys",
    "_rsample",
    "_select",
    "_shuffle",
    "_to_dict",
    "_to_tuple",
    "_unbatched",
    "_unlisted",
    "_xdecode",
    "associate",
    "batched",
    "block_shuffle",
    "bucket",
    "combine_values",
    "compose",
    "compose2",
    "decode",
    "decode_bin",
    "decode_pickle",
    "decode_text",
    "default_collation_fn",
    "default_decoders",
    "detshuffle",
    "dict2tuple",
    "extract_keys",
    "find_decoder",
    "getfirst",
    "identity",
    "info",
    "interleaved",
    "interleaved_behind",
    "interleaved_to_dict",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "map_with_rng",
    "pack",
    "parse_field_spec",
    "pick",
    "pipeline",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "reraise_exception",
    "rng",
    "rsample",
    "select",
    "shuffle",
    "sibling_fields",
    "slice",
    "to_dict",
    "to_tuple",
    "transform_with",
    "tuple2dict",
    "unbatched",
    "unlisted",
    "xdecode",
]

_LAZY_NAMES = {
    "stages.batch": """_batched _unbatched _unlisted batched combine_values default_collation_fn dict2tuple listed
        tuple2dict unbatched unlisted""",
    "stages.sample_cache": "Cached LMDBCached",
    "stages.base": "compose compose2 pipeline",
    "stages.map": """_decode _info _log_keys _map _map_dict _map_tuple _xdecode decode decode_bin decode_pickle
        decode_text default_decoders find_decoder info log_keys map map_dict map_tuple transform_with
        xdecode""",
    "stages.fields": """_associate _extract_keys _rename _rename_keys _to_dict _to_tuple associate extract_keys getfirst
        interleaved_to_dict parse_field_spec rename rename_keys to_dict to_tuple""",
    "stages.interleaved_documents": "interleaved interleaved_behind sibling_fields",
    "stages.bucketing": "bucket",
    "stages.packing": "pack",
    "stages.padding": "PaddingCollator",
    "stages.randomness": "map_with_rng rng",
    "stages.select": "_rsample _select rsample select slice",
    "stages.shuffle": "_shuffle detshuffle pick shuffle",
    "stages.shuffle_blocks": "block_shuffle",
}

__getattr__ = lazy_attributes(__name__, "autodecode utils", _LAZY_NAMES, TorchTensor="pytorch")
__dir__ = lazy_dir(__name__, __all__)
