"""Door: the writers of shards, and the encoders of their fields, where existing code imports them from."""

from .codecs import (
    add_handlers,
    default_handlers,
    encode_based_on_extension,
    encode_based_on_extension1,
    imageencoder,
    make_encoder,
    make_handlers,
    numpy_dumps,
    numpy_npz_dumps,
    torch_dumps,
)
from .gopen import gopen
from .writing.shardwriter import ShardWriter
from .writing.tarwriter import TarWriter

__all__ = [
    "ShardWriter",
    "TarWriter",
    "add_handlers",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "gopen",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "numpy_dumps",
    "numpy_npz_dumps",
    "torch_dumps",
]
