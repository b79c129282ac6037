"""Who may ask the viewer for what: the checks before every request, and the headers of every answer.

Theory. The server listens on the loopback address, which is not enough: a page of any site can send requests to it,
and with a name that resolves to 127.0.0.1 (DNS rebinding) it can even read the answers. So ``Host`` must name this
server on every request; whatever holds data needs the token, which is in the fragment of the printed url (a fragment is
never sent), and then a cookie that other sites cannot send (``SameSite=Strict``) and scripts cannot read
(``HttpOnly``). Requests that a browser marks as coming from another origin are refused, and no answer allows another
origin to read it. What changes something also needs JSON and a header of its own, which no form can send.

The page may load nothing but its own files. The token never stands in a log or on a command line.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from webdataset.viewer.http_messages import JsonResponse, explain_error, make_error

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)
DATA_POLICY: Final = "sandbox; default-src 'none'; frame-ancestors 'none'"
MOST_BODY: Final = 64 * 1024
MOST_QUERY: Final = 8 * 1024
MOST_HEADERS: Final = 32 * 1024
Report = Callable[[BaseException], None]
"""Takes an exception that nothing else took."""
_METHODS: Final = frozenset(("GET", "HEAD", "POST"))
_SESSION: Final = "/api/session"


class Access:
    """Who may ask.

    Args:
        hosts: names of this server, without the port.
        port: that it listens on.

    Attributes:
        token: the secret of the printed url.
        cookie_name: of the cookie that takes its place.
        hosts: what ``Host`` may be.
    """

    def __init__(self, hosts: Iterable[str], port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self.cookie_name = f"wds_view_{port}"
        self._cookie = secrets.token_urlsafe(32)
        names = [*dict.fromkeys((*hosts, "127.0.0.1", "localhost", "[::1]"))]
        self.hosts = frozenset(f"{name}:{port}".lower() for name in names)

    def is_token(self, given: object) -> bool:
        """Tell whether something is the token; it takes as long for every text.

        Args:
            given: by a client.
        """
        return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def is_known(self, headers: Headers) -> bool:
        """Tell whether a request comes from who has the token.

        Args:
            headers: of the request.
        """
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind:
            return kind.lower() == "bearer" and self.is_token(given)
        try:
            cookies = SimpleCookie("; ".join(headers.getlist("cookie")))
        except CookieError:
            return False
        cookie = cookies.get(self.cookie_name)
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._cookie.encode())

    def give_cookie(self, response: Response) -> None:
        """Let a browser be known from now on.

        Args:
            response: to who has shown the token.
        """
        response.set_cookie(self.cookie_name, self._cookie, path="/", httponly=True, samesite="strict")

    def refuse(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not to be heard, or None.

        Args:
            scope: of the request, as ASGI has it.
        """
        headers = Headers(scope=scope)
        path = scope["path"]
        answer = self._refuse_address(scope, headers) or self._refuse_origin(path, headers)
        if answer is None and scope["method"] == "POST":
            answer = self._refuse_post(path, headers)
        if answer is None and path.startswith("/api") and path != _SESSION and not self.is_known(headers):
            answer = make_error(401, "Unknown", "this needs the token: open the url that 'wds view' printed")
        return answer

    def _refuse_address(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            text = "the header Host does not name this server: open the url that 'wds view' printed"
            return make_error(403, "WrongHost", text)
        if scope["method"] not in _METHODS:
            return make_error(405, "WrongMethod", "the viewer answers GET, HEAD and POST")
        if len(scope.get("query_string", b"")) > MOST_QUERY:
            return make_error(414, "TooLong", f"the query has more than {MOST_QUERY} bytes")
        if sum(len(name) + len(text) for name, text in headers.raw) > MOST_HEADERS:
            return make_error(431, "TooLong", f"the headers have more than {MOST_HEADERS} bytes")
        return None

    def _refuse_origin(self, path: str, headers: Headers) -> Response | None:
        if path.startswith("/api") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return make_error(403, "WrongOrigin", "another site asked for this")
        if "origin" in headers and headers.getlist("origin") != [f"http://{headers['host'].lower()}"]:
            return make_error(403, "WrongOrigin", "another origin asked for this")
        return None

    def _refuse_post(self, path: str, headers: Headers) -> Response | None:
        if not path.startswith("/api/"):
            return make_error(405, "WrongMethod", "there is nothing to post to here")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return make_error(415, "WrongType", "the body of a POST is application/json")
        if headers.get("x-wds-view") != "1":
            return make_error(403, "MissingHeader", "a POST needs the header X-WDS-View: 1")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BODY:
            return make_error(413, "TooLarge", f"the body of a POST has at most {MOST_BODY} bytes")
        return None

    async def open_session(self, scope: Scope, receive: Receive) -> Response:
        """Return the answer to who shows the token: a cookie; to others a refusal.

        Args:
            scope: of the request.
            receive: gives its body.
        """
        if scope["method"] != "POST":
            return make_error(405, "WrongMethod", "post the token as JSON")
        content = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return make_error(400, "Interrupted", "the request was not whole")
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            given = json.loads(content)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict) or not self.is_token(given.get("token")):
            return make_error(403, "WrongToken", "this is not the token: open the url that 'wds view' printed last")
        response = JsonResponse({"ok": True})
        self.give_cookie(response)
        return response


class Guard:
    """The outermost layer of the application: it checks requests, adds headers to answers, and lets no exception out.

    Args:
        app: what answers.
        access: who may ask.
        report: takes an exception that nothing else took.
    """

    def __init__(self, app: ASGIApp, access: Access, report: Report) -> None:
        self._app = app
        self._access = access
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Args:
            scope: of the request.
            receive: gives its body.
            send: takes the answer.
        """
        if scope["type"] != "http":
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                add_headers(scope["path"], MutableHeaders(scope=message))
            await send(message)

        try:
            answer = self._access.refuse(scope)
            if answer is None and scope["path"] == _SESSION:
                answer = await self._access.open_session(scope, _limit_body(receive))
            await (answer or self._app)(scope, _limit_body(receive), send_with_headers)
        except _TooLarge:
            if not started:
                refusal = make_error(413, "TooLarge", f"the body of a request has at most {MOST_BODY} bytes")
                await refusal(scope, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001  whatever it is: its text must not reach the client or the log
            self._report(error)
            if not started:
                await explain_error(error)(scope, receive, send_with_headers)


class _TooLarge(HTTPException):
    """A body of more bytes than a request may have; the application answers it as any other status."""

    def __init__(self) -> None:
        super().__init__(413)


def _limit_body(receive: Receive) -> Receive:
    taken = 0

    async def receive_within_limit() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST_BODY:
            raise _TooLarge
        return message

    return receive_within_limit


def add_headers(path: str, headers: MutableHeaders) -> None:
    """Add the headers that keep an answer to this page.

    Args:
        path: of the request.
        headers: of the answer; those that are there stay.
    """
    is_data = path.startswith("/api")
    headers.setdefault("Content-Security-Policy", DATA_POLICY if is_data else PAGE_POLICY)
    headers.setdefault("Cache-Control", "no-store" if is_data else "no-cache")
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["X-Frame-Options"] = "DENY"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
    if is_data:
        # a viewer that comes after this one, on the same port, gives another cookie
        headers.add_vary_header("Cookie")
