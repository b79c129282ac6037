"""The error that is a :mod:`pickle` error too; part of the tree in :mod:`webdataset.core.errors`; import it there."""

import pickle

from webdataset.core.errors import CodecError

HOME = "webdataset.core.errors"  # where it is imported from, and what pickles say


class UnsafeContent(CodecError, pickle.UnpicklingError):
    """A field whose decoding would run code that is not on the allow-list."""

    __module__ = HOME
