"""Door: datasets mixed by chance or in turn."""

from webdataset.fluent.mixes import RandomMix, RoundRobin
from webdataset.ground.doorways import served
from webdataset.stages.mixed import random_samples, round_robin_longest, round_robin_shortest

__all__ = ["RandomMix", "RoundRobin", "random_samples", "round_robin_longest", "round_robin_shortest"]

__getattr__ = served(__name__, IterableDataset="pytorch")
