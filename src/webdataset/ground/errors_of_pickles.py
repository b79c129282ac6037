"""The error that is one of :mod:`pickle` too; part of the tree in ``errors``, and served there."""

import pickle

from .errors import CodecError

HOME = "webdataset.ground.errors"  # where it is imported from, and what pickles say


class UnsafeContent(CodecError, pickle.UnpicklingError):
    """A field whose decoding would run code that is not on the allow-list."""

    __module__ = HOME
