"""Routes of shards and samples: what there is, pages of samples, one sample with its members, fields, raw bytes.

``sample_card`` describes a sample for every route that shows some.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from webdataset.core.errors import MissingField
from webdataset.index.entries import FieldEntry, SampleEntry
from webdataset.viewer.documents import NeighbourSample, describe_document
from webdataset.viewer.field_views import MEDIA_TYPES, describe_field, describe_full
from webdataset.viewer.http_messages import JsonResponse, make_error, read_number, read_text
from webdataset.viewer.member_headers import list_members
from webdataset.viewer.security import DATA_POLICY
from webdataset.viewer.session import DatasetView, Session
from webdataset.viewer.shard_pages import ShardView

_MOST_SHARDS: Final = 1000
_MOST_SAMPLES: Final = 200
_MOST_BYTES: Final = 4096
_MOST_CARD_FIELDS: Final = 64
"""Of a sample that many are shown on a page: each costs a read."""
_MOST_FIELDS: Final = 1000
_NEIGHBOURS: Final = 32
WALK_SECONDS: Final = 2.0
"""For which one request reads headers on the way to a sample that is far in a shard without an index."""

_PIECE: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def find_side(session: Session, request: Request) -> DatasetView:
    """Return the side that a request names.

    Args:
        session: what is shown.
        request: with ``side``, by default ``a``.

    Raises:
        NoSuchSample: there is none of this name.
    """
    return session.side(read_text(request, "side", "a"))


def find_shard(session: Session, request: Request) -> ShardView:
    """Return the shard that a request names.

    Args:
        session: what is shown.
        request: with ``shard``, by default 0.

    Raises:
        NoSuchSample: there is none of this number.
    """
    return find_side(session, request).shard(read_number(request, "shard", 0))


def find_entry(session: Session, request: Request) -> tuple[ShardView, int, SampleEntry]:
    """Return the sample that a request names: its shard, its number, and where it is.

    Args:
        session: what is shown.
        request: with ``shard`` and ``ordinal``.

    Raises:
        NoSuchSample: there is none of this number.
    """
    shard, ordinal = find_shard(session, request), read_number(request, "ordinal")
    return shard, ordinal, shard.entry(ordinal, WALK_SECONDS)


def find_field(session: Session, request: Request) -> tuple[ShardView, SampleEntry, FieldEntry]:
    """Return the field that a request names: its shard, its sample, and where it is.

    Args:
        session: what is shown.
        request: with ``shard``, ``ordinal`` and ``field``.

    Raises:
        NoSuchSample: there is no such sample.
        MissingField: it has no such field.
    """
    shard, _, entry = find_entry(session, request)
    name = read_text(request, "field")
    for field in entry.fields:
        if field.name == name:
            return shard, entry, field
    raise MissingField(f"the sample has no field {name!r}", key=entry.key, field=name)


def sample_card(session: Session, side: str, shard: ShardView, ordinal: int, entry: SampleEntry) -> dict[str, Any]:
    """Return the short description of a sample.

    Args:
        session: what is shown.
        side: of the sample.
        shard: of the sample.
        ordinal: its number.
        entry: where it is.
    """
    fields = [field_card(shard, field) for field in entry.fields[:_MOST_CARD_FIELDS]]
    return {
        "side": side,
        "shard": shard.number,
        "ordinal": ordinal,
        "key": entry.key,
        "offset": entry.offset,
        "size_bytes": sum(field.size for field in entry.fields),
        "document": any(field["kind"] == "document" for field in fields),
        "fields": fields,
        "more_fields": max(0, len(entry.fields) - _MOST_CARD_FIELDS),
        "tags": list_tags(session, entry.key),
    }


def field_card(shard: ShardView, field: FieldEntry) -> dict[str, Any]:
    """Return the short description of a field.

    Args:
        shard: of the field.
        field: where it is.
    """

    def read(start: int, stop: int) -> bytes:
        return shard.read_field(field, start, stop)

    return {**describe_field(field.name, field.size, read), "offset": field.offset}


def _describe_whole(shard: ShardView, field: FieldEntry) -> dict[str, Any]:
    """Return the long description of a field."""

    def read(start: int, stop: int) -> bytes:
        return shard.read_field(field, start, stop)

    return {**describe_full(field.name, field.size, read), "offset": field.offset}


def list_tags(session: Session, key: str) -> list[str]:
    """Return the tags of a sample.

    Args:
        session: what is shown.
        key: of the sample.
    """
    return [] if session.tags is None else list(session.tags.of(key))


def make_routes(session: Session) -> list[Route]:
    """Return the routes of shards and samples.

    Args:
        session: what is shown.
    """
    routes = _SampleRoutes(session)
    return [
        Route("/api/dataset", routes.dataset),
        Route("/api/shards", routes.shards),
        Route("/api/samples", routes.samples),
        Route("/api/sample", routes.sample),
        Route("/api/payload", routes.payload),
        Route("/api/bytes", routes.raw_bytes),
    ]


class _SampleRoutes:
    """What answers; each method runs in a thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def dataset(self, request: Request) -> Response:  # noqa: ARG002  starlette's signature
        """Say what is shown."""
        from importlib.metadata import version  # noqa: PLC0415

        session = self._session
        sides = []
        for name, view in session.sides.items():
            count = view.count
            sides.append(
                {"side": name, "name": view.name, "shards": len(view), "samples": count, "exact": count is not None}
            )
        first = next(iter(session.sides))
        return JsonResponse(
            {
                "title": session.title,
                "version": version("webdataset"),
                "features": {
                    "compare": len(session.sides) > 1,
                    "pipeline": session.pipeline is not None,
                    "tags": session.tags is not None,
                    "queries": True,
                    "statistics": True,
                    "findings": True,
                    "batches": session.dataset_arguments.load is not None,
                    "sequential": any(url == "-" for view in session.sides.values() for url in view.urls),
                },
                "sides": sides,
                "page": {"side": first, "shard": 0, "ordinal": 0},
            }
        )

    def shards(self, request: Request) -> Response:
        """List shards; of those that were looked at, what is known."""
        view = find_side(self._session, request)
        start = read_number(request, "start", 0)
        count = read_number(request, "count", 100, most=_MOST_SHARDS)
        return JsonResponse({"shards": view.describe(start, count), "total": len(view)})

    def samples(self, request: Request) -> Response:
        """Return a page of samples."""
        side = read_text(request, "side", "a")
        shard = find_shard(self._session, request)
        start = read_number(request, "start", 0)
        count = read_number(request, "count", 50, most=_MOST_SAMPLES)
        page = shard.page(start, count, WALK_SECONDS)
        shard.prefetch(page.entries)
        cards = [
            sample_card(self._session, side, shard, ordinal, entry) for ordinal, entry in enumerate(page.entries, start)
        ]
        statistics = shard.read_statistics
        return JsonResponse(
            {
                "side": side,
                "shard": shard.number,
                "start": start,
                "samples": cards,
                "end": page.end,
                "total": shard.count,
                "sequential": shard.sequential,
                "problem": None if page.problem is None else page.problem._asdict(),
                "read": {"requests": statistics.requests, "bytes": statistics.bytes},
            }
        )

    def sample(self, request: Request) -> Response:
        """Return everything about a sample."""
        side = read_text(request, "side", "a")
        shard, ordinal, entry = find_entry(self._session, request)
        card = sample_card(self._session, side, shard, ordinal, entry)
        card["fields"] = [_describe_whole(shard, field) for field in entry.fields[:_MOST_FIELDS]]
        card["more_fields"] = max(0, len(entry.fields) - _MOST_FIELDS)
        card["document"] = self._describe_document(shard, ordinal, entry, card["fields"])
        following = shard.page(ordinal + 1, 1).entries
        stop = following[0].offset if following and following[0].offset > entry.offset else None
        card["members"] = list_members(entry, stop, shard.read_bytes)
        card["previous"], card["next"] = self._find_neighbours(side, shard, ordinal, is_last=not following)
        return JsonResponse(card)

    def _find_neighbours(
        self, side: str, shard: ShardView, ordinal: int, *, is_last: bool
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the places of the samples before and after one; None where there is none, or it is not known."""
        view = self._session.side(side)
        before = after = None
        if ordinal:
            before = {"shard": shard.number, "ordinal": ordinal - 1}
        elif shard.number:
            count = view.known_counts().get(shard.number - 1)
            before = {"shard": shard.number - 1, "ordinal": count - 1} if count else None
        if not is_last:
            after = {"shard": shard.number, "ordinal": ordinal + 1}
        elif shard.number + 1 < len(view):
            after = {"shard": shard.number + 1, "ordinal": 0}
        return before, after

    def _describe_document(
        self, shard: ShardView, ordinal: int, entry: SampleEntry, fields: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        """Return the parts of the first document among the fields, or None."""
        record = next((field.get("json") for field in fields if field["kind"] == "document"), None)
        if record is None:
            return None
        first = max(0, ordinal - _NEIGHBOURS)
        page = shard.page(first, ordinal - first + 1 + _NEIGHBOURS)
        neighbours = [
            NeighbourSample(number, each.key, tuple(field.name for field in each.fields))
            for number, each in enumerate(page.entries, first)
            if number != ordinal
        ]
        return describe_document(entry.key, [field.name for field in entry.fields], record, neighbours)

    def payload(self, request: Request) -> Response:
        """Send a field, or a range of it."""
        shard, _, field = find_field(self._session, request)
        start, stop = 0, field.size
        status = 200
        headers = {"Accept-Ranges": "bytes", "Content-Security-Policy": DATA_POLICY}
        wanted = request.headers.get("range")
        if wanted is not None and (found := _RANGE.fullmatch(wanted.strip())) is not None:
            span = _choose_range(found[1], found[2], field.size)
            if span is None:
                refusal = make_error(416, "WrongRange", f"the field has {field.size} bytes")
                refusal.headers["Content-Range"] = f"bytes */{field.size}"
                return refusal
            start, stop = span
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{field.size}"
        kind = MEDIA_TYPES.get(field.name.rpartition(".")[2].lower())
        if kind is None:
            headers["Content-Disposition"] = "attachment"
        headers["Content-Length"] = str(stop - start)
        first = shard.read_field(field, start, min(stop, start + _PIECE))
        return StreamingResponse(
            _read_pieces(shard, field, first, start, stop), status, headers, kind or "application/octet-stream"
        )

    def raw_bytes(self, request: Request) -> Response:
        """Return bytes of the tar stream as digits."""
        shard = find_shard(self._session, request)
        offset = read_number(request, "offset")
        count = read_number(request, "count", 512, most=_MOST_BYTES)
        content = shard.read_bytes(offset, count)
        return JsonResponse({"offset": offset, "hex": content.hex(), "end": len(content) < count})


def _choose_range(first: str, last: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one to stop before, of what a range names; None where it names nothing."""
    if not first:
        count = int(last) if last else 0
        return (max(0, size - count), size) if count and size else None
    start = int(first)
    stop = min(int(last) + 1, size) if last else size
    return (start, stop) if start < stop else None


def _read_pieces(shard: ShardView, field: FieldEntry, first: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Yield a field in pieces, the first of which was read."""
    yield first
    start += len(first)
    while start < stop:
        piece = shard.read_field(field, start, min(stop, start + _PIECE))
        yield piece
        start += len(piece)
