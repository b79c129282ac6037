"""Compatibility import path without code: the program of webdataset 0.2.86 that timed a pipeline."""

from webdataset.core.lazy_modules import removed_attributes

__getattr__ = removed_attributes(__name__, "time a pipeline by iterating over it, for example with time.perf_counter()")
