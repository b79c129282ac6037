"""Asks the limited process for thumbnails, waveforms and arrays, and starts it anew when it has died.

One process decodes for a server, one request at a time; those that come meanwhile wait, so many at most. A request
that takes too long kills the process and is refused; the next request gets a new one. Nothing that a field holds can
reach the server but as a message of the form that ``preview_process`` writes.
"""

import contextlib
import os
import subprocess
import sys
import threading
from typing import BinaryIO, Final, Self, cast

from webdataset.core import settings
from webdataset.core.errors import CodecError
from webdataset.inspection.media_header import MediaHeader
from webdataset.viewer.plain_values import JsonObject
from webdataset.viewer.preview_process import read_message, write_message
from webdataset.viewer.sound_pieces import SoundPieces

MOST_PAYLOAD_BYTES: Final = 64 << 20
MOST_ANSWER_BYTES: Final = 16 << 20
_PATIENCE_SECONDS: Final = 30.0
_MOST_WAITING: Final = 128
_MOST_SIDE: Final = 1024
_MOST_COLUMNS: Final = 1000
_PROGRAM: Final = "import sys; from webdataset.viewer.preview_process import run; run(int(sys.argv[1]))"
# decoders of one thread each: threads would take address space
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2",
    "LC_ALL": "C.UTF-8",
}  # fmt: skip


class PreviewRefused(CodecError):
    """A field that is not shown; the message says why."""


class PreviewsBusy(PreviewRefused):
    """More requests wait than may; ask again.

    Attributes:
        http_status: of the answer.
    """

    http_status = 503


class Thumbnail(bytes):
    """An encoded picture.

    Attributes:
        media_type: ``image/webp`` or ``image/png``.
        note: what is odd about it (only a part decoded, values stretched), or None.
    """

    media_type: str = "image/webp"
    note: str | None = None


