"""The viewer's application, and how it is served: on the loopback address, until a signal ends it.

Handlers run in threads. At most ``STORE_THREADS`` of them work on one store at a time, so that a store that does not
answer holds up its own requests alone.
"""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from webdataset.core.errors import SourceError, UsageError, WebDatasetError
from webdataset.viewer import media_routes, query_routes, sample_routes
from webdataset.viewer.http_messages import explain_error, make_error
from webdataset.viewer.security import MOST_BODY, Access, Guard, Report
from webdataset.viewer.session import Session

STATIC: Final = Path(__file__).parent / "static"
THREADS: Final = 48
STORE_THREADS: Final = 12
_MOST_CONNECTIONS: Final = 256


def make_app(session: Session, access: Access, report: Report | None = None) -> ASGIApp:
    """Return the application.

    Args:
        session: what is shown.
        access: who may ask.
        report: takes exceptions that are faults of the viewer.
    """
    routes: list[Any] = [Route("/", _send_page)]
    for module in (sample_routes, media_routes, query_routes):
        routes += module.make_routes(session)
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    handlers: dict[Any, Any] = {HTTPException: _explain_status, WebDatasetError: _explain, OSError: _explain}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(StoreLimits(app, session), access, report or (lambda _: None))


def _send_page(request: Request) -> Response:  # noqa: ARG001  starlette's signature
    return FileResponse(STATIC / "index.html", media_type="text/html")


def _explain(request: Request, error: Exception) -> Response:  # noqa: ARG001  starlette's signature
    return explain_error(error)


def _explain_status(request: Request, error: Exception) -> Response:  # noqa: ARG001  starlette's signature
    status = getattr(error, "status_code", 500)
    text = {
        404: "there is nothing under this address",
        405: "this address does not take this method",
        413: f"the body of a request has at most {MOST_BODY} bytes",
    }
    return make_error(
        status, "TooLarge" if status == 413 else "HttpError", text.get(status, "the request cannot be answered")
    )


class StoreLimits:
    """Lets a few requests at a time work on each store; the others wait without a thread.

    Args:
        app: what answers.
        session: what is shown.
    """

    def __init__(self, app: ASGIApp, session: Session) -> None:
        self._app = app
        self._session = session
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn.

        Args:
            scope: of the request.
            receive: gives its body.
            send: takes the answer.
        """
        store = self._find_store(scope)
        if store is None:
            await self._app(scope, receive, send)
            return
        async with self._turns.setdefault(store, asyncio.Semaphore(STORE_THREADS)):
            await self._app(scope, receive, send)

    def _find_store(self, scope: Scope) -> str | None:
        """Return what tells the store of a request from others; None where it reads none."""
        if not scope["path"].startswith("/api/") or scope["path"] in ("/api/dataset", "/api/shards"):
            return None
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        side = self._session.sides.get(query.get("side", ["a"])[0])
        number = query.get("shard", ["0"])[0]
        if side is None or not number.isdigit() or len(number) > 16 or int(number) >= len(side.urls):
            return None
        url = side.urls[int(number)]
        parts = urlsplit(url) if "://" in url else None
        return f"{parts.scheme}://{parts.netloc}" if parts is not None else ("-" if url == "-" else "file")


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on the loopback address.

    Args:
        host: ``localhost`` or an address of the loopback.
        port: 0 for any that is free.

    Raises:
        UsageError: another address.
        SourceError: the port is in use, or the system refuses.
    """
    name = host.strip("[]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise UsageError(
            f"--host {host}: the viewer listens on this machine only (127.0.0.1, ::1). From another machine, use a "
            "tunnel: ssh -L 8000:127.0.0.1:8000 THIS_MACHINE, with --port 8000 here"
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise SourceError(
            f"port {port} of {address} cannot be listened on: {error.strerror}; pass another --port, or none for any "
            "that is free"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller, and says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals as they are."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._ready()


def serve(
    session: Session,
    listener: socket.socket,
    access: Access,
    ready: Callable[[], None],
    report: Report | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for requests in progress.

    Args:
        session: what is shown.
        listener: an open socket.
        access: who may ask.
        ready: called once requests are answered.
        report: takes exceptions that are faults of the viewer.
    """
    quiet = logging.getLogger("uvicorn")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    config = uvicorn.Config(
        make_app(session, access, report),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=32 * 1024,
    )
    server = _Server(config, ready)
    # asyncio.run would wait for handlers whose threads wait for a store
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(server, listener))
        if not asyncio.all_tasks(loop):
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        if not asyncio.all_tasks(loop):
            loop.close()


async def _serve(server: _Server, listener: socket.socket) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[listener])
