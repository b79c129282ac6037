"""What reading ahead may hold in one process: bytes, and connections besides those that are read from.

Flows in: wishes. Flows out: grants, or None: whoever gets none goes on without. Nobody ever waits for a grant.
"""

import os

from webdataset.ground import settings
from webdataset.ground.locks import ForkSafeRLock


class Grant:
    """Bytes and perhaps a connection, to be given back in two steps or one; in a forked child they count no more.

    Args:
        budget: who granted them.
        size_bytes: how many bytes may be held.

    Attributes:
        size_bytes: as granted.
    """

    __slots__ = ("_budget", "_connections", "_owner", "_size", "size_bytes")

    def __init__(self, budget: "Budget", size_bytes: int) -> None:
        self.size_bytes = self._size = size_bytes
        self._budget, self._connections, self._owner = budget, 1, os.getpid()

    def grow(self, size_bytes: int) -> bool:
        """Ask for more bytes, and for a connection where it was given back; tells whether they are granted.

        Args:
            size_bytes: how many more.
        """
        if self._owner != os.getpid():
            return False
        with self._budget.lock:
            granted = self._budget.more(size_bytes, 1 - self._connections)
            if granted:
                self.size_bytes += size_bytes
                self._size += size_bytes
                self._connections = 1
        return granted

    @property
    def held_bytes(self) -> int:
        """Bytes that are granted still."""
        return self._size

    def shrink(self, size_bytes: int) -> None:
        """Give back some of the bytes: they have been read, or never will be.

        Args:
            size_bytes: how many.
        """
        self._give(size_bytes, 0)

    def disconnected(self) -> None:
        """Give the connection back."""
        self._give(0, 1)

    def release(self) -> None:
        """Give back what is left."""
        self._give(self._size, 1)

    def _give(self, size_bytes: int, connections: int) -> None:
        if self._owner == os.getpid():
            with self._budget.lock:  # the reader and the thread both give back, each what it knows of
                size_bytes, connections = min(size_bytes, self._size), min(connections, self._connections)
                self._size -= size_bytes
                self._connections -= connections
                self._budget.size_bytes -= size_bytes
                self._budget.connections -= connections


class Budget:
    """Bytes and connections of one process.

    Attributes:
        lock: held while they are counted; whoever holds it may be interrupted by a finaliser that gives back.
        size_bytes: granted now.
        connections: granted now.
    """

    def __init__(self) -> None:
        self.lock = ForkSafeRLock()
        self.size_bytes = self.connections = 0

    def take(self, size_bytes: int, *, spare: int = 0) -> Grant | None:
        """Return a grant of bytes and a connection, or None where the process has no room.

        Args:
            size_bytes: bytes to be held at most.
            spare: connections of its own that the reader does without.
        """
        return Grant(self, size_bytes) if self.more(size_bytes, 1, spare=spare) else None

    def more(self, size_bytes: int, connections: int, *, spare: int = 0) -> bool:
        """Count bytes and connections as taken, if there is room; tells whether there is.

        Args:
            size_bytes: how many.
            connections: how many, perhaps none.
            spare: as for :meth:`take`.
        """
        most, widest = settings.PREFETCH_BYTES.get(), settings.CONNECTIONS.get() - 1 + spare
        with self.lock:
            if self.size_bytes + size_bytes > most or (connections and self.connections + connections > widest):
                return False
            self.size_bytes += size_bytes
            self.connections += connections
        return True

    @property
    def idle_connections(self) -> int:
        """How many further connections would be granted now."""
        return settings.CONNECTIONS.get() - 1 - self.connections

    def forget(self) -> None:
        """Begin anew, in a forked child: nothing that the parent holds is held here."""
        self.size_bytes = self.connections = 0


budget = Budget()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=budget.forget)
