"""Thumbnails, waveforms, arrays and headers of media over HTTP.

Payloads are read here, within limits, and decoded by ``previews`` in its own process. Thumbnails are kept in a bounded
cache, so that paging back is instant; refusals are kept, too.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from webdataset.codecs.json_codec import json_loads
from webdataset.core.errors import DecodingError, describe_error
from webdataset.index.entries import FieldEntry
from webdataset.inspection.media_header import MediaHeader, read_media_header
from webdataset.viewer.array_headers import list_arrays
from webdataset.viewer.documents import read_inline_image
from webdataset.viewer.field_views import CARD_BYTES, DOCUMENT_BYTES, describe_field
from webdataset.viewer.http_messages import JsonResponse, read_number
from webdataset.viewer.plain_values import JsonObject
from webdataset.viewer.previews import MOST_PAYLOAD_BYTES, PreviewRefused, Previews, PreviewsBusy, Thumbnail
from webdataset.viewer.sample_routes import find_field
from webdataset.viewer.session import Session
from webdataset.viewer.shard_pages import ShardView
from webdataset.viewer.sound_pieces import read_pieces

_CACHE_BYTES: Final = 64 << 20
# what an entry takes beside its bytes
_ENTRY_BYTES: Final = 512
# of larger videos only the beginning is read
_WHOLE_VIDEO_BYTES: Final = 8 << 20
_VIDEO_HEAD_BYTES: Final = 4 << 20
_CACHED: Final = {"Cache-Control": "private, max-age=3600"}


class ThumbnailCache:
    """The thumbnails that were asked for last, and why others were refused.

    Args:
        most_bytes: what they may take.
    """

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Thumbnail | str] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: Hashable) -> Thumbnail | str | None:
        """Return a thumbnail, or why there is none; None where that is not known."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: Hashable, found: Thumbnail | str) -> None:
        """Keep a thumbnail, or why there is none.

        Args:
            key: what it is of.
            found: the thumbnail, or a message.
        """
        with self._lock:
            old = self._kept.pop(key, None)
            self.size_bytes += len(found) + _ENTRY_BYTES - (0 if old is None else len(old) + _ENTRY_BYTES)
            self._kept[key] = found
            while self.size_bytes > self._most and self._kept:
                _, dropped = self._kept.popitem(last=False)
                self.size_bytes -= len(dropped) + _ENTRY_BYTES


def make_routes(session: Session, previews: Previews | None = None) -> list[Route]:
    """Return the routes of previews; their process ends with the session.

    Args:
        session: what is shown.
        previews: makes them; None makes one.
    """
    previews = previews or Previews()
    session.close_with.append(previews.close)
    routes = _MediaRoutes(session, previews)
    return [
        Route("/api/thumbnail", routes.thumbnail),
        Route("/api/waveform", routes.waveform),
        Route("/api/array", routes.array),
        Route("/api/media", routes.media),
    ]


