"""Every scheme, described alike: a server of its own on this machine, an object there, and ways to it that break.

The objects of a :class:`Scheme` are reached straight, through a proxy that breaks answers, or over a wire that is cut.
Options name secrets by variables of the environment, so that targets travel to other processes; ``environment`` says
which have to be set. What each server is, and what it is compared with, stands where it comes from.
"""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from support.proxy import FaultyProxy, Plan
from support.wires import CutWire


class Target(NamedTuple):
    """Where an object is, for a reader.

    Args:
        url: of the object.
        options: ``storage_options`` for it, or None.
    """

    url: str
    options: dict[str, Any] | None = None


class Folder(NamedTuple):
    """Where servers keep their files.

    Args:
        own: a folder of this process.
        shared: one that the processes of this test run share.
        certificate: certificate and key in PEM, for https; the name in it is 127.0.0.1 and localhost.
        authority: whoever signed it, in PEM.
    """

    own: Path
    shared: Path
    certificate: Path
    authority: Path


class SecureProxy(FaultyProxy):
    """A proxy that is spoken to over TLS, and breaks what is within.

    Args:
        certificate: certificate and key in PEM.
        upstream: ``host:port`` of the server that works, without TLS.
        plan: what goes wrong.
        **rules: as for :class:`~support.proxy.FaultyProxy`.
    """

    def __init__(self, certificate: Path, upstream: str, plan: Plan, **rules: Any) -> None:
        super().__init__(upstream, plan, **rules)
        self._certificate = certificate

    def __enter__(self) -> Self:
        super().__enter__()
        self.url = self._server.secure(self._certificate).url
        return self


class Scheme(ABC):
    """One scheme, and the server behind it.

    Args:
        folder: where it may keep files.
        worker: distinguishes the objects of processes that share a server.
        server: what runs, for the schemes that have a server.

    Attributes:
        name: of the scheme, as the matrix calls it.
        web: whether it is spoken over http, so that a proxy can break its answers.
        heeds: whether its requests name the version that they want, so that a careless service can ignore it.
        environment: variables that have to be set.
    """

    name: ClassVar[str]
    web: ClassVar[bool] = True
    heeds: ClassVar[bool] = True

    def __init__(self, folder: Folder, worker: str, server: Any = None) -> None:
        self.folder, self.worker, self.server = folder, worker, server
        self.environment: dict[str, str] = {}

    @property
    def cleartext(self) -> str:
        """``host:port`` where the bytes are had without TLS; empty where that is not by a server."""
        return ""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Publish an object, or another one in its place, as storing again does.

        Args:
            key: its name.
            content: its bytes.
        """

    @abstractmethod
    def target(self, key: str, address: str | None = None) -> Target:
        """Return how a reader gets to an object.

        Args:
            key: its name.
            address: ``http://host:port``, or for ssh a port, to go through; None: straight.
        """

    def announce(self, address: str | None) -> None:  # noqa: B027  most have nothing to announce
        """Let a service that sends its readers elsewhere name another address from now on; others ignore it.

        Args:
            address: where to; None: straight to the server.
        """

    @contextlib.contextmanager
    def broken(
        self,
        plan: Plan,
        key: str,
        *,
        swap: Callable[[], object] | None = None,
        careless: bool = False,
        upstream: str = "",
        secure: bool = False,
    ) -> Iterator[tuple[FaultyProxy, Target]]:
        """Put a proxy that breaks answers before the server.

        Args:
            plan: what goes wrong.
            key: the object to read.
            swap: what a ``swapped`` fault does.
            careless: conditions are not passed on.
            upstream: ``host:port`` to pass requests to, in place of the server.
            secure: readers speak TLS with the proxy.

        Yields:
            The proxy, and the target behind it.
        """
        place, rules = upstream or self.cleartext, {"swap": swap, "careless": careless}
        made = SecureProxy(self.folder.certificate, place, plan, **rules) if secure else None
        with made or FaultyProxy(place, plan, swap=swap, careless=careless) as proxy:
            self.announce(proxy.url)
            try:
                yield proxy, self.target(key, proxy.url)
            finally:
                self.announce(None)

    @contextlib.contextmanager
    def torn(
        self, plan: list[int | None], key: str, *, kind: str = "reset", secure: bool = False
    ) -> Iterator[tuple[CutWire, Target]]:
        """Put a wire that is cut before the server.

        Args:
            plan: for each connection in turn, after how many bytes from the server it is cut.
            key: the object to read.
            kind: ``reset``, ``end`` or ``silence``.
            secure: TLS is spoken over the wire.

        Yields:
            The wire, and the target at its end.
        """
        with contextlib.ExitStack() as stack:
            inner = None
            if secure:
                inner = stack.enter_context(
                    SecureProxy(self.folder.certificate, self.cleartext, lambda _method, _path: None)
                )
            port = int((inner.url if inner else self.cleartext).rpartition(":")[2])
            wire = stack.enter_context(CutWire(port, plan, kind))
            address = f"{'https' if secure else 'http'}://127.0.0.1:{wire.port}"
            self.announce(address)
            stack.callback(self.announce, None)
            yield wire, self.target(key, address)


_versions = itertools.count(1)


def version() -> int:
    """Return a number that is larger than all before: times of change that differ."""
    return next(_versions)
