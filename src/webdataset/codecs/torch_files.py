"""``.pth`` fields: decodes and encodes what ``torch.save`` writes.

The result is what ``torch.load`` gives, with ``weights_only=True`` (unless switched off) and on the CPU. torch is
imported when the first such field is met, and only in the codecs named after it.
"""

import io
import pickle
import re
from typing import Any

from webdataset.codecs.handlers import weights_only
from webdataset.codecs.pickle_allowlist import ADDED, unsafe_content_error, unsafe_global_error
from webdataset.core import trust as trust_levels
from webdataset.core.errors import UnsafeContent
from webdataset.core.optional_imports import require

# before, weights_only=True could be made to run code (CVE-2025-32434)
_FIRST_SAFE = (2, 6)

_GLOBAL_NAME = re.compile(r"GLOBAL ([\w.]*\w)")


def torch_loads(data: bytes, trust: str | None = None) -> Any:
    """Load what ``torch.save`` wrote.

    Args:
        data: bytes of a ``.pth`` file, zip or legacy format.
        trust: ``strict`` refuses, ``safe`` loads with ``weights_only=True``, ``full`` unpickles anything; None means
            the level in force, with ``pytorch_weights_only`` and ``WDS_PYTORCH_WEIGHTS_ONLY`` heeded.

    Returns:
        The object, its tensors on the CPU.

    Raises:
        UnsafeContent: the level is strict, the file needs classes that are not allowed, or torch is too old to load
            anything safely.
        MissingExtra: torch is not installed.
    """
    level = trust_levels.trust_level(trust)
    if level == "strict":
        raise UnsafeContent(
            "loading .pth is refused at trust level 'strict' (WDS_SECURE=1, utils.enforce_security or trust='strict')"
        )
    torch = require("torch", extra="torch", purpose="loading .pth fields")
    if level == "full" or (trust is None and not weights_only()):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    if _parse_release(torch.__version__) < _FIRST_SAFE:
        raise unsafe_content_error(f"is .pth, which torch {torch.__version__} cannot load safely (2.6 and later can)")
    try:
        with torch.serialization.safe_globals(list(ADDED.values())):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own words advise weights_only=False: only the name is taken from them, and they are not chained
        wanted = _GLOBAL_NAME.search(str(error))
        if wanted is not None:
            raise unsafe_global_error(wanted[1], "does not load with weights_only=True: it ") from None
        raise unsafe_content_error(
            "does not load with weights_only=True: it is damaged, or holds more than tensors"
        ) from None


def _parse_release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def torch_dumps(value: object) -> bytes:
    """Encode with ``torch.save``.

    Raises:
        MissingExtra: torch is not installed.
    """
    stream = io.BytesIO()
    torch = require("torch", extra="torch", purpose="writing .pth fields")
    torch.save(value, stream)
    return stream.getvalue()
