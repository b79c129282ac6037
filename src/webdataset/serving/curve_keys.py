"""Keys for encrypted lines between data servers and trainers: made, read, and compared with a list of those allowed.

Theory. Lines are encrypted with CURVE (Curve25519). A key pair is two files: ``NAME.public``, which is given to others,
and ``NAME.secret``, which only its owner may read. A server lets in the trainers whose public keys lie in a folder; a
trainer knows the public key of its servers beforehand. Keys are 40 characters of Z85.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from webdataset.core.errors import AlreadyExists, ConfigError, UsageError
from webdataset.core.optional_imports import require

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class KeyPair(NamedTuple):
    """A key pair, as Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret."""
        return f"KeyPair({self.public!r}, ***)"


def make_key_files(folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    """Make a key pair.

    Args:
        folder: is made where it is not there.
        name: of the files, without ending.

    Returns:
        The public and the secret file.

    Raises:
        AlreadyExists: one of the files is there.
        UsageError: no name of a file.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot name a key: letters, digits, '.', '-' and '_'")
    zmq = require("zmq", extra="serve", purpose="making keys")
    public, secret = zmq.curve_keypair()
    where = Path(folder)
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = where / f"{name}.public", where / f"{name}.secret"
    for path in files:
        if path.exists():
            raise AlreadyExists(f"{path} is there already: choose another name", url=str(path))
    _write_new(files[1], public + b"\n" + secret + b"\n", 0o600)
    _write_new(files[0], public + b"\n", 0o644)
    return files


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} is there already: choose another name", url=str(path)) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def load_key_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Read a secret file.

    Raises:
        ConfigError: no such file, no keys in it, or others may read it.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123  one open for content and mode
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read(1024).split()
    except OSError as error:
        raise ConfigError(f"the key {os.fspath(path)} cannot be read: {error.strerror}") from error
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"others may read the secret key {os.fspath(path)}: chmod 600 it")
    if len(lines) != 2 or not all(map(_KEY.fullmatch, lines)):
        raise ConfigError(f"{os.fspath(path)} holds no key pair: name the .secret file of 'wds serve keygen'")
    return KeyPair(*lines)


def load_public_key(key: str | os.PathLike[str]) -> bytes:
    """Return a public key.

    Args:
        key: 40 characters, or a file that holds them.

    Raises:
        ConfigError: neither.
    """
    text = os.fspath(key).encode()
    if _KEY.fullmatch(text):
        return text
    try:
        content = Path(key).read_bytes()[:1024].split()
    except OSError as error:
        raise ConfigError(f"the public key {os.fspath(key)!r} cannot be read: {error.strerror}") from error
    if len(content) != 1 or not _KEY.fullmatch(content[0]):
        raise ConfigError(f"{os.fspath(key)} holds no public key: name the .public file of 'wds serve keygen'")
    return content[0]


class AllowedKeys:
    """The public keys in a folder, read again when files come or go.

    Args:
        folder: with ``*.public`` files.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise ConfigError(f"{self._folder} is no folder: put the .public files of trainers that may connect there")
        self._seen: list[tuple[str, int, int]] | None = None
        self._keys: frozenset[bytes] = frozenset()

    def keys(self) -> frozenset[bytes]:
        """Return the keys that are allowed now."""
        found = sorted(self._folder.glob("*.public"))
        seen = [(path.name, stat.st_mtime_ns, stat.st_size) for path in found for stat in [path.stat()]]
        if seen != self._seen:
            self._keys = frozenset(map(load_public_key, found))
            self._seen = seen
        return self._keys

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002  ZAP's signature
        """Tell whether a trainer may connect; ZAP gives its key as Z85 already."""
        try:
            return key in self.keys()
        except (OSError, ConfigError):
            # where the folder cannot be read, no client is let in
            return False


def start_authentication(allowed: AllowedKeys) -> "ThreadAuthenticator":
    """Let the process's ZeroMQ context ask who may connect; return what ``stop()`` ends."""
    require("zmq", extra="serve", purpose="a data server")
    from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415  of the extra

    authenticator = ThreadAuthenticator()
    authenticator.start()
    authenticator.configure_curve_callback("*", allowed)
    return authenticator
