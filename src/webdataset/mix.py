"""Compatibility import path of mixed datasets; the code lives in :mod:`webdataset.fluent.mixes`."""

from webdataset.core.lazy_modules import lazy_attributes
from webdataset.fluent.mixes import RandomMix, RoundRobin
from webdataset.stages.mix import random_samples, round_robin_longest, round_robin_shortest

__all__ = ["RandomMix", "RoundRobin", "random_samples", "round_robin_longest", "round_robin_shortest"]

__getattr__ = lazy_attributes(__name__, IterableDataset="pytorch")
