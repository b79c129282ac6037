"""Trims tracebacks and warnings to the lines of the user's program.

The message of an error says shard, sample and field; thirty lines of generators above it hide that. Frames of the
user's own functions stay. ``WDS_FULL_TRACEBACKS=1`` keeps all frames.
"""

import os
import sys
import warnings
from types import TracebackType

from webdataset.core import settings
from webdataset.core.errors import WebDatasetError

# Python keeps each text that a module's lines warned of; a run of weeks over damaged samples would fill memory
_MOST_WARNINGS = 10_000
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120  pathlib is loaded where it is used


class TrimmedTracebacks:
    """A context manager: typed errors that leave it show no frames from within; others are left as they are."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if isinstance(error, WebDatasetError):
            trim_traceback(error)


def trim_traceback(error: BaseException) -> None:
    """Take our frames, and those of installed packages, out of the tracebacks of an error and of its causes.

    Args:
        error: as it leaves the library: all of its frames so far are ours, or of what we called.
    """
    if settings.FULL_TRACEBACKS.get():
        return
    import sysconfig  # noqa: PLC0415  only where something fails

    paths = sysconfig.get_paths()
    hidden = (_PACKAGE_FOLDER, paths["stdlib"], paths["purelib"], paths["platlib"], "<frozen")
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _user_frames(error.__traceback__, hidden)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]


def _user_frames(frames: TracebackType | None, hidden: tuple[str, ...]) -> TracebackType | None:
    first: TracebackType | None = None
    last: TracebackType | None = None
    while frames is not None:
        following = frames.tb_next
        if not frames.tb_frame.f_code.co_filename.startswith(hidden):
            if last is None:
                first = frames
            else:
                last.tb_next = frames
            last = frames
            last.tb_next = None
        frames = following
    return first


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's program that led here, whatever of this library stands between."""
    level = 2
    frame = sys._getframe(1)  # noqa: SLF001  the public way makes a list of all frames
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back
        level += 1
    given = frame.f_globals.get("__warningregistry__")
    if given is not None and len(given) > _MOST_WARNINGS:
        # Python forgets them, too, where the warning filters change; a text may then be shown again
        given.clear()
    warnings.warn(message, category, stacklevel=level)
