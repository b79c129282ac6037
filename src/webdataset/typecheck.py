"""Door to nothing: the type check of published versions, which checked their own annotations."""

from webdataset.core.lazy_modules import removed_attributes

__getattr__ = removed_attributes(__name__, "this package is typed: use mypy or pyright")
