"""Being a map-style torch Dataset without importing torch.

``isinstance(dataset, torch.utils.data.Dataset)`` asks the dataset's ``__class__`` where its type says no. torch's
class is no ABC, so there is nothing to register with; instead the answer, once torch is loaded, is a class below both
ours and torch's. Its type stays what it is.
"""

from typing import Any

from webdataset.ground.errors import MissingExtra
from webdataset.ground.extras import loaded

_made: dict[tuple[type, type], type] = {}


def _both(kind: type, base: type) -> type:
    """Return the class below two classes; the same one every time."""
    if (kind, base) not in _made:
        _made[kind, base] = type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return _made[kind, base]


class MapDataset:
    """Base of the datasets with random access that a DataLoader may be given."""

    @property
    def __class__(self) -> Any:
        kind = type(self)
        base = getattr(loaded("torch.utils.data"), "Dataset", None)
        return kind if base is None or issubclass(kind, base) else _both(kind, base)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        object.__dict__["__class__"].__set__(self, kind)

    def __add__(self, other: Any) -> Any:
        """Return torch's ConcatDataset of both.

        Raises:
            MissingExtra: torch is not loaded.
        """
        data = loaded("torch.utils.data")
        if data is None:
            raise MissingExtra(
                "adding datasets makes a torch ConcatDataset: pip install 'webdataset[torch]', import torch"
            )
        return data.ConcatDataset([self, other])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle with lambdas and local functions, for workers started by spawn and forkserver."""
        import cloudpickle  # noqa: PLC0415  only travellers pay for it

        return _rebuilt, (cloudpickle.dumps((type(self), self.__getstate__())),)


def _rebuilt(parcel: bytes) -> Any:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    kind, state = cloudpickle.loads(parcel)
    result = kind.__new__(kind)
    result.__setstate__(state)
    return result
