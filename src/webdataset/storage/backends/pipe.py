"""Streams from and to commands: ``pipe:`` urls, and schemes that a command-line program serves.

A reader never sees the end of the output before the exit status is known: at the end the stream *waits* for the child
(asking whether it has ended already is a race, and loses data silently when the race is lost). Every child is reaped;
closing early is silent and ends the child.

Ending a child ends everything that it started: a shell that dies alone leaves its pipeline running. The child keeps
our process group and terminal, so that ``ssh`` may ask for a password and Ctrl-C reaches it.

``curl``, and with ``WDS_GOPEN_BACKEND=cli`` also ``gsutil`` and ``ais``, serve urls of their schemes. Programs are
started by a list of words, never through a shell, and curl gets a url over a descriptor, so that credentials in it do
not stand in the process list.
"""

import contextlib
import functools
import io
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from webdataset.core import process_limits
from webdataset.core.errors import CommandFailed, NotFound, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage.open_url import refuse_if_strict

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

END_SECONDS = 1.0
_PIPE_BYTES = 1 << 20
# statuses of the shell itself
_EXPLAINED = {
    126: ": the shell may not run the program",
    127: ": the shell did not find the program; install it, or add its folder to PATH",
}
_SET_PIPE_SIZE = 1031
_SIGNALS = (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))
_STOP = getattr(signal, "SIGSTOP", 0)
_CONTINUE = getattr(signal, "SIGCONT", 0)

ChildProcess = subprocess.Popen[bytes]
Command = str | Sequence[str]
"""One line for the shell, or a list of words."""


@functools.cache
def _find_bash() -> str | None:
    return shutil.which("bash")


def start_child(command: Command, *, writing: bool, shell: bool = False, **options: object) -> ChildProcess:
    """Start a child process with one pipe to or from it.

    Args:
        command: one line for the shell, or a list of words.
        writing: we write to its stdin; else we read its stdout.
        shell: run ``command`` by the shell: bash, where it exists, with ``pipefail``, so that the status of
            ``curl … | gunzip`` tells that curl failed.
        **options: passed to ``subprocess.Popen``.

    Raises:
        NotFound: the program does not exist.
        SourceError: the child cannot be started.
    """
    if shell and isinstance(command, str) and "executable" not in options and (bash := _find_bash()) is not None:
        command, shell = [bash, "-o", "pipefail", "-c", command], False
    options["stdin" if writing else "stdout"] = subprocess.PIPE
    start: Callable[..., ChildProcess] = subprocess.Popen
    try:
        child = process_limits.open_with_raised_limit(lambda: start(command, shell=shell, **options))
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else SourceError
        hint = process_limits.suggest_for_command(error)
        failed = kind(f"cannot start the command {redact_command(command)}: {error.strerror or error}{hint}")
        failed.errno, failed.strerror = error.errno, error.strerror
        raise failed from error
    if child.stdout is not None:
        _widen_pipe(child.stdout)
    return child


def _widen_pipe(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError, ImportError, ValueError):
        import fcntl  # noqa: PLC0415  absent on Windows

        fcntl.fcntl(stream.fileno(), _SET_PIPE_SIZE, _PIPE_BYTES)


def waiting_bytes(number: int) -> int:
    """Return how many bytes can be read from a pipe at once, as far as the system tells."""
    try:
        import fcntl  # noqa: PLC0415  absent on Windows
        import termios  # noqa: PLC0415  likewise

        return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)
    except (OSError, ImportError):
        return _PIPE_BYTES


def has_no_writer(number: int) -> bool:
    """Tell whether a pipe has no writer any more."""
    poll = getattr(select, "poll", None)
    if poll is None:
        return False
    watch = poll()
    watch.register(number, 0)
    return bool(watch.poll(0))


def shell_status(code: int | None) -> int | None:
    """Return an exit status as a shell would report it: death by signal n is 128 + n."""
    return 128 - code if code is not None and code < 0 else code


