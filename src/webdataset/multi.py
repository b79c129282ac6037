"""Compatibility import path without code: the published loader that sent samples between processes over ZeroMQ."""

from webdataset.core.lazy_modules import removed_attributes

__getattr__ = removed_attributes(__name__, "use wds.WebLoader(dataset, num_workers=n, batch_size=None)")
