"""Door: torch's classes where torch is installed, and ours where it is not (importing this imports torch)."""

from typing import Any

from webdataset.ground.extras import available
from webdataset.ground.torchlike import IterableDataset as _Plain

_data = available("torch.utils.data")
_torch = available("torch")

IterableDataset: Any = _data.IterableDataset if _data is not None else _Plain
DataLoader: Any = getattr(_data, "DataLoader", None)
TorchTensor: Any = getattr(_torch, "Tensor", None)

__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]
