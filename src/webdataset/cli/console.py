"""Standard output and standard error of ``wds``: results on one, messages and progress on the other.

Results are written as text lines, JSON lines or bytes. Progress appears only where standard error is a terminal: by
rich where it is installed and ``NO_COLOR`` and ``TERM`` allow it, else as one line of plain text. Warnings and errors
are always written. Control characters in names, and those that hide or reorder others, never reach a terminal; JSON
keeps names exactly.
"""

import codecs
import contextlib
import io
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TextIO, TypeAlias

from webdataset.cli import exit_status
from webdataset.core import settings

JsonSchema: TypeAlias = dict[str, Any]
"""What a command's ``--json`` writes, as ``wds schema`` prints it."""
_NAMED = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 92: "\\\\"}
# bytes that are not UTF-8 stand in names as lone surrogates; of these, 0x80 to 0x9f are controls for some terminals
_RAW_CONTROLS = range(0xDC80, 0xDCA0)
# blanks without a width, ends of lines, and signs that turn the direction of what follows: a name seems another one
_UNSEEN = (0x200B, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    **{code: _NAMED.get(code, f"\\{code:03o}") for code in (*range(32), 92, *range(127, 160))},
    **{code: f"\\u{code:x}" for code in _RAW_CONTROLS},
}
_ESCAPES = {**_CONTROLS, **{code: f"\\u{code:x}" for code in _UNSEEN}}
CONTROLS = {code: text for code, text in _CONTROLS.items() if code not in (9, 92)}
"""For ``str.translate``: what control characters in a text become; tabs and backslashes stay."""
_ENCODING_ERRORS = "wds-stdout"
_UNITS = ("", "k", "M", "G", "T", "P")
_TICK_SECONDS = 0.2


def escape_name(name: str) -> str:
    """Return a name without control characters, as GNU tar lists it, nor characters that hide or reorder others.

    Args:
        name: any text.
    """
    return name.translate(_ESCAPES)


def show_url(url: str) -> str:
    """Return a url for a line that people read: without its password and signature, control characters escaped.

    Args:
        url: any url or path.
    """
    from webdataset.core.redaction import redact  # noqa: PLC0415  after --help

    return escape_name(redact(url))


def prepare_streams() -> None:
    """Let names that are not UTF-8 pass to standard output as they are; print warnings as messages.

    Standard output of another encoding gets as escapes what it cannot hold.
    """
    codecs.register_error(_ENCODING_ERRORS, _encode_lone_surrogates)
    for stream, errors in ((sys.stdout, _ENCODING_ERRORS), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            is_utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors=errors if is_utf8 else "backslashreplace")
    if not sys.warnoptions:
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _show_warning


def _encode_lone_surrogates(error: UnicodeError) -> tuple[bytes, int]:
    """Return what stands for lone surrogates: the byte that a name had, or an escape of a control or of another one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    pieces = [bytes([code - 0xDC00]) if 0xDCA0 <= code <= 0xDCFF else b"\\u%x" % code for code in codes]
    return b"".join(pieces), error.end


def _show_warning(  # noqa: PLR0917  the signature of warnings.showwarning
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    if issubclass(category, UserWarning):
        say(f"warning: {message}")


def say(text: str) -> None:
    """Write a message to standard error.

    Args:
        text: one or several lines.
    """
    stop_progress()
    with contextlib.suppress(OSError, ValueError):
        print(f"wds: {text}", file=sys.stderr, flush=True)


def report_error(error: BaseException) -> None:
    """Write what is wrong, in short; the traceback too where ``WDS_FULL_TRACEBACKS`` is set.

    Args:
        error: of the library or of the system.
    """
    from webdataset.core.redaction import redact  # noqa: PLC0415  only where something fails

    if settings.FULL_TRACEBACKS.get():
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    say(redact(str(error)) or type(error).__name__)
    for note in getattr(error, "__notes__", ()):
        say(str(note))


def flush_stdout() -> None:
    """Write what is gathered for standard output.

    Raises:
        OSError: the system refuses.
    """
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def drop_stdout() -> int:
    """Give up standard output, whose reader has gone; return the exit status."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return exit_status.PIPE_CLOSED


def write_line(text: str = "") -> None:
    """Write one line of a result.

    Args:
        text: without its newline.
    """
    print(text)


