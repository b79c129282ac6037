"""Door: CBOR record shards, where code for webdataset 0.2 imports them from."""

from webdataset.stages.records import cbors_to_samples
from webdataset.stages.records import cbors_to_samples as cbors2_to_samples

__all__ = ["cbors2_to_samples", "cbors_to_samples"]
