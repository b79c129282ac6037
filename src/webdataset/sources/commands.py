"""Schemes that are served by a command-line program: ``curl``; ``gsutil`` and ``ais`` with ``WDS_GOPEN_BACKEND=cli``.

Flows in: a url. Flows out: a :class:`Pipe` to or from the program. Programs are started by a list of words, never
through a shell, and a url with credentials is handed to curl over a descriptor, so that it does not stand in the
process list.
"""

import os
from typing import Any

from webdataset.ground.errors import NotFound, UsageError

from .pipe import BROKEN_PIPE_STATUS, Pipe

Words = tuple[tuple[str, ...], tuple[str, ...]]
"""How to read, and how to write."""

_READ_STATUS = (BROKEN_PIPE_STATUS,)
_CURL = (
    "curl", "--connect-timeout", "30", "--retry", "5", "--retry-delay", "1", "--speed-limit", "1", "--speed-time", "60",
    "--proto", "=http,https,ftp,ftps,sftp,scp", "--proto-redir", "=http,https,ftp,ftps",
    "--fail", "--silent", "--show-error", "--location", "--globoff",
)  # fmt: skip
_AIS = (("ais", "get", "{url}", "-"), ("ais", "put", "-", "{url}"))
_COMMANDS: dict[str, Words] = {
    "gs": (("gsutil", "cat", "{url}"), ("gsutil", "cp", "-", "{url}")),
    "ais": _AIS,
}


def gopen_curl(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Pipe:
    """Read or upload (PUT) a url by ``curl``.

    Args:
        url: a url of a scheme that curl knows.
        mode: ``rb`` or ``wb``.
        bufsize: bytes buffered on our side.
        **options: further arguments of :class:`Pipe`.

    Raises:
        NotFound: curl is not installed.
        UsageError: a url with a line break in it.
        CommandFailed: later, from ``read`` or ``close``.
    """
    if any(character in url for character in "\r\n\0"):
        raise UsageError("a url must not contain line breaks", url=url)
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    receiving, sending = os.pipe()
    try:
        with open(sending, "wb") as configuration:  # noqa: PTH123  a descriptor, not a path
            configuration.write(f'url = "{quoted}"\n'.encode())
        upload = ("-X", "PUT", "-T", "-") if mode.startswith("w") else ()
        words = [*_CURL, *upload, "--config", f"/dev/fd/{receiving}"]
        return _piped(words, url, mode, bufsize, {"pass_fds": (receiving,), **options})
    finally:
        os.close(receiving)


def gopen_command(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Pipe:
    """Read or write a ``gs:`` or ``ais:`` url by the provider's program.

    Args:
        url: the url.
        mode: ``rb`` or ``wb``.
        bufsize: bytes buffered on our side.
        **options: further arguments of :class:`Pipe`.

    Raises:
        NotFound: the program is not installed.
        CommandFailed: later, from ``read`` or ``close``.
    """
    return _run(_COMMANDS[url.partition(":")[0].lower()], url, mode, bufsize, options)


def gopen_ais_program(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Pipe:
    """Read or write a url by the program ``ais``, whatever its scheme; arguments as for :func:`gopen_command`.

    Raises:
        NotFound: the program is not installed.
        CommandFailed: later, from ``read`` or ``close``.
    """
    return _run(_AIS, url, mode, bufsize, options)


def _run(words: Words, url: str, mode: str, bufsize: int, options: dict[str, Any]) -> Pipe:
    chosen = words[mode.startswith("w")]
    return _piped([word.format(url=url) for word in chosen], url, mode, bufsize, options)


def _piped(words: list[str], url: str, mode: str, bufsize: int, options: dict[str, Any]) -> Pipe:
    options.setdefault("ignore_status", _READ_STATUS)
    try:
        pipe = Pipe(words, mode=mode, bufsize=bufsize, **options)
    except NotFound as error:
        other = "; or set AIS_ENDPOINT to the url of a gateway" if words[0] == "ais" else ""
        raise NotFound(f"this scheme needs the program {words[0]!r}, which is not installed{other}", url=url) from error
    pipe.name = url
    return pipe
