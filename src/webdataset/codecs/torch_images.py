"""torch tensors and numpy arrays: image tensors from pixels, arrays from tensors.

Flows in: pixels as numpy arrays, or tensors. Flows out: tensors, or arrays.
"""

from typing import Any

import numpy as np
import torch

from webdataset.ground.errors import EncodingError, said


def image_tensor(pixels: Any, depth: str) -> torch.Tensor:
    """Turn pixels into a tensor.

    Args:
        pixels: uint8[H, W] or uint8[H, W, C].
        depth: "uint8", or "float" for float32 in [0, 1].

    Returns:
        A contiguous tensor [H, W] or [C, H, W].
    """
    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if depth == "uint8":
        return torch.from_numpy(np.ascontiguousarray(planes))
    return torch.from_numpy(np.divide(planes, np.float32(255), dtype=np.float32, order="C"))


def as_array(value: torch.Tensor) -> Any:
    """Turn a tensor into a numpy array, away from its device and gradient.

    Args:
        value: any dense tensor.

    Raises:
        EncodingError: numpy has no such type (bfloat16).
    """
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except TypeError as error:
        raise EncodingError(f"a tensor of {value.dtype} cannot become a numpy array: {said(error)}") from error


def image_pixels(value: torch.Tensor) -> Any:
    """Turn an image tensor into an array with its channels last.

    Args:
        value: [H, W], [C, H, W], or [H, W, C] where the first axis has not 1, 3 or 4 entries.
    """
    array = as_array(value)
    return array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in (1, 3, 4) else array
