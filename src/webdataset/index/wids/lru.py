"""A table of bounded size that lets go of what was used least recently.

Flows in: keys and values. Flows out: the values again, until there are too many. What is let go goes to a function.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any


class LRUCache:
    """A table of bounded size.

    Args:
        capacity: the most entries; at least one is kept.
        release_handler: called with key and value of each entry that is let go.
    """

    def __init__(self, capacity: int, release_handler: Callable[[Any, Any], Any] | None = None) -> None:
        self.capacity = max(1, int(capacity))
        self.release_handler = release_handler
        self._entries: OrderedDict[Any, Any] = OrderedDict()

    def __getitem__(self, key: Any) -> Any:
        """Return the value of a key and count it as used; None where there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Put a value in, and let go of the oldest where there are too many."""
        old = self._entries.pop(key, None)
        if old is not None and old is not value:
            self._release(key, old)
        self._entries[key] = value
        while len(self._entries) > self.capacity:
            self._release(*self._entries.popitem(last=False))

    def _release(self, key: Any, value: Any) -> None:
        if self.release_handler is not None:
            self.release_handler(key, value)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Tell whether a key has a value."""
        return key in self._entries

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys, the least recently used first."""
        return iter(list(self._entries))

    def keys(self) -> list[Any]:
        """Return the keys, the least recently used first."""
        return list(self._entries.keys())

    def values(self) -> list[Any]:
        """Return the values, the least recently used first."""
        return list(self._entries.values())

    def items(self) -> list[tuple[Any, Any]]:
        """Return keys and values, the least recently used first."""
        return list(self._entries.items())

    def clear(self) -> None:
        """Let go of everything."""
        while self._entries:
            self._release(*self._entries.popitem(last=False))
