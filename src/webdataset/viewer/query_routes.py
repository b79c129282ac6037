"""Routes that ask about many samples: search, statistics, findings, batches, the pipeline, tags, two sides.

What takes long runs in a thread, and ends when its client leaves.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from webdataset.core.errors import NoSuchSample, UsageError
from webdataset.index.entries import SampleEntry
from webdataset.storage.open_url import local_path
from webdataset.viewer.batches import Batches, BatchRequest
from webdataset.viewer.comparison import ShardComparison
from webdataset.viewer.findings import Findings
from webdataset.viewer.http_messages import JsonResponse, make_error, read_number, read_text
from webdataset.viewer.pipeline import PipelineRunner
from webdataset.viewer.sample_routes import find_entry, find_shard, find_side, sample_card
from webdataset.viewer.search import Budget, SampleQuery, search_samples
from webdataset.viewer.session import Session
from webdataset.viewer.statistics import collect_statistics

_MOST_FOUND: Final = 200
_MOST_SAMPLED: Final = 100_000
_MOST_BATCH: Final = 512
_KEPT: Final = 16
_WATCH_SECONDS: Final = 0.2
_SEARCH_SECONDS: Final = 1.0
_LONG_SECONDS: Final = 60.0
_PIPELINE_BYTES: Final = 64 << 20
_Answer = TypeVar("_Answer")


async def run_until_disconnect(request: Request, work: Callable[[Callable[[], bool]], _Answer]) -> _Answer:
    """Run work in a thread; tell it when its client has gone, or the server ends.

    Args:
        request: that it is for.
        work: takes a function that tells whether the client has disconnected.
    """
    gone = threading.Event()

    async def watch() -> None:
        while not await request.is_disconnected():  # noqa: ASYNC110  starlette tells it to those who ask
            await asyncio.sleep(_WATCH_SECONDS)
        gone.set()

    watcher = asyncio.create_task(watch())
    try:
        return await anyio.to_thread.run_sync(work, gone.is_set, abandon_on_cancel=True)
    finally:
        gone.set()
        watcher.cancel()


def make_routes(session: Session) -> list[Route]:
    """Return the routes.

    Args:
        session: what is shown.

    Raises:
        UsageError: the file of tags is one of the shards.
    """
    _protect_shards(session)
    routes = _Routes(session)
    session.close_with.append(routes.close)
    return [
        Route("/api/search", routes.search),
        Route("/api/statistics", routes.statistics),
        Route("/api/findings", routes.findings),
        Route("/api/findings/all", routes.all_findings),
        Route("/api/batch", routes.batch),
        Route("/api/batch/options", routes.batch_options),
        Route("/api/pipeline", routes.pipeline),
        Route("/api/pipeline/preview", routes.preview),
        Route("/api/tags", routes.tags, methods=["GET", "POST"]),
        Route("/api/compare", routes.compare),
    ]


def _protect_shards(session: Session) -> None:
    if session.tags is None:
        return
    import os  # noqa: PLC0415  for --tags alone

    paths = [local_path(url) for side in session.sides.values() for url in side.urls]
    if session.tags.path in {os.path.realpath(path) for path in paths if path is not None}:
        raise UsageError("the file of tags is one of the shards, which are never written: name another file")


class _Routes:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._findings = Findings(session.sides)
        self._batches = Batches(session)
        self._runner = None if session.pipeline is None else PipelineRunner(session.pipeline)
        two = list(session.sides.values())
        self._comparison = ShardComparison(two[0], two[1]) if len(two) > 1 else None
        self._statistics: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def close(self) -> None:
        """End what runs."""
        self._findings.close()
        self._batches.close()
        if self._runner is not None:
            self._runner.close()

    def _card(self, side: str, number: int, ordinal: int, entry: SampleEntry) -> dict[str, Any]:
        return sample_card(self._session, side, self._session.side(side).shard(number), ordinal, entry)

    async def search(self, request: Request) -> Response:
        """Find samples by a text and an expression."""
        side, view = read_text(request, "side", "a"), find_side(self._session, request)
        number = None
        if request.query_params.get("shard"):
            number = find_shard(self._session, request).number
        query = SampleQuery(read_text(request, "q", ""), read_text(request, "where", "", most=8192))
        cursor = read_text(request, "cursor", "")
        count = read_number(request, "count", 50, least=1, most=_MOST_FOUND)

        def work(is_cancelled: Callable[[], bool]) -> dict[str, Any]:
            budget = Budget(_SEARCH_SECONDS, is_cancelled=is_cancelled)
            found = search_samples(view, query, shard=number, cursor=cursor, count=count, budget=budget)
            cards = [] if is_cancelled() else [self._card(side, *each) for each in found.samples]
            return {"samples": cards, **found.to_json()}

        return JsonResponse(await run_until_disconnect(request, work))

    async def statistics(self, request: Request) -> Response:
        """Return counts, sizes, labels and image sizes."""
        side, view = read_text(request, "side", "a"), find_side(self._session, request)
        where = read_text(request, "where", "", most=8192)
        samples = read_number(request, "samples", 1000, least=1, most=_MOST_SAMPLED)
        name = side, where, samples
        if name not in self._statistics:

            def work(is_cancelled: Callable[[], bool]) -> dict[str, Any]:
                budget = Budget(seconds=10, most_bytes=256 << 20, is_cancelled=is_cancelled)
                return collect_statistics(view, where=where, samples=samples, budget=budget)

            self._statistics[name] = await run_until_disconnect(request, work)
            if len(self._statistics) > _KEPT:
                self._statistics.popitem(last=False)
        return JsonResponse(self._statistics[name])

    def findings(self, request: Request) -> Response:
        """Return what a check of a shard found; the first time, start it."""
        side, shard = read_text(request, "side", "a"), find_shard(self._session, request)
        return JsonResponse(self._findings.describe(side, shard.number))

    def all_findings(self, request: Request) -> Response:
        """Return a summary of the shards that were checked."""
        find_side(self._session, request)
        return JsonResponse(self._findings.describe_all(read_text(request, "side", "a")))

    def batch_options(self, request: Request) -> Response:  # noqa: ARG002  starlette's signature
        """Return the states and the run that batches are of."""
        return JsonResponse(self._batches.describe_options())

    async def batch(self, request: Request) -> Response:
        """Return the samples of a batch; where shards have to be read for that, say so first."""
        side, view = read_text(request, "side", "a"), find_side(self._session, request)
        wanted = _read_batch_request(request)
        confirmed = read_text(request, "confirm", "") == "1"

        def work(is_cancelled: Callable[[], bool]) -> Response:
            if not confirmed:
                needs = self._batches.find_needs(side, wanted)
                if needs is not None:
                    content = {"message": needs.message, "bytes": needs.size_bytes, "shards": needs.shards}
                    return JsonResponse({"needs": content}, 409)
            batch = self._batches.find_batch(wanted, Budget(_LONG_SECONDS, is_cancelled=is_cancelled))
            cards: list[dict[str, Any]] = []
            missing, repeated, shards = [], [], set()
            for each in self._batches.locate(side, batch)[:_MOST_BATCH]:
                if each.shard is None or each.ordinal is None:
                    missing.append(each.key)
                    continue
                shard = view.shard(each.shard)
                shards.add(each.shard)
                cards.append(self._card(side, each.shard, each.ordinal, shard.entry(each.ordinal)))
                if each.repeated:
                    repeated.append(each.key)
            read = [view.shard(number).read_statistics for number in shards]
            place = batch.to_json()
            del place["shards"]
            return JsonResponse(
                {
                    "samples": cards,
                    "batch": {"step": wanted.step, **place, "missing_keys": missing, "repeated_keys": repeated},
                    "read": {
                        "requests": sum(each.requests for each in read),
                        "bytes": sum(each.bytes for each in read),
                    },
                }
            )

        return await run_until_disconnect(request, work)

    async def pipeline(self, request: Request) -> Response:
        """Return a sample before and after the function of the user's."""
        runner = self._runner
        if runner is None:
            raise NoSuchSample("no function was named: start 'wds view' with --pipeline module:function")
        side = read_text(request, "side", "a")
        shard, ordinal, entry = find_entry(self._session, request)
        seed = read_number(request, "seed", 0)
        size = sum(field.size for field in entry.fields)
        if size > _PIPELINE_BYTES:
            raise UsageError(f"the sample has {size} bytes; at most {_PIPELINE_BYTES} are given to the function here")

        def work(is_cancelled: Callable[[], bool]) -> dict[str, Any]:  # noqa: ARG001  its time is bounded
            sample = {"__key__": entry.key, "__url__": shard.name, **shard.payloads(entry)}
            before = sample_card(self._session, side, shard, ordinal, entry)
            return {"name": runner.name, "seed": seed, "before": before, **runner.call(sample, seed)}

        return JsonResponse(await run_until_disconnect(request, work))

    def preview(self, request: Request) -> Response:
        """Send a picture of what the function made."""
        if self._runner is None:
            raise NoSuchSample("no function was named: start 'wds view' with --pipeline module:function")
        return Response(self._runner.image(read_text(request, "id")), media_type="image/png")

    async def tags(self, request: Request) -> Response:
        """Return all tags; of a POST, change one first."""
        tags = self._session.tags
        if tags is None:
            return make_error(403, "ReadOnly", "nothing is written: start 'wds view' with --tags FILE")
        if request.method == "POST":
            try:
                given = await request.json()
            except (ValueError, RecursionError):
                given = None
            if not (
                isinstance(given, dict)
                and isinstance(given.get("key"), str)
                and isinstance(given.get("tag"), str)
                and isinstance(given.get("on"), bool)
            ):
                raise UsageError("the body is JSON with key and tag as texts, and on as true or false")
            key, tag, on = given["key"], given["tag"], given["on"]
            found = await anyio.to_thread.run_sync(lambda: tags.change(key, tag, on=on))
        else:
            found = await anyio.to_thread.run_sync(tags.all)
        return JsonResponse({"tags": found, "file": tags.path})

    async def compare(self, request: Request) -> Response:
        """Return samples of both sides in rows."""
        comparison = self._comparison
        if comparison is None:
            raise NoSuchSample("there is one side: start 'wds view' with --compare")
        number, start = read_number(request, "shard", 0), read_number(request, "start", 0)
        count = read_number(request, "count", 50, least=1, most=_MOST_FOUND)
        by_key = read_text(request, "by", "key") != "position"
        names = list(self._session.sides)

        def work(is_cancelled: Callable[[], bool]) -> dict[str, Any]:
            budget = Budget(seconds=5, is_cancelled=is_cancelled)
            found = comparison.compare(number, start, count, budget, by_key=by_key)
            rows = []
            for row in found.rows:
                cards = [
                    None if place is None else self._card(side, number, *place)
                    for side, place in zip(names, (row.first, row.second), strict=True)
                ]
                key = next(card["key"] for card in cards if card is not None)
                rows.append({"key": key, "a": cards[0], "b": cards[1], "differs": row.differs, "unread": row.unread})
            return {
                "rows": rows, "shard": number, "start": start, "end": found.end, "total": found.total,
                "complete": found.complete, "by": "key" if by_key else "position",
            }  # fmt: skip

        return JsonResponse(await run_until_disconnect(request, work))


def _read_batch_request(request: Request) -> BatchRequest:
    def number(name: str, least: int = 0) -> int | None:
        given = request.query_params.get(name, "")
        return read_number(request, name, least=least) if given else None

    return BatchRequest(
        step=read_number(request, "step", 0),
        rank=read_number(request, "rank", 0),
        world_size=read_number(request, "world_size", 1, least=1, most=1 << 20),
        worker=number("worker"),
        workers=number("workers"),
        batch_size=number("batch_size", 1),
        order=read_text(request, "order", "") or None,
        state=number("state"),
        epoch=number("epoch"),
        seed=number("seed"),
    )
