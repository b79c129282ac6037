"""TLS contexts, and handshakes that a fork waits for.

There is one ``ssl.SSLContext`` for each set of trusted certificates; urllib3 is given it, and forked children inherit
it. A thread that is within OpenSSL at a fork may hold one of the locks of OpenSSL: they would stay locked in the
child forever, and its first context or connection would never come about. So contexts are made, and the steps of
handshakes are done, under a lock that forks wait for. Waiting for the other side is done without it.
"""

import selectors
import ssl
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from webdataset.core import settings
from webdataset.core.fork_safety import fork_lock

if TYPE_CHECKING:
    import os
    import socket

    from typing_extensions import Buffer

    FilePath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_contexts: dict[object, "TlsContext"] = {}


class TlsContext(ssl.SSLContext):
    """A context whose handshakes are done under the lock, and which reads each file of certificates once."""

    _loaded: set[tuple[object, ...]]

    def load_verify_locations(
        self, cafile: "FilePath | None" = None, capath: "FilePath | None" = None, cadata: "str | Buffer | None" = None
    ) -> None:
        """Trust what files name; botocore asks for the same one with each connection."""
        known = self.__dict__.setdefault("_loaded", set())
        with fork_lock:
            if (cafile, capath, cadata) not in known:
                super().load_verify_locations(cafile, capath, cadata)
                known.add((cafile, capath, cadata))

    def wrap_socket(self, sock: "socket.socket", **options: Any) -> ssl.SSLSocket:  # type: ignore[override]  # noqa: ANN401  as ssl has them
        """Speak TLS over a connected socket."""
        shakes = options.pop("do_handshake_on_connect", True)
        with fork_lock:
            line = super().wrap_socket(sock, do_handshake_on_connect=False, **options)
        if shakes:
            try:
                _do_handshake(line)
            except BaseException:  # an interrupt, too, must not leave it open
                line.close()
                raise
        return line


def _do_handshake(line: ssl.SSLSocket) -> None:
    """Do the handshake; wait for the other side without the lock."""
    timeout = line.gettimeout()
    deadline = None if timeout is None else time.monotonic() + timeout
    line.settimeout(0)
    try:
        while wanted := _step_handshake(line):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with selectors.DefaultSelector() as ready:
                ready.register(line, wanted)
                if not ready.select(left):
                    raise TimeoutError("the handshake timed out")
    finally:
        line.settimeout(timeout)


def _step_handshake(line: ssl.SSLSocket) -> int:
    """Continue with the handshake; return what it waits for then, 0 for nothing: it is done."""
    try:
        with fork_lock:
            line.do_handshake()
    except ssl.SSLWantReadError:
        return selectors.EVENT_READ
    except ssl.SSLWantWriteError:
        return selectors.EVENT_WRITE
    return 0


def context_for(tls: Mapping[str, str], urllib3: ModuleType) -> TlsContext:
    """Return this process's context.

    Args:
        tls: ``ca_certs``, ``ca_cert_dir``, ``cert_file``, ``key_file``, ``cert_reqs``; empty for the usual trust.
        urllib3: the package, whose defaults hold.

    Raises:
        OSError: a file that is not there, or holds no certificates.
    """
    with fork_lock:
        key = (*sorted(tls.items()), settings.SSL_CERT_FILE.get())
        if key not in _contexts:
            _contexts[key] = _make_context(tls, urllib3)
        return _contexts[key]


def plain_context(urllib3: ModuleType) -> TlsContext:
    """Return a new context without trusted certificates, with the defaults of ``urllib3``."""
    with fork_lock:
        usual, made = urllib3.util.ssl_.create_urllib3_context(), TlsContext(ssl.PROTOCOL_TLS_CLIENT)
        made.options, made.verify_flags = usual.options, usual.verify_flags
        made.minimum_version, made.maximum_version = usual.minimum_version, usual.maximum_version
        made.hostname_checks_common_name = False
        if usual.keylog_filename:
            made.keylog_filename = usual.keylog_filename
    return made


def _make_context(tls: Mapping[str, str], urllib3: ModuleType) -> TlsContext:
    made = plain_context(urllib3)
    if tls.get("cert_reqs") == "CERT_NONE":
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif "ca_certs" in tls or "ca_cert_dir" in tls:
        made.load_verify_locations(tls.get("ca_certs"), tls.get("ca_cert_dir"))
    else:
        made.load_default_certs()
    if "cert_file" in tls:
        made.load_cert_chain(tls["cert_file"], tls.get("key_file"))
    return made
