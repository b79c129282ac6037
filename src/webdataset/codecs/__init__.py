"""Layer 4: decodes field bytes to values and encodes values to bytes.

* ``decoder``: a chain of handlers over a sample; ``handlers``: the handlers and the table of decoders
* ``encoder``: the table of encoders; ``registry``: what decoders and encoders of fields are, tables, plug-ins
* ``compression``: ``.gz``, ``.bz2``, ``.xz``, ``.zst`` fields
* ``numpy_arrays``, ``tenbin``, ``safetensors_codec``: arrays; ``json_codec``, ``yaml_codec``: plain values
* ``msgpack_cbor``: msgpack and CBOR fields; ``record_streams``: streams of such items
* ``safe_pickle``: pickles, and the plain classes that any may name
* ``pickle_allowlist``: all others that they may name; ``pickle_checks``, ``pickle_numpy``: its checks
* ``torch_codecs``: tensors; ``torch_files``: ``.pth``
* ``images``: pictures; ``media``: sound and video

Each format is loaded when a field of that format is met first.
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
