"""Door: datasets mixed by chance or in turn."""

from webdataset.stages.mixing import RandomMix, RoundRobin

__all__ = ["RandomMix", "RoundRobin"]
