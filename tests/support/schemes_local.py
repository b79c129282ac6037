"""Schemes whose servers know no cloud: web servers, ssh, a file system of fsspec, memory.

See :mod:`support.schemes`.
"""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from support.schemes import Scheme, Target, version
from support.ssh_server import SshServer
from support.web_server import WebServer
from webdataset.core.optional_imports import require
from webdataset.storage.backends.memory import MemoryUpload


def _renamed(folder: Path, key: str, content: bytes) -> None:
    """Put a file in the place of another, with a time of change of its own."""
    fresh = folder / f".{key}"
    fresh.write_bytes(content)
    os.utime(fresh, (1_000_000_000 + version(), 1_000_000_000 + version()))
    fresh.rename(folder / key)


class Http(Scheme):
    """nginx."""

    name: ClassVar[str] = "http"
    server: WebServer

    @property
    def cleartext(self) -> str:
        """``host:port`` of the server."""
        return urlsplit(self.server.plain).netloc

    def put(self, key: str, content: bytes) -> None:
        """Put a file in the place of another."""
        _renamed(self.server.files, key, content)

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url."""
        return Target(f"{address or self.server.plain}/{key}")


class Https(Http):
    """nginx over TLS; before it a proxy that speaks TLS."""

    name: ClassVar[str] = "https"

    def broken(self, plan: Any, key: str, **rules: Any) -> Any:
        """Put a proxy before the server; see :class:`Scheme`."""
        return super().broken(plan, key, **{**rules, "secure": True})

    def torn(self, plan: list[int | None], key: str, **rules: Any) -> Any:
        """Cut the wire below TLS; see :class:`Scheme`."""
        return super().torn(plan, key, **{**rules, "secure": True})

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, and which certificates to trust."""
        return Target(f"{address or self.server.secure}/{key}", {"verify": str(self.folder.authority)})


class Ssh(Scheme):
    """OpenSSH, read by asyncssh."""

    name: ClassVar[str] = "ssh"
    web: ClassVar[bool] = False
    heeds: ClassVar[bool] = False
    server: SshServer

    @property
    def cleartext(self) -> str:
        """``host:port`` of the server."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def files(self) -> Path:
        """The folder of this process, on the server."""
        return self.server.files / f"{self.name}-{self.worker}"

    def put(self, key: str, content: bytes) -> None:
        """Put a file in the place of another."""
        self.files.mkdir(exist_ok=True)
        _renamed(self.files, key, content)

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, and how to log in."""
        options = {
            "port": int((address or self.cleartext).rpartition(":")[2]),
            "username": self.server.user,
            "key_filename": str(self.server.home / ".ssh" / "id_ed25519"),
            "known_hosts": False,
        }
        return Target(f"ssh://127.0.0.1{self.files}/{key}", options)


class Far(Ssh):
    """OpenSSH, read by fsspec's own client, which is paramiko, under a scheme that nobody else serves."""

    name: ClassVar[str] = "fsspec"

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, and what its file system is given."""
        register_far()
        port = int((address or self.cleartext).rpartition(":")[2])
        options = {"key_filename": str(self.server.home / ".ssh" / "id_ed25519"), "username": self.server.user}
        return Target(f"wdsfar://127.0.0.1:{port}{self.files}/{key}", {"fsspec": options})


def register_far() -> Any:
    """Tell fsspec, in this process, of a scheme ``wdsfar``: its SFTP client.

    Returns:
        The class of the file system.

    Raises:
        MissingExtra: fsspec or paramiko is not installed.
    """
    registry = require("fsspec.registry", extra="fsspec", purpose="testing fsspec")
    if "wdsfar" in registry.registry:
        return registry.registry["wdsfar"]
    require("paramiko", extra="fsspec", purpose="testing fsspec against a real server")
    base: Any = require("fsspec.implementations.sftp", extra="fsspec", purpose="testing fsspec").SFTPFileSystem

    def strip(_kind: Any, path: str) -> Any:
        return base._strip_protocol(path.replace("wdsfar://", "sftp://"))  # noqa: SLF001  as fsspec wants it

    def given(url: str) -> Any:
        return base._get_kwargs_from_urls(url.replace("wdsfar://", "sftp://"))  # noqa: SLF001  as fsspec wants it

    names = {"protocol": "wdsfar", "_strip_protocol": classmethod(strip), "_get_kwargs_from_urls": staticmethod(given)}
    made = type("Far", (base,), names)
    registry.register_implementation("wdsfar", made, clobber=True)
    return made


def forget_far() -> None:
    """Close the connections that fsspec keeps for ``wdsfar``, in this process."""
    known = sys.modules.get("fsspec.registry")
    kind: Any = None if known is None else known.registry.get("wdsfar")
    if kind is None:
        return
    for kept in list(kind._cache.values()):  # noqa: SLF001  fsspec has no other way
        kept.client.close()
    kind.clear_instance_cache()


class Memory(Scheme):
    """The memory of this process: nothing between reader and object can break."""

    name: ClassVar[str] = "memory"
    web: ClassVar[bool] = False

    def put(self, key: str, content: bytes) -> None:
        """Publish an object."""
        with MemoryUpload(self.target(key).url) as stream:
            stream.write(content)

    def target(self, key: str, address: str | None = None) -> Target:  # noqa: ARG002  there is one way only
        """Return its url."""
        return Target(f"memory://{self.worker}/{key}")
