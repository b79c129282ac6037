"""Dataset specifications: YAML, JSON or dictionaries to frozen values; no pipeline is built here."""

from webdataset.shards.specs.load import from_open_clip, load_spec
from webdataset.shards.specs.mix import Mix, Source
from webdataset.shards.specs.multishard import MSSource, MultiShardSample, shardspec
from webdataset.shards.specs.spec import DatasetSpec

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
