"""Door: the stages, where code that uses this library imports them from.

A maker such as ``filters.map(f)`` returns a stage; the names with an underscore are the plain generator functions.
"""

from typing import TYPE_CHECKING

from webdataset.ground.doorways import directory, served
from webdataset.ground.iteration import PipelineStage, identity
from webdataset.ground.policies import reraise_exception
from webdataset.stages.base import FilterFunction, RestCurried, pipelinefilter

if TYPE_CHECKING:
    from webdataset.stages.batching import _batched, batched, listed
    from webdataset.stages.caching import Cached
    from webdataset.stages.collation import combine_values, default_collation_fn, dict2tuple, tuple2dict
    from webdataset.stages.composing import compose, compose2, pipeline
    from webdataset.stages.decoding import (
        _decode,
        _xdecode,
        decode,
        decode_bin,
        decode_pickle,
        decode_text,
        default_decoders,
        find_decoder,
        xdecode,
    )
    from webdataset.stages.disk_caching import LMDBCached
    from webdataset.stages.fields import (
        _associate,
        _rename,
        _to_tuple,
        associate,
        getfirst,
        parse_field_spec,
        rename,
        to_tuple,
    )
    from webdataset.stages.interleaving import interleaved, interleaved_behind
    from webdataset.stages.mapping import _map, _map_dict, _map_tuple, map, map_dict, map_tuple, transform_with  # noqa: A004
    from webdataset.stages.patterns import _extract_keys, _rename_keys, extract_keys, rename_keys
    from webdataset.stages.sample_randomness import map_with_rng, rng
    from webdataset.stages.selecting import _rsample, _select, rsample, select, slice  # noqa: A004
    from webdataset.stages.shuffling import _shuffle, detshuffle, pick, shuffle
    from webdataset.stages.shuffling_blocks import block_shuffle
    from webdataset.stages.sibling_fields import sibling_fields
    from webdataset.stages.suffixes import _to_dict, interleaved_to_dict, to_dict
    from webdataset.stages.unbatching import _unbatched, _unlisted, unbatched, unlisted
    from webdataset.stages.watching import _info, _log_keys, info, log_keys

__all__ = [
    "Cached",
    "FilterFunction",
    "LMDBCached",
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

_ROOMS = {
    "stages.batching": "_batched batched listed",
    "stages.caching": "Cached",
    "stages.collation": "combine_values default_collation_fn dict2tuple tuple2dict",
    "stages.composing": "compose compose2 pipeline",
    "stages.decoding": """_decode _xdecode decode decode_bin decode_pickle decode_text default_decoders find_decoder
        xdecode""",
    "stages.disk_caching": "LMDBCached",
    "stages.fields": "_associate _rename _to_tuple associate getfirst parse_field_spec rename to_tuple",
    "stages.interleaving": "interleaved interleaved_behind",
    "stages.mapping": "_map _map_dict _map_tuple map map_dict map_tuple transform_with",
    "stages.patterns": "_extract_keys _rename_keys extract_keys rename_keys",
    "stages.sample_randomness": "map_with_rng rng",
    "stages.selecting": "_rsample _select rsample select slice",
    "stages.shuffling": "_shuffle detshuffle pick shuffle",
    "stages.shuffling_blocks": "block_shuffle",
    "stages.sibling_fields": "sibling_fields",
    "stages.suffixes": "_to_dict interleaved_to_dict to_dict",
    "stages.unbatching": "_unbatched _unlisted unbatched unlisted",
    "stages.watching": "_info _log_keys info log_keys",
}

__getattr__ = served(__name__, "autodecode utils", _ROOMS, TorchTensor="pytorch")
__dir__ = directory(__name__, __all__)
