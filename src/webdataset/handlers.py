"""Compatibility import path of the handlers of errors; the code lives in :mod:`webdataset.core.error_handlers`."""

from webdataset.core.error_handlers import (
    Handler,
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)

__all__ = [
    "Handler",
    "ignore_and_continue",
    "ignore_and_stop",
    "reraise_exception",
    "warn_and_continue",
    "warn_and_stop",
]
