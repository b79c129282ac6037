"""Compatibility import path of decoders and handlers; the code lives in :mod:`webdataset.codecs`.

``decoders``, ``imagespecs`` and the lists of default handlers are the live tables. Late-bound: assigning
``pytorch_weights_only`` in this module changes how the next ``.pth`` field is loaded. ``json_loads``, ``npy_loads``,
``npz_loads``, ``cbor_loads``, ``msgpack_loads`` and ``tenbin_loads`` are here too, loaded when they are first used.
"""

import sys

from webdataset.codecs.decoder import Decoder, default_decoder
from webdataset.codecs.handlers import (
    CompressionFilter,
    Continue,
    SwitchModule,
    basichandlers,
    call_extension_handler,
    decoders,
    default_post_handlers,
    default_pre_handlers,
    gzfilter,
    handle_extension,
)
from webdataset.codecs.images import IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs
from webdataset.codecs.media import audio, torch_audio, torch_safetensors, torch_video, video, video_clips
from webdataset.codecs.safe_pickle import add_safe_globals, unpickle_loads
from webdataset.codecs.torch_files import torch_loads
from webdataset.core.errors import DecodingError

__all__ = [
    "IMAGE_EXTENSIONS",
    "CompressionFilter",
    "Continue",
    "Decoder",
    "DecodingError",
    "ImageHandler",
    "add_safe_globals",
    "audio",
    "basichandlers",
    "call_extension_handler",
    "cbor_loads",  # noqa: F822  served by the module class, as msgpack_loads is
    "decoders",
    "default_decoder",
    "default_post_handlers",
    "default_pre_handlers",
    "gzfilter",
    "handle_extension",
    "imagehandler",
    "imagespecs",
    "msgpack_loads",  # noqa: F822
    "torch_audio",
    "torch_loads",
    "torch_safetensors",
    "torch_video",
    "unpickle_loads",
    "video",
    "video_clips",
]

sys.modules[__name__].__class__ = SwitchModule
