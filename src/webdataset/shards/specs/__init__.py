"""Dataset specifications: YAML, JSON or dictionaries in, frozen descriptions out; no pipeline is built here."""

from .description import DatasetSpec
from .loading import from_open_clip, load_spec
from .mixes import Mix, Source
from .multishard import MSSource, MultiShardSample, shardspec

__all__ = [
    "DatasetSpec",
    "MSSource",
    "Mix",
    "MultiShardSample",
    "Source",
    "from_open_clip",
    "load_spec",
    "shardspec",
]
