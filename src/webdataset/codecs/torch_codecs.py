"""torch tensors as values: pixels, frames, sound, safetensors, and the tensors inside pickles.

A tensor inside a pickle carries its storage as the bytes of another ``torch.save``. Those are loaded with
``weights_only=True`` always: the function that pickle names would unpickle them without any limits. Tensors share the
memory of arrays wherever they can; nothing is copied here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from webdataset.codecs.media.audio_codec import sound_loads
from webdataset.codecs.media.video_decode import video_loads
from webdataset.codecs.pickle_allowlist import unsafe_content_error
from webdataset.codecs.torch_files import torch_loads
from webdataset.core.errors import EncodingError, describe_error
from webdataset.core.optional_imports import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="torch", purpose="reading and writing tensors")


def image_tensor(pixels: "npt.NDArray[np.uint8]", depth: str) -> torch.Tensor:
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


def resize_pixels(pixels: "npt.NDArray[np.uint8]", size: tuple[int, int], resample: str) -> "npt.NDArray[np.uint8]":
    """Resize an image with antialiasing.

    Args:
        pixels: uint8[H, W, C].
        size: height and width that are wanted.
        resample: "bilinear" or "bicubic".

    Returns:
        A uint8[height, width, C]; a value differs by 2 at most from Pillow's.
    """
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size, mode=resample, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def as_array(value: torch.Tensor) -> np.ndarray:
    """Turn a tensor into a numpy array, away from its device and gradient.

    Raises:
        EncodingError: numpy has no such type (bfloat16).
    """
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except TypeError as error:
        raise EncodingError(
            f"a tensor of {value.dtype} cannot become a numpy array: {describe_error(error)}"
        ) from error


def image_pixels(value: torch.Tensor) -> np.ndarray:
    """Turn an image tensor into an array with its channels last.

    Args:
        value: [H, W], [C, H, W], or [H, W, C] where the first axis has not 1, 3 or 4 entries.
    """
    array = as_array(value)
    return array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in (1, 3, 4) else array


def video(data: bytes) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Decode a video to tensors; see :func:`~webdataset.codecs.media.video_decode.video_loads`."""
    frames, sound, rates = video_loads(data)
    return torch.from_numpy(frames), torch.from_numpy(sound), rates


def audio(data: bytes) -> tuple[torch.Tensor, int]:
    """Decode sound to a tensor and its rate in Hz; see :func:`~webdataset.codecs.media.audio_codec.sound_loads`."""
    samples, rate = sound_loads(data)
    return torch.from_numpy(samples), rate


def storage(content: object) -> object:
    """Stand in for ``torch.storage._load_from_bytes``: return the storage, on the CPU.

    Raises:
        UnsafeContent: it holds anything but a storage or tensors.
    """
    if type(content) is not bytes:
        raise unsafe_content_error("loads a tensor's storage from something that is no bytes")
    return torch_loads(content, trust="safe")


def tensor(*parts: Any) -> object:
    """Stand in for ``torch._utils._rebuild_tensor_v2``.

    Args:
        *parts: storage, offset, size, stride, requires_grad, backward hooks and perhaps metadata.

    Raises:
        UnsafeContent: not a storage, or hooks.
    """
    if len(parts) not in (6, 7) or not isinstance(parts[0], torch.storage.TypedStorage) or parts[5]:
        raise unsafe_content_error("rebuilds a tensor from something that is no storage, or with hooks")
    return torch._utils._rebuild_tensor_v2(*parts)  # noqa: SLF001  the function that pickled tensors name


def parameter(content: object, requires_grad: object, hooks: object) -> object:
    """Stand in for ``torch._utils._rebuild_parameter``.

    Args:
        content: a tensor.
        requires_grad: whether gradients are kept.
        hooks: backward hooks; must be empty.

    Raises:
        UnsafeContent: not a tensor, or hooks.
    """
    if not isinstance(content, torch.Tensor) or hooks:
        raise unsafe_content_error("rebuilds a parameter from something that is no tensor, or with hooks")
    return torch._utils._rebuild_parameter(content, bool(requires_grad), hooks)  # noqa: SLF001  as above


_LIBRARY: dict[str, str] = {"extra": "safetensors", "purpose": "safetensors fields"}


def tensors_loads(data: bytes) -> dict[str, torch.Tensor]:
    """Decode to names, in alphabetical order, and tensors.

    Raises:
        MissingExtra: safetensors is not installed.
        Exception: not such a file, or damaged.
    """
    found = require("safetensors.torch", **_LIBRARY).load(data)
    return {name: found[name] for name in sorted(found)}


def tensors_dumps(values: Mapping[str, object]) -> bytes:
    """Encode names to tensors, and to what becomes one.

    Raises:
        MissingExtra: safetensors is not installed.
        EncodingError: a type that torch or the format does not have.
    """
    save = require("safetensors.torch", **_LIBRARY).save
    try:
        # copies: the library refuses tensors that share memory
        dense = {name: torch.as_tensor(value).detach().cpu().contiguous().clone() for name, value in values.items()}
        written: bytes = save(dense)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise EncodingError(f"these tensors cannot be written as safetensors: {describe_error(error)}") from error
    return written


def tensor_to_array(tensor: torch.Tensor) -> "npt.NDArray[np.generic] | None":
    """Return a CPU tensor as an array over its memory; None where numpy has no such (bfloat16, sparse, a gradient)."""
    if tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return None


def array_to_tensor(array: "npt.NDArray[np.generic]") -> torch.Tensor:
    """Return an array as a tensor over its memory."""
    return torch.from_numpy(array)


def seed_torch_worker(seed: int) -> None:
    """Give a worker process a generator of its own and one thread: many workers share the machine.

    Args:
        seed: 64 bits.
    """
    torch.manual_seed(seed % (1 << 63))
    torch.set_num_threads(1)