class _MediaRoutes:
    """What answers; each method runs in a thread."""

    def __init__(self, session: Session, previews: Previews) -> None:
        self._session = session
        self._previews = previews
        self._cache = ThumbnailCache()

    def thumbnail(self, request: Request) -> Response:
        """Send a picture of a field: ``size``; ``page`` of a TIFF file; ``inline``, an image in a document's JSON."""
        shard, entry, field = find_field(self._session, request)
        size = read_number(request, "size", 256, least=1, most=1024)
        page = _read_optional(request, "page")
        inline = _read_optional(request, "inline")
        side = request.query_params.get("side", "a")
        key = (side, shard.number, entry.offset, field.offset, field.name, size, page, inline)
        found = self._cache.get(key)
        if found is None:
            found = self._make_thumbnail(shard, field, size, page, inline)
            self._cache.put(key, found)
        if isinstance(found, str):
            raise PreviewRefused(found, field=field.name)
        headers = dict(_CACHED)
        if found.note is not None:
            headers["X-Preview-Note"] = quote(found.note, safe=" ;:,.()[]/")
        return Response(bytes(found), 200, headers, found.media_type)

    def _make_thumbnail(
        self, shard: ShardView, field: FieldEntry, size: int, page: int | None, inline: int | None
    ) -> Thumbnail | str:
        """Return a thumbnail, or why there is none; what may be otherwise later is raised."""
        try:
            if inline is not None:
                name, payload = _read_inline(shard, field, inline)
                return self._previews.thumbnail(name, payload, size)
            payload, partial = _read_picture(shard, field)
            return self._previews.thumbnail(field.name, payload, size, page=page, partial=partial)
        except PreviewsBusy:
            raise
        except PreviewRefused as error:
            return error.message

    def waveform(self, request: Request) -> Response:
        """Send the outline of a sound."""
        shard, _, field = find_field(self._session, request)
        columns = read_number(request, "columns", 600, least=1, most=1000)
        if field.size > MOST_PAYLOAD_BYTES:
            return JsonResponse(self._outline_long_sound(shard, field))
        return JsonResponse(self._previews.waveform(field.name, shard.read_field(field), columns))

    def _outline_long_sound(self, shard: ShardView, field: FieldEntry) -> JsonObject:
        """Return the outline of a sound that is too large to be read whole; its pieces are read before the turn."""
        media = _read_header(shard, field)
        sound = read_pieces(field.size, lambda start, stop: shard.read_field(field, start, stop))
        if sound is None:
            seconds = media.get("duration_seconds")
            lasts = f"it lasts {_format_duration(seconds)}; " if seconds else ""
            raise PreviewRefused(f"{lasts}{_say_too_large(field)}", field=field.name)
        return self._previews.outline(field.name, sound, media)

    def array(self, request: Request) -> Response:
        """Send shape, dtype and statistics of each array of a field; of a large field, what its headers say."""
        shard, _, field = find_field(self._session, request)
        if field.size <= MOST_PAYLOAD_BYTES:
            return JsonResponse(self._previews.array(field.name, shard.read_field(field)))
        arrays, problem = list_arrays(
            field.name.rpartition(".")[2].lower(), field.size, lambda start, stop: shard.read_field(field, start, stop)
        )
        if not arrays:
            raise PreviewRefused(problem or _say_too_large(field), field=field.name)
        return JsonResponse(
            {"arrays": [{**array, "thumbnail": False} for array in arrays], "note": _say_too_large(field)}
        )

    def media(self, request: Request) -> Response:
        """Send what the headers of a video or sound say."""
        shard, _, field = find_field(self._session, request)
        if field.size > _WHOLE_VIDEO_BYTES:
            media = _read_header(shard, field)
            if media:
                return JsonResponse(media)
        if field.size > MOST_PAYLOAD_BYTES:
            raise PreviewRefused(_say_too_large(field), field=field.name)
        return JsonResponse(self._previews.media(field.name, shard.read_field(field)))


def _read_optional(request: Request, name: str) -> int | None:
    return read_number(request, name, most=1 << 20) if name in request.query_params else None


def _say_too_large(field: FieldEntry) -> str:
    return f"the field has {field.size} bytes, and previews are made of up to {MOST_PAYLOAD_BYTES} bytes"


def _format_duration(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def _read_header(shard: ShardView, field: FieldEntry) -> MediaHeader:
    def read(start: int, stop: int) -> bytes:
        return shard.read_field(field, start, stop)

    return read_media_header(read(0, CARD_BYTES), field.size, read)


def _read_picture(shard: ShardView, field: FieldEntry) -> tuple[bytes, bool]:
    """Return what a thumbnail is made of, and whether that is only the beginning of the field."""

    def read(start: int, stop: int) -> bytes:
        return shard.read_field(field, start, stop)

    if field.size > _WHOLE_VIDEO_BYTES and describe_field(field.name, field.size, read)["kind"] == "video":
        return read(0, _VIDEO_HEAD_BYTES), True
    if field.size > MOST_PAYLOAD_BYTES:
        raise PreviewRefused(_say_too_large(field), field=field.name)
    return read(0, field.size), False


def _read_inline(shard: ShardView, field: FieldEntry, number: int) -> tuple[str, bytes]:
    """Return name and bytes of an image that the JSON of a document holds."""
    if field.size > DOCUMENT_BYTES:
        raise PreviewRefused(f"the JSON has {field.size} bytes: documents of up to {DOCUMENT_BYTES} bytes are shown")
    try:
        record = json_loads(shard.read_field(field))
    except (ValueError, RecursionError) as error:
        raise DecodingError(f"the field is no JSON: {describe_error(error)[:200]}", k=field.name) from error
    return read_inline_image(record, number)
