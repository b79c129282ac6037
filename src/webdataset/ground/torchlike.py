"""Being a torch IterableDataset without importing torch.

``isinstance(dataset, torch.utils.data.IterableDataset)`` asks the dataset's ``__class__`` before it looks anything up.
At that moment torch is loaded, so this is when our class registers itself as a virtual subclass (torch's class is an
ABC). Whoever never loads torch never pays for it, and the order of imports does not matter.
"""

from typing import Any

from .extras import loaded


def register(kind: type) -> None:
    """Make ``kind`` a virtual subclass of torch's IterableDataset, if torch's data module is loaded."""
    data = loaded("torch.utils.data")
    base = getattr(data, "IterableDataset", None)
    if base is not None and base not in kind.__mro__:
        base.register(kind)


class IterableDataset:
    """Base of everything here that a DataLoader may be given."""

    @property
    def __class__(self) -> Any:
        kind = type(self)
        register(kind)
        return kind

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        object.__dict__["__class__"].__set__(self, kind)
