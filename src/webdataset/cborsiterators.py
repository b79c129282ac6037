"""Compatibility import path of CBOR and msgpack shards; the code lives in :mod:`webdataset.stages.record_readers`."""

from webdataset.core.error_handlers import reraise_exception
from webdataset.stages.record_readers import cbor_iterator, cbors_samples, cbors_to_samples, msgpacks_to_samples
from webdataset.stages.record_readers import cbor_iterator as cbor2_iterator
from webdataset.stages.record_readers import cbors_samples as cbors2_samples
from webdataset.stages.record_readers import cbors_to_samples as cbors2_to_samples

__all__ = [
    "cbor2_iterator",
    "cbor_iterator",
    "cbors2_samples",
    "cbors2_to_samples",
    "cbors_samples",
    "cbors_to_samples",
    "msgpacks_to_samples",
    "reraise_exception",
]