def write_json(value: Any) -> None:
    """Write one JSON value on a line of its own; names that are not UTF-8 keep their bytes as lone surrogates.

    Args:
        value: anything that JSON can say.
    """
    import json  # noqa: PLC0415  after --help

    print(json.dumps(value, separators=(", ", ": ")))


def write_bytes(pieces: Iterable[bytes]) -> None:
    """Write bytes to standard output.

    Args:
        pieces: in their order.
    """
    sys.stdout.flush()
    out = sys.stdout.buffer
    for piece in pieces:
        out.write(piece)


def write_table(rows: Iterable[Iterable[str]], header: Iterable[str] = (), *, right: Iterable[int] = ()) -> None:
    """Write rows in columns.

    Args:
        rows: texts.
        header: of the columns; none by default.
        right: numbers of columns that are aligned to the right.
    """
    lines = [list(header), *map(list, rows)] if header else [*map(list, rows)]
    if not lines:
        return
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    aligned = frozenset(right)
    for line in lines:
        cells = [
            cell.rjust(width) if place in aligned else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def format_size(size_bytes: float) -> str:
    """Return a number of bytes as people read it: ``999B``, ``1.21kB``, ``35MB``.

    Args:
        size_bytes: from 0.
    """
    for unit in _UNITS[:-1]:
        if size_bytes < 1000:
            return f"{size_bytes:.3g}{unit}B"
        size_bytes /= 1000
    return f"{size_bytes:.3g}{_UNITS[-1]}B"


def has_color(stream: TextIO) -> bool:
    """Tell whether colour may be written: to a terminal, unless ``NO_COLOR`` or a dumb terminal says no.

    Args:
        stream: standard output or standard error.
    """
    return stream.isatty() and not settings.NO_COLOR.get() and settings.TERM.get() != "dumb"


class _PlainProgress:
    """One line on a terminal, written again several times a second."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._count = 0
        self._detail = ""
        self._due = time.monotonic() + _TICK_SECONDS
        self._width = 0

    def advance(self, count: int, detail: str) -> None:
        self._count += count
        self._detail = detail or self._detail
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _TICK_SECONDS
            total = f"/{self._total}" if self._total is not None else ""
            text = f"{self._label}: {self._count}{total} {self._detail}"[:78]
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def stop(self) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0


class _RichProgress:
    """A bar by rich."""

    def __init__(self, label: str, total: int | None) -> None:
        from rich.console import Console  # noqa: PLC0415  an extra, and slow to import
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        detail = TextColumn("{task.fields[detail]}", markup=False)
        self._bar = Progress(*columns, detail, console=Console(stderr=True), transient=True)
        self._detail = ""
        self._task = self._bar.add_task(label, total=total, detail="")
        self._bar.start()

    def advance(self, count: int, detail: str) -> None:
        self._detail = detail or self._detail
        self._bar.update(self._task, advance=count, detail=self._detail)

    def stop(self) -> None:
        self._bar.stop()


_current: "list[_PlainProgress | _RichProgress]" = []


def stop_progress() -> None:
    """Take the progress off the terminal, so that something else can be written."""
    while _current:
        _current.pop().stop()


class Progress:
    """A progress display, or nothing where standard error is no terminal.

    Args:
        label: what is done.
        total: how many steps there are, or None.
    """

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label, self._total = label, total
        self._shown: _PlainProgress | _RichProgress | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            self._shown = self._start()
            _current.append(self._shown)
        return self

    def _start(self) -> "_PlainProgress | _RichProgress":
        if has_color(sys.stderr):
            try:
                return _RichProgress(self._label, self._total)
            except ImportError:
                pass
        return _PlainProgress(self._label, self._total)

    def advance(self, count: int = 1, detail: str = "") -> None:
        """Take note of work done.

        Args:
            count: steps.
            detail: what is being worked on.
        """
        if self._shown is not None and self._shown in _current:
            self._shown.advance(count, show_url(detail))

    def track(self, steps: Iterable[Any]) -> Iterator[Any]:
        """Yield steps, and count each when the next one is asked for.

        Args:
            steps: anything.
        """
        for step in steps:
            yield step
            self.advance()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None and self._shown in _current:
            _current.remove(self._shown)
            self._shown.stop()


def summarize_counts(counts: Mapping[str, int]) -> str:
    """Return counts as a text: ``3 samples, 6 members``.

    Args:
        counts: plural noun to number.
    """
    return ", ".join(f"{count} {noun[:-1] if count == 1 else noun}" for noun, count in counts.items())
