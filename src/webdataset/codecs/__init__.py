"""Layer 4: decodes field bytes to values and encodes values to bytes.

``decoder`` chains handlers over a sample, ``handlers`` holds the table of decoders, ``encoder`` the table of
encoders; each format lives in one module that is loaded when a field of that format is met first.
"""

from webdataset.codecs.encoder import (
    Encoder,
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

__all__ = [
    "Encoder",
    "add_handlers",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "numpy_dumps",
    "numpy_npz_dumps",
    "torch_dumps",
]
