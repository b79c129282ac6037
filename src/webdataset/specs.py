"""Compatibility import path of dataset specifications; the code lives in :mod:`webdataset.shards.specs`."""

from webdataset.fluent.dataset import from_spec
from webdataset.shards.specs import DatasetSpec, Mix, Source, from_open_clip, load_spec

__all__ = ["DatasetSpec", "Mix", "Source", "from_open_clip", "from_spec", "load_spec"]
