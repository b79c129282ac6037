"""Door and hinge: the chainable classes, where existing code imports them from."""

from webdataset.fluent.dataset import WebDataset
from webdataset.fluent.interface import FluidInterface
from webdataset.fluent.loader import FluidWrapper, WebLoader
from webdataset.fluent.processing import Processor

__all__ = ["FluidInterface", "FluidWrapper", "Processor", "WebDataset", "WebLoader"]
