"""Dataset specifications: YAML, JSON or dictionaries to frozen values; no pipeline is built here.

* ``load``: the entry: a file, url or dict of any dialect to a ``DatasetSpec``. ``spec``: that value, and its exports.
* ``mix``: sources and mixes as values, the shards of each pass, the plan.
* ``native``: reads the native format. ``schema``: its keys and kinds, and the JSON Schema made from them.
* ``dialects``: formats of other programs. ``energon``: metadatasets and prepared directories.
* ``multishard``: ``MultiShardSample``.
* ``syntax``: YAML, JSON and Python values to trees with places. ``context``: mistakes and nested documents.
* ``origin``: where a specification came from, and what it may therefore name.
"""

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
