"""torch tensors out of pickles: the functions that a pickle may call, checked.

A tensor inside a pickle carries its storage as the bytes of another ``torch.save``. Those are loaded with
``weights_only=True`` always: the function that pickle names would unpickle them without any limits.
"""

from typing import Any

import torch

from .safe_globals import refusal
from .torch_fields import torch_loads


def storage(content: Any) -> Any:
    """Stand in for ``torch.storage._load_from_bytes``.

    Args:
        content: bytes of one saved storage.

    Returns:
        The storage, on the CPU.

    Raises:
        UnsafeContent: it holds anything but a storage or tensors.
    """
    if type(content) is not bytes:
        raise refusal("loads a tensor's storage from something that is no bytes")
    return torch_loads(content, trust="safe")


def tensor(*parts: Any) -> Any:
    """Stand in for ``torch._utils._rebuild_tensor_v2``.

    Args:
        *parts: storage, offset, size, stride, requires_grad, backward hooks and perhaps metadata.

    Raises:
        UnsafeContent: not a storage, or hooks.
    """
    if len(parts) not in (6, 7) or not isinstance(parts[0], torch.storage.TypedStorage) or parts[5]:
        raise refusal("rebuilds a tensor from something that is no storage, or with hooks")
    return torch._utils._rebuild_tensor_v2(*parts)  # noqa: SLF001  the function that pickled tensors name


def parameter(content: Any, requires_grad: Any, hooks: Any) -> Any:
    """Stand in for ``torch._utils._rebuild_parameter``.

    Args:
        content: a tensor.
        requires_grad: whether gradients are kept.
        hooks: backward hooks; must be empty.

    Raises:
        UnsafeContent: not a tensor, or hooks.
    """
    if not isinstance(content, torch.Tensor) or hooks:
        raise refusal("rebuilds a parameter from something that is no tensor, or with hooks")
    return torch._utils._rebuild_parameter(content, bool(requires_grad), hooks)  # noqa: SLF001  as above
