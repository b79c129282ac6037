"""Errors that are errors of :mod:`tarfile` or :mod:`pickle` too: part of the tree in :mod:`webdataset.core.errors`.

Import them there: that module loads this one when the first of them is needed, since neither library is needed to read
or write a shard.
"""

import pickle
import tarfile

from webdataset.core.errors import CodecError, FormatError

HOME = "webdataset.core.errors"  # where they are imported from, and what pickles say


class TarError(FormatError, tarfile.ReadError):
    """A tar stream that cannot be read on."""

    __module__ = HOME


class BadHeader(TarError):
    """A tar header that fails its checksum or makes no sense."""

    __module__ = HOME


class Truncated(TarError, EOFError):
    """A tar stream that ends inside a member, or without an end-of-archive mark where one is needed."""

    __module__ = HOME


class LimitExceeded(TarError):
    """A header chain, a name or a record larger than the limits allow."""

    __module__ = HOME


class BadCompression(FormatError, tarfile.ReadError):
    """A compressed stream that does not decompress to its end."""

    __module__ = HOME


class UnsafeContent(CodecError, pickle.UnpicklingError):
    """A field whose decoding would run code that is not on the allow-list."""

    __module__ = HOME
