"""Who may ask the viewer for what: every check with clients that try to get around it."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.view_command import RunningViewer
from webdataset.testing import archives

ROUTES = (
    "dataset", "shards", "samples", "sample", "payload", "bytes", "thumbnail", "waveform", "array", "search",
    "statistics", "findings", "findings/all", "batch", "batch/options", "pipeline", "pipeline/preview", "tags",
    "compare", "nothing", "session/x", "", "../api/dataset", "%2e%2e/dataset",
)  # fmt: skip
POST = {"Content-Type": "application/json", "X-WDS-View": "1"}


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard with fields that a browser must never run."""
    path = tmp_path_factory.mktemp("shards") / "a.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(3):
            sink.write(
                {
                    "__key__": f"{number:04d}",
                    "html": b"<script>alert(1)</script>",
                    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
                    "txt": b"words",
                    "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
                }
            )
    return path


@pytest.fixture(scope="module")
def viewer(shard):
    """A viewer of that shard."""
    with RunningViewer(shard) as running:
        yield running


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic dTpw"},
        {"Cookie": "wds_view_1=x"},
        {"Cookie": "wds_view_PORT=wrong"},
        {"Cookie": "wds_view_PORT="},
        {"Cookie": ";;;=\x7f"},
    ],
    ids=str,
)
def test_data_needs_the_token(viewer, route, headers):
    """No route under /api answers without the token or the cookie, not even that there is none of this name."""
    sent = {name: text.replace("PORT", str(viewer.port)) for name, text in headers.items()}
    answer = viewer.ask(f"/api/{route}", known=False, headers=sent)
    assert answer.status == 401
    assert answer.error == "Unknown"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:PORT", "127.0.0.1", "localhost", "127.0.0.1:1", "127.0.0.1:PORT.evil.example", "",
        "127.0.0.1:PORT@evil.example", "[::ffff:127.0.0.1]:PORT", "0.0.0.0:PORT", "2130706433:PORT", "127.1:PORT",
        "localhost.:PORT", " 127.0.0.1:PORT,evil.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/static/index.html", "/api/dataset", "/api/session"])
def test_another_host_is_refused(viewer, host, path):
    """A name that was rebound to this machine gets nothing, with the token and without, of the page and of the data."""
    name = host.replace("PORT", str(viewer.port))
    answer = viewer.ask_raw(
        f"GET {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {viewer.token}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert answer.split(b" ")[1] in (b"403", b"400")
    assert b"<html" not in answer
    assert b"sides" not in answer


def test_a_request_names_exactly_one_host(viewer):
    """No host, and two of them, are refused, whatever the version of HTTP."""
    own = f"Host: 127.0.0.1:{viewer.port}\r\n"
    for version, hosts in (("1.0", ""), ("1.1", ""), ("1.1", own + "Host: evil.example\r\n"), ("1.1", own + own)):
        answer = viewer.ask_raw(f"GET / HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n".encode())
        assert answer.split(b" ")[1] in (b"403", b"400"), (version, hosts)
        assert b"<html" not in answer


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_its_own_names_are_taken(viewer, name):
    """Every name of the loopback address that a browser may send is taken."""
    answer = viewer.ask("/api/dataset", headers={"Host": f"{name}:{viewer.port}"})
    assert answer.status == 200


def open_session(viewer, token, **headers):
    """Post a token."""
    body = json.dumps({"token": token}).encode()
    return viewer.ask("/api/session", method="POST", known=False, body=body, headers={**POST, **headers})


def test_the_token_is_changed_for_a_cookie(viewer):
    """Who posts the token gets a cookie that scripts and other sites cannot use, and is known by it."""
    answer = open_session(viewer, viewer.token)
    assert answer.status == 200
    cookie, *flags = answer.headers["set-cookie"].split("; ")
    assert {flag.lower() for flag in flags} == {"httponly", "path=/", "samesite=strict"}
    assert cookie.startswith(f"wds_view_{viewer.port}=")
    assert viewer.token not in cookie
    assert viewer.ask("/api/dataset", known=False, headers={"Cookie": f"other=1; {cookie}"}).status == 200
    assert viewer.ask("/api/dataset", known=False, headers={"Cookie": cookie[:-1]}).status == 401


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"token": null}', b'{"token": 1}', b"\xff", b"[" * 60_000]
)
def test_what_is_no_token_gets_no_cookie(viewer, body):
    """Anything else is refused, and no cookie is set."""
    answer = viewer.ask("/api/session", method="POST", known=False, body=body, headers=POST)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    wrong = open_session(viewer, viewer.token[:-1] + "é")
    assert wrong.status == 403
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"X-WDS-View": "0"},
        {"X-WDS-View": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:PORT"},
        {"Origin": "http://localhost:PORT"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_post_that_a_page_of_others_can_send_is_refused(viewer, headers):
    """A form, another origin, another port of this machine: refused, with the token in hand."""
    sent = {name: text.replace("PORT", str(viewer.port)) for name, text in headers.items()}
    for path in ("/api/session", "/api/tags", "/api/nothing"):
        body = json.dumps({"token": viewer.token}).encode()
        answer = viewer.ask(path, method="POST", body=body, headers={**POST, **sent})
        assert answer.status in (403, 415), (path, answer)
        assert "set-cookie" not in answer.headers


def test_its_own_origin_is_taken(viewer):
    """The page's own requests carry its origin."""
    origin = f"http://127.0.0.1:{viewer.port}"
    assert open_session(viewer, viewer.token, Origin=origin, **{"Sec-Fetch-Site": "same-origin"}).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GETT"])
def test_other_methods_are_refused(viewer, method):
    """No method but GET, HEAD and POST; a preflight gets no permission."""
    headers = {"Origin": f"http://127.0.0.1:{viewer.port}", "Access-Control-Request-Method": "POST"}
    for path in ("/", "/api/dataset", "/api/tags", "/static/index.html"):
        answer = viewer.ask(path, method=method, headers=headers)
        assert answer.status in (400, 405), path
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/", "/static/index.html", "/static/nothing.js", "/nothing", *(f"/api/{route}" for route in ROUTES[:-2])],
)
@pytest.mark.parametrize("known", [True, False])
def test_every_answer_has_the_headers(viewer, path, known):
    """Page, data, errors and refusals all carry the policy, and none allows another origin to read it."""
    answer = viewer.ask(path, known=known, shard=0, ordinal=0, field="png", offset=0)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy or "sandbox" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "cache-control" in answer.headers
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]
    if path.startswith("/api"):
        assert "Cookie" in answer.headers["vary"]