class Previews:
    """Previews of fields, made in a process of its own with limits.

    Args:
        patience_seconds: how long one request may take before the process is killed.
        most_waiting: how many requests may wait at a time.

    Methods block and may be called from any thread.
    """

    def __init__(self, *, patience_seconds: float = _PATIENCE_SECONDS, most_waiting: int = _MOST_WAITING) -> None:
        self._patience = patience_seconds
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(most_waiting)
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self.restarts = -1

    def thumbnail(
        self, name: str, payload: bytes, size: int, *, page: int | None = None, partial: bool = False
    ) -> Thumbnail:
        """Return a picture of a field: an image, an array that looks like one, or the first frame of a video.

        Args:
            name: the field's name; its extension helps where the bytes do not tell.
            payload: its bytes.
            size: the longer side, in pixels, 1024 at most.
            page: which page of a TIFF file.
            partial: these are only the first bytes of the field.

        Raises:
            PreviewRefused: damaged, too large, or nothing that can be seen.
        """
        options = {"size": max(16, min(size, _MOST_SIDE)), "page": page, "partial": partial}
        header, body = self._ask({"do": "thumbnail", "name": name, **options}, payload)
        found = Thumbnail(body)
        found.media_type = "image/png" if header.get("media_type") == "image/png" else "image/webp"
        note = header.get("note")
        found.note = note if isinstance(note, str) else None
        return found

    def waveform(self, name: str, payload: bytes, columns: int) -> JsonObject:
        """Return the outline of a sound.

        Args:
            name: the field's name.
            payload: its bytes.
            columns: how many peaks, 1000 at most.

        Returns:
            ``duration_seconds``, ``rate`` (Hz), ``channels``, ``peaks`` (smallest and largest value of each column,
            in [-1, 1]), ``by_channel`` for two to eight channels; ``truncated``: only the beginning is shown;
            ``sampled``: a stretch of each column is; ``shown_seconds``: of both, how much.

        Raises:
            PreviewRefused: damaged, too large, or no sound.
        """
        return self._result({"do": "waveform", "name": name, "columns": max(1, min(columns, _MOST_COLUMNS))}, payload)

    def outline(self, name: str, sound: SoundPieces, header: MediaHeader) -> JsonObject:
        """Return the outline of a long sound by pieces of it, as :meth:`waveform` does.

        Args:
            name: the field's name.
            sound: its pieces.
            header: what its headers say.

        Raises:
            PreviewRefused: damaged, or no sound.
        """
        request: JsonObject = {"do": "pieces", "name": name, "format": sound.format, "header": dict(header)}
        request |= {"head": len(sound.head), "sizes": [len(piece) for piece in sound.pieces]}
        return self._result(request, sound.head + b"".join(sound.pieces))

    def array(self, name: str, payload: bytes) -> JsonObject:
        """Return shape, dtype, statistics, histogram and first values of each array of a field.

        Args:
            name: the field's name.
            payload: its bytes.

        Raises:
            PreviewRefused: damaged, too large, pickles, or no arrays.
        """
        return self._result({"do": "array", "name": name}, payload)

    def media(self, name: str, payload: bytes) -> JsonObject:
        """Return width, height, duration, frame rate and codecs of a video or sound, by its headers.

        Args:
            name: the field's name.
            payload: its bytes.

        Raises:
            PreviewRefused: damaged, or no video or sound.
        """
        return self._result({"do": "media", "name": name}, payload)

    def close(self) -> None:
        """End the process; requests are refused from now on."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _result(self, request: JsonObject, payload: bytes) -> JsonObject:
        found = self._ask(request, payload)[0].get("result")
        if not isinstance(found, dict):
            raise PreviewRefused("the process that decodes gave no answer that can be understood")
        return found

    def _ask(self, request: JsonObject, payload: bytes) -> tuple[JsonObject, bytes]:
        if len(payload) > MOST_PAYLOAD_BYTES:
            raise PreviewRefused(f"the field has {len(payload)} bytes; previews are made of up to {MOST_PAYLOAD_BYTES}")
        if not self._places.acquire(blocking=False):
            raise PreviewsBusy("too many previews are asked for at once: ask again")
        try:
            with self._turn:
                header, body = self._exchange(request, payload)
        finally:
            self._places.release()
        refused = header.get("refused")
        if refused is not None:
            raise PreviewRefused(str(refused))
        return header, body

    def _exchange(self, request: JsonObject, payload: bytes) -> tuple[JsonObject, bytes]:
        """Send one request and wait for its answer; the process is killed where it takes too long."""
        process = self._start()
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(self._patience, give_up)
        watchdog.daemon = True
        watchdog.start()
        message = None
        try:
            write_message(cast("BinaryIO", process.stdin), request, payload)
            message = read_message(cast("BinaryIO", process.stdout), MOST_ANSWER_BYTES)
        except (OSError, ValueError):
            pass
        finally:
            watchdog.cancel()
            # the watchdog may have fired after the answer
            if message is None or late.is_set():
                self._drop()
        if message is not None:
            return message
        if self._closed.is_set():
            raise PreviewRefused("the viewer is closing")
        if late.is_set():
            raise PreviewRefused(f"it takes more than {self._patience:g} s to decode")
        raise PreviewRefused("the process that decoded it died: too much memory or time, or a fault of the decoder")

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._closed.is_set():
            raise PreviewRefused("the viewer is closing")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        self._process = subprocess.Popen(  # noqa: S603  this Python, and no word from outside
            [sys.executable, "-P", "-B", "-c", _PROGRAM, str(MOST_PAYLOAD_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.abspath(os.sep),  # noqa: PTH100  as a text
            env=_make_environment(),
        )
        self.restarts += 1
        # close() may have been called meanwhile, and found no process
        if self._closed.is_set():
            self._drop()
            raise PreviewRefused("the viewer is closing")
        return self._process

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def _make_environment() -> dict[str, str]:
    """Return the environment of the process: what Python and the decoders need, no credentials."""
    found = dict(_ENVIRONMENT)
    found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100  as texts
    for variable in (settings.MAX_FIELD_BYTES, settings.MAX_IMAGE_PIXELS, settings.MAX_MEDIA_BYTES):
        value = variable.get()
        if value is not None:
            found[variable.name] = str(value)
    for place in (settings.LD_LIBRARY_PATH, settings.SYSTEMROOT):
        if place.get():
            found[place.name] = place.get()
    return found
