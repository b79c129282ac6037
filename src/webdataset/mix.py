"""Door: datasets mixed by chance or in turn."""

from webdataset.ground.doorways import served
from webdataset.stages.mixed import random_samples, round_robin_longest, round_robin_shortest
from webdataset.stages.mixing import RandomMix, RoundRobin

__all__ = ["RandomMix", "RoundRobin", "random_samples", "round_robin_longest", "round_robin_shortest"]

__getattr__ = served(__name__, IterableDataset="pytorch")
