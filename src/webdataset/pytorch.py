"""Compatibility import path of torch's classes; the code lives in torch.

Without torch, the classes of :mod:`webdataset.core.optional_imports` replace them. Importing this imports torch.
"""

from typing import Any

from webdataset.core.optional_imports import IterableDataset as _Plain
from webdataset.core.optional_imports import import_if_available

_data = import_if_available("torch.utils.data")
_torch = import_if_available("torch")

IterableDataset: Any = _data.IterableDataset if _data is not None else _Plain
DataLoader: Any = getattr(_data, "DataLoader", None)
TorchTensor: Any = getattr(_torch, "Tensor", None)

__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]
