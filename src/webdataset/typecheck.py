"""Compatibility import path without code: the type check of published versions, of their own annotations."""

from webdataset.core.lazy_modules import removed_attributes

__getattr__ = removed_attributes(__name__, "this package is typed: use mypy or pyright")