def end_child(child: ChildProcess) -> int:
    """End a child with all that it started, and reap it.

    Theory. The family is frozen from the top while it is listed, so that none of it starts another process, reaps one
    (its number could be given away), or takes the death of a neighbour for the end of its input and completes half an
    upload. The signal reaches all of them before any wakes; the parents wake first, so that no shell is left to report
    the deaths of its children.

    Args:
        child: the process; it may have ended already.

    Returns:
        Its exit status.
    """
    for number in _SIGNALS:
        if child.poll() is None:
            family = _freeze_family(child.pid)
            _signal_family(reversed(family), number)
            _signal_family(family, _CONTINUE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
    return child.wait()


def _freeze_family(pid: int) -> list[int]:
    """Stop a process and its descendants; return them, parents first (without descendants where there is no /proc)."""
    family = [pid]
    for member in family:
        _signal_family((member,), _STOP)
        with contextlib.suppress(OSError):
            for listing in Path(f"/proc/{member}/task").glob("*/children"):
                family.extend(map(int, listing.read_text().split()))
    return family


def _signal_family(family: Iterable[int], number: int) -> None:
    for pid in family if number else ():
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def redact_command(command: object) -> str:
    """Return a command as it may be shown: secrets removed, cut to 300 characters."""
    words = command if isinstance(command, Sequence) and command else [repr(command)]
    text = command if isinstance(command, str) else " ".join(map(str, words))
    text = redact(text)
    return repr(text if len(text) <= 300 else f"{text[:297]}...")


TIMEOUT_SECONDS = 7200.0
BROKEN_PIPE_STATUS = 141
_PAUSE_SECONDS = 0.0005
_PAUSES = 2
_CHUNK_BYTES = 384 * 1024

log = logging.getLogger("webdataset")


class Pipe(io.BufferedIOBase):
    """The stdout or stdin of a child process, as a file object that checks the exit status.

    Args:
        *args: the command, as for ``subprocess.Popen``: one line with ``shell=True``, else a list of words.
        mode: ``r`` or ``rb`` reads from the command, ``w`` or ``wb`` writes to it.
        timeout: seconds to wait for the child to end once its output has ended or its input is closed.
        ignore_errors: accept any exit status.
        ignore_status: exit statuses accepted besides 0; death by signal n counts as 128 + n.
        **kw: further arguments of ``subprocess.Popen``.

    Raises:
        UsageError: another mode.
        NotFound: no such program.
    """

    length: int | None = None

    def __init__(
        self,
        *args: Command,
        mode: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        ignore_errors: bool = False,
        ignore_status: Iterable[int] = (),
        **kw: object,
    ) -> None:
        super().__init__()
        self.ignore_errors = ignore_errors
        self.ignore_status = [0, *ignore_status]
        self.timeout = timeout
        self.args = (args, kw)
        self.status: int | None = None
        self.handler: Callable[..., Any] | None = None
        self._owner = os.getpid()
        self._ended = False
        if not args or mode not in ("r", "rb", "w", "wb"):
            raise UsageError(f"Pipe needs a command and a mode of r, rb, w or wb, not {mode!r}")
        self._writing = mode.startswith("w")
        self.name = redact_command(args[0])
        start: Callable[..., ChildProcess] = start_child
        self.proc = start(*args, writing=self._writing, **kw)
        self.stream: Any = self.proc.stdin if self._writing else self.proc.stdout

    def __repr__(self) -> str:
        return f"<Pipe {self.name} {'to' if self._writing else 'from'} process {self.proc.pid}>"

    def readable(self) -> bool:
        """Tell whether this reads from the command."""
        return not self._writing

    def writable(self) -> bool:
        """Tell whether this writes to the command."""
        return self._writing

    def fileno(self) -> int:
        """Return the descriptor of our end of the pipe."""
        number: int = self.stream.fileno()
        return number

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes (fewer only at the end), or all the rest.

        Raises:
            CommandFailed: at the end of the output, where the command ended with a status that is not accepted.
        """
        content: bytes = self.stream.read(size)
        if size is None or size < 0 or (size and not content):
            self.wait_for_child()
        return content

    def read_some(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, as many as come without a pause, one at least; at the end as :meth:`read`.

        A command that writes fast fills whole chunks; what one that writes slowly has written comes at once.
        """
        return self.read(size if size > _CHUNK_BYTES else min(size, self._coming(size)))

    def _coming(self, size: int) -> int:
        """Wait until ``size`` bytes are there, or no more come for a moment; return how many can be had at once.

        More than one chunk is one large payload, of no use before it is whole; a pipe holds less than that.
        """
        peek = getattr(self.stream, "peek", None)
        if peek is None:
            return size
        there, quiet = len(peek(1)), 0  # waits for the first byte, or the end
        buffered, number = there, self.stream.fileno()
        while 0 < there < size and quiet < _PAUSES:
            before, there = there, buffered + waiting_bytes(number)
            if there >= size or has_no_writer(number):
                return size
            quiet = quiet + 1 if there == before else 0
            time.sleep(_PAUSE_SECONDS)
        return there or size

    def interrupt(self) -> None:
        """Let a read that waits in another thread come to an end, by ending the command."""
        if self._owner == os.getpid():
            end_child(self.proc)

    def read1(self, size: int = -1, /) -> bytes:
        """Return what one system call gives; at the end as :meth:`read`."""
        content: bytes = self.stream.read1(size)
        if not content and size != 0:
            self.wait_for_child()
        return content

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill ``buffer``, fewer bytes only at the end; at the end as :meth:`read`."""
        count: int = self.stream.readinto(buffer)
        if not count and memoryview(buffer).nbytes:
            self.wait_for_child()
        return count

    def readinto1(self, buffer: "WriteableBuffer", /) -> int:
        """Fill ``buffer`` by one system call; at the end as :meth:`read`."""
        count: int = self.stream.readinto1(buffer)
        if not count and memoryview(buffer).nbytes:
            self.wait_for_child()
        return count

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return one line with its newline; at the end as :meth:`read`. Iteration gives the lines."""
        line: bytes = self.stream.readline(-1 if size is None else size)
        if not line and size != 0:
            self.wait_for_child()
        return line

    readLine = readline  # noqa: N815  upstream's spelling

    def write(self, content: "ReadableBuffer", /) -> int:
        """Send bytes to the command.

        Raises:
            CommandFailed: the command has ended already with a status that is not accepted.
            BrokenPipeError: the command reads no more.
        """
        try:
            count: int = self.stream.write(content)
        except BrokenPipeError:
            self.wait_for_child()
            raise
        return count

    def flush(self) -> None:
        """Hand over what is buffered."""
        if self._writing and not self.stream.closed:
            self.stream.flush()

    def check_status(self) -> None:
        """Check the exit status if the child has ended; never waits.

        Raises:
            CommandFailed: it ended with a status that is not accepted.
        """
        if self.proc.poll() is not None:
            self.wait_for_child()

    def wait_for_child(self) -> None:
        """Wait for the child to end, then check its exit status.

        Raises:
            CommandFailed: the status is not accepted, or the child runs on for longer than ``timeout`` seconds.
        """
        if self._ended and self.status in self.ignore_status:
            return
        try:
            self.status = shell_status(self.proc.wait(self.timeout))
        except subprocess.TimeoutExpired as error:
            self._end_quietly()
            raise CommandFailed(
                f"the command {self.name} closed its pipe but did not end within {self.timeout:g} s"
            ) from error
        self._ended = True
        if self.status not in self.ignore_status and not self.ignore_errors:
            explained = _EXPLAINED.get(self.status or 0, "")
            raise CommandFailed(f"the command {self.name} ended with exit status {self.status}{explained}")

    def close(self) -> None:
        """Close our end of the pipe and reap the child.

        Reading: silent, and a child that is still running is ended. Writing: waits until the command has taken
        everything and ended.

        Raises:
            CommandFailed: writing, and the exit status is not accepted.
        """
        if self.closed:
            return
        if not self._writing or self._owner != os.getpid():
            self._end_quietly()
            return
        try:
            with contextlib.suppress(BrokenPipeError):
                self.stream.close()
            self.wait_for_child()
        finally:
            super().close()

    def abort(self) -> None:
        """End the command without letting it see the end of its input, so that it does not complete half an upload."""
        self._end_quietly()

    def _end_quietly(self) -> None:
        if self._owner == os.getpid():
            if not self._writing:
                self.stream.close()
            self.status = shell_status(end_child(self.proc))
        self._drop_stream()
        super().close()

    def _drop_stream(self) -> None:
        """Close our end without sending what is still buffered."""
        with contextlib.suppress(OSError, ValueError):
            if self._writing and not self.stream.closed:
                raw = getattr(self.stream, "raw", self.stream)
                raw.close()
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._writing and failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Close a forgotten pipe; a copy of this object in a forked process leaves the child alone."""
        if "stream" not in self.__dict__ or self.closed:
            return
        if self._writing and self._owner == os.getpid():
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  a finaliser must not raise
            log.warning("closing a forgotten pipe: %s", error)


def gopen_pipe(url: str, mode: str = "rb", bufsize: int = 8192, **options: object) -> Pipe:
    """Open a ``pipe:`` url: everything after the colon is one line for the shell.

    Args:
        url: the url.
        mode: ``rb`` reads the command's stdout, ``wb`` writes to its stdin.
        bufsize: bytes buffered on our side.
        **options: further arguments of :class:`Pipe`.

    Returns:
        The pipe. Statuses 0 and 141 (the reader closed early) are accepted.

    Raises:
        UsageError: another mode, or trust is strict.
        CommandFailed: later, from ``read`` or ``close``.
    """
    refuse_if_strict("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs", url=url)
    options.setdefault("ignore_status", (BROKEN_PIPE_STATUS,))
    start: Callable[..., Pipe] = Pipe
    return start(url.removeprefix("pipe:"), mode=mode, shell=True, bufsize=bufsize, **options)  # noqa: S604


def set_options(
    obj: object,
    timeout: float | None = None,
    ignore_errors: bool | None = None,  # noqa: FBT001  upstream's signature
    ignore_status: list[int] | None = None,
    handler: Callable[..., Any] | None = None,
) -> bool:
    """Change the options of an open pipe.

    Args:
        obj: a stream; anything but a :class:`Pipe` is left alone.
        timeout: as in :class:`Pipe`; None leaves the present setting, as for the others.
        ignore_errors: as in :class:`Pipe`.
        ignore_status: as in :class:`Pipe`.
        handler: kept on the pipe for the caller; not called here.

    Returns:
        Whether ``obj`` is a :class:`Pipe`.
    """
    if not isinstance(obj, Pipe):
        return False
    chosen = {"timeout": timeout, "ignore_errors": ignore_errors, "ignore_status": ignore_status, "handler": handler}
    vars(obj).update({name: setting for name, setting in chosen.items() if setting is not None})
    return True


CommandWords = tuple[tuple[str, ...], tuple[str, ...]]
"""How to read, and how to write."""

_READ_STATUS = (BROKEN_PIPE_STATUS,)
_CURL = (
    "curl", "--connect-timeout", "30", "--retry", "5", "--retry-delay", "1", "--speed-limit", "1", "--speed-time", "60",
    "--proto", "=http,https,ftp,ftps,sftp,scp", "--proto-redir", "=http,https,ftp,ftps",
    "--fail", "--silent", "--show-error", "--location", "--globoff",
)  # fmt: skip
_AIS = (("ais", "get", "{url}", "-"), ("ais", "put", "-", "{url}"))
_COMMANDS: dict[str, CommandWords] = {"gs": (("gsutil", "cat", "{url}"), ("gsutil", "cp", "-", "{url}")), "ais": _AIS}


def gopen_curl(url: str, mode: str = "rb", bufsize: int = 8192, **options: object) -> Pipe:
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
        return _start_pipe(words, url, mode, bufsize, {"pass_fds": (receiving,), **options})
    finally:
        os.close(receiving)


def gopen_command(url: str, mode: str = "rb", bufsize: int = 8192, **options: object) -> Pipe:
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
    return _run_program(_COMMANDS[url.partition(":")[0].lower()], url, mode, bufsize, options)


def gopen_ais_program(url: str, mode: str = "rb", bufsize: int = 8192, **options: object) -> Pipe:
    """Read or write a url by the program ``ais``, whatever its scheme; arguments as for :func:`gopen_command`.

    Raises:
        NotFound: the program is not installed.
        CommandFailed: later, from ``read`` or ``close``.
    """
    return _run_program(_AIS, url, mode, bufsize, options)


def _run_program(words: CommandWords, url: str, mode: str, bufsize: int, options: dict[str, object]) -> Pipe:
    chosen = words[mode.startswith("w")]
    return _start_pipe([word.format(url=url) for word in chosen], url, mode, bufsize, options)


def _start_pipe(words: list[str], url: str, mode: str, bufsize: int, options: dict[str, object]) -> Pipe:
    options.setdefault("ignore_status", _READ_STATUS)
    start: Callable[..., Pipe] = Pipe
    try:
        pipe = start(words, mode=mode, bufsize=bufsize, **options)
    except NotFound as error:
        other = "; or set AIS_ENDPOINT to the url of a gateway" if words[0] == "ais" else ""
        raise NotFound(f"this scheme needs the program {words[0]!r}, which is not installed{other}", url=url) from error
    pipe.name = url
    return pipe
