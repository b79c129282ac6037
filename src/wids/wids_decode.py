"""Compatibility import path: the names of the published module ``wids.wids_decode``."""

from webdataset.index.wids.transforms import (
    check_keys,
    decode_all_gz,
    decode_basic,
    decode_images_to_numpy,
    decode_images_to_pil,
    default_decoder,
)

__all__ = [
    "check_keys",
    "decode_all_gz",
    "decode_basic",
    "decode_images_to_numpy",
    "decode_images_to_pil",
    "default_decoder",
]