def test_the_page_may_load_only_its_own_files(viewer):
    """The policy of the page names no other place, and no inline script or style."""
    policy = viewer.ask("/", known=False).headers["content-security-policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules == {
        "default-src": ["'none'"], "script-src": ["'self'"], "style-src": ["'self'"],
        "img-src": ["'self'", "blob:", "data:"], "media-src": ["'self'"], "connect-src": ["'self'"],
        "frame-ancestors": ["'none'"], "base-uri": ["'none'"], "form-action": ["'none'"],
        "require-trusted-types-for": ["'script'"],
    }  # fmt: skip


@pytest.mark.parametrize("field", ["html", "svg"])
def test_documents_are_sent_as_bytes(viewer, field):
    """HTML and SVG never come under their own types, and are saved, not shown."""
    answer = viewer.ask("/api/payload", ordinal=0, field=field)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py",
        "/static/%2e%2e%2f%2e%2e%2fcli/view.py",
        "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/..\\server.py", "/static/..%5cserver.py", "/static/",
        "/static", "/static/.", "/static/index.html%00.js", "//etc/passwd", "/../../etc/passwd",
    ],
)  # fmt: skip
def test_static_holds_its_files_alone(viewer, path):
    """No path leads out of the folder, and folders are not listed."""
    answer = viewer.ask_raw(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\nConnection: close\r\n\r\n".encode()
    )
    assert answer.split(b" ")[1] in (b"404", b"400", b"405"), answer[:200]
    assert b"root:" not in answer
    assert b"import " not in answer


def test_requests_have_limits(viewer):
    """A long query, a long header and a large body are refused, announced or not, and the viewer goes on."""
    assert viewer.ask("/api/dataset", text="x" * 9000).status == 414
    assert viewer.ask("/api/dataset", headers={"X-Long": "x" * 100_000}).status in (400, 431)
    large = b'{"token": "' + b"x" * 100_000 + b'"}'
    assert viewer.ask("/api/session", method="POST", body=large, headers=POST).status == 413
    head = f"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\nContent-Type: application/json\r\n"
    chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
    chunked = (
        head.encode()
        + b"X-WDS-View: 1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk * 3
        + b"0\r\n\r\n"
    )
    assert viewer.ask_raw(chunked).split(b" ")[1] == b"413"
    assert viewer.ask("/api/dataset").status == 200


def test_a_large_change_of_tags_is_refused(tmp_path):
    """A body whose size is not announced is refused with 413 and its reason, by every route that takes one."""
    (tmp_path / "x.tar").write_bytes(archives.of_samples(archives.samples(2)))
    with RunningViewer(tmp_path / "x.tar", "--tags", tmp_path / "tags.tsv") as running:
        head = f"POST /api/tags HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nAuthorization: Bearer {running.token}\r\n"
        rest = b"Content-Type: application/json\r\nX-WDS-View: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
        answer = running.ask_raw(head.encode() + b"Connection: close\r\n" + rest + chunk * 3 + b"0\r\n\r\n")
        assert answer.split(b" ")[1] == b"413"
        assert b'"type":"TooLarge"' in answer
        assert b"content-security-policy: sandbox" in answer.lower()
        assert running.ask("/api/tags").value["tags"] == {}
        assert running.log() == ""


@given(junk=st.binary(max_size=300))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_bytes_that_are_no_request_do_no_harm(viewer, junk):
    """Whatever is sent, the answer is a refusal or none, and the viewer goes on."""
    answer = viewer.ask_raw(junk, end=True)
    assert not answer or answer.split(b" ")[1] in (b"400", b"403", b"404", b"405", b"501")
    assert viewer.ask("/api/dataset").status == 200


@given(
    route=st.sampled_from(ROUTES[:-2]),
    parameters=st.dictionaries(
        st.sampled_from(
            ["side", "shard", "ordinal", "field", "start", "count", "offset", "size", "q", "where", "cursor"]
        ),
        st.one_of(st.integers(-5, 2**70).map(str), st.text(max_size=20), st.sampled_from(["a", "b", "png", "txt"])),
    ),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_parameter_makes_it_fail(viewer, route, parameters):
    """Any parameter gives an answer, or an error with a reason; never a fault of the viewer."""
    answer = viewer.ask(f"/api/{route}", **{name: text for name, text in parameters.items()})
    assert answer.status < 500 or answer.status == 501, (answer, viewer.log())
    assert "failed" not in viewer.log()


def test_nothing_listens_beyond_the_loopback(viewer):
    """The port is closed on the other addresses of this machine."""
    own = {place[4][0] for place in socket.getaddrinfo(socket.gethostname(), None) if place[0] == socket.AF_INET}
    for address in own - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError):
            socket.create_connection((address, viewer.port), timeout=5).close()
    assert viewer.ask("/api/dataset").status == 200
