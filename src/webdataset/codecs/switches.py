"""The switch ``pytorch_weights_only``, and the kind of module that shows it.

Flows in: what programs assign to ``webdataset.autodecode.pytorch_weights_only``, and the environment. Flows out:
whether ``.pth`` fields are loaded with ``weights_only=True``, asked anew at every field.
"""

import importlib
from typing import Any

from webdataset.ground import settings
from webdataset.ground.doorways import Door

_LATER = {
    "cbor_loads": "records",
    "json_loads": "json_fields",
    "msgpack_loads": "records",
    "npy_loads": "arrays",
    "npz_loads": "arrays",
    "tenbin_loads": "tenbin",
}


class Switch:
    """What the program has assigned.

    Attributes:
        weights_only: None leaves it to ``WDS_PYTORCH_WEIGHTS_ONLY``.
    """

    weights_only: bool | None = None


switch = Switch()


def weights_only() -> bool:
    """Return False where the program or the environment has switched ``pytorch_weights_only`` off."""
    return settings.PYTORCH_WEIGHTS_ONLY.get() if switch.weights_only is None else switch.weights_only


class SwitchedDoor(Door):
    """The kind of module that ``webdataset.autodecode`` is: a switch, and decoders that are loaded when asked for."""

    @property
    def pytorch_weights_only(self) -> bool:
        """Whether ``.pth`` fields are loaded with ``weights_only=True``; may be assigned."""
        return weights_only()

    @pytorch_weights_only.setter
    def pytorch_weights_only(self, only: bool) -> None:
        switch.weights_only = None if bool(only) == settings.PYTORCH_WEIGHTS_ONLY.get() else bool(only)

    def __getattr__(self, name: str) -> Any:
        """Load a decoder that needs numpy or msgspec.

        Raises:
            AttributeError: there is no such name.
        """
        if name == "utils":
            return importlib.import_module("webdataset.utils")
        if name in _LATER:
            return getattr(importlib.import_module(f"webdataset.codecs.{_LATER[name]}"), name)
        raise AttributeError(f"module 'webdataset.autodecode' has no attribute {name!r}")
