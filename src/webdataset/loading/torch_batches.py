"""torch tensors and numpy arrays over the same memory.

Flows in: CPU tensors of samples, columns of batches. Flows out: arrays, tensors. Nothing is copied.
"""

from typing import Any

import torch


def array_of(tensor: Any) -> Any:
    """Return a CPU tensor as an array over its memory; None where numpy cannot have it (bfloat16, sparse, a gradient).

    Args:
        tensor: any tensor.
    """
    if tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return None


def tensor_of(array: Any) -> Any:
    """Return an array as a tensor over its memory.

    Args:
        array: of numbers.
    """
    return torch.from_numpy(array)


def settle(seed: int) -> None:
    """Give a worker process a generator of its own and one thread: many workers share the machine.

    Args:
        seed: 64 bits.
    """
    torch.manual_seed(seed % (1 << 63))
    torch.set_num_threads(1)
