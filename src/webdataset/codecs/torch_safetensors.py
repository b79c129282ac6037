"""``.safetensors`` fields as torch tensors.

Flows in: the bytes of one file. Flows out: a dict of tensors on the CPU; and back.
"""

from typing import Any

from webdataset.ground.errors import EncodingError, said
from webdataset.ground.extras import require

torch: Any = require("torch", extra="torch", purpose="decoding safetensors to tensors")
_LIBRARY: dict[str, str] = {"extra": "safetensors", "purpose": "safetensors fields"}


def tensors_loads(data: bytes) -> dict[str, Any]:
    """Decode to tensors.

    Args:
        data: bytes of the file.

    Returns:
        Names, in alphabetical order, to tensors.

    Raises:
        MissingExtra: safetensors is not installed.
        Exception: not such a file, or damaged.
    """
    found = require("safetensors.torch", **_LIBRARY).load(data)
    return {name: found[name] for name in sorted(found)}


def tensors_dumps(values: dict[str, Any]) -> bytes:
    """Encode tensors, and whatever becomes one.

    Args:
        values: names to tensors or arrays.

    Returns:
        Bytes of the file.

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
        raise EncodingError(f"these tensors cannot be written as safetensors: {said(error)}") from error
    return written
