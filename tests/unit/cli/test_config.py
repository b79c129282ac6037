"""``wds config check``: how urls are opened; no secret of any source is ever shown."""

import http.server
import threading

import pytest

from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas

jsonschema = pytest.importorskip("jsonschema")
PLANTED = "PLANTEDw0rd"
CONTENT = b"x" * 3000
KEYS = {"WDS_S3_P_ACCESS_KEY_ID": "env:KEY", "WDS_S3_P_SECRET_ACCESS_KEY": "env:KEY"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one object in ranges; paths with ``refused`` are forbidden."""

    requests: list[tuple[str, str | None]] = []  # noqa: RUF012  one server in this module

    def do_GET(self):  # noqa: N802  the name that the server calls
        """Answer a range."""
        span = self.headers.get("Range")
        self.requests.append((self.path, span))
        if "refused" in self.path:
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, _, last = (span or "bytes=0-").removeprefix("bytes=").partition("-")
        part = CONTENT[int(first) : int(last) + 1 if last else None]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"1"')
        if span:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def server():
    """Return the address of a web server, which also answers as a store in ranges."""
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    Handler.requests.clear()
    yield f"127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without any configuration, and no variable of a store."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def check(*arguments, status=0, **environment):
    """Return what is printed as JSON; fail where a secret is in it, or it is not what the schema says."""
    values = []
    for options in ([], ["--json"]):
        done = run_wds("config", "check", *options, *arguments, status=status, **environment)
        assert PLANTED not in (done.stdout + done.stderr).decode()
        values = json_lines(done) if options else values
    for value in values:
        jsonschema.Draft202012Validator(find_schemas()["config"]).validate(value)
    return values


def test_local_files(home):
    """A local file opens, or says why not."""
    (home / "a.tar").write_bytes(CONTENT)
    (value,) = check(home / "a.tar")
    assert (value["service"], value["opens"], value["size_bytes"]) == ("local", True, 3000)
    (value,) = check(home / "b.tar", status=exit_status.FAILED)
    assert (value["opens"], value["error_type"]) == (False, "NotFound")


def test_one_small_request(home, server):
    """A web server is asked once, for a small range."""
    run_wds("config", "check", f"http://{server}/a.tar", HOME=str(home))
    assert len(Handler.requests) <= 2
    assert all(span is not None for _, span in Handler.requests)
    (value,) = check(f"http://{server}/a.tar")
    assert (value["opens"], value["size_bytes"], value["service"]) == (True, 3000, "http")


def test_a_login_in_a_url_is_masked(home, server):
    """User and password of a url, and signatures in it, are not shown; also where it is refused."""
    (value,) = check(f"http://me:{PLANTED}@{server}/a.tar?X-Amz-Signature={PLANTED}")
    assert value["url"].startswith("http://***@")
    assert "in the url" in value["credentials"][0]
    (value,) = check(f"http://me:{PLANTED}@{server}/refused.tar", status=exit_status.FAILED)
    assert (value["opens"], value["error_type"]) == (False, "SourceError")
    assert "403" in value["error"]


def test_a_profile_with_its_secrets_in_the_file(home, server):
    """The profile of a configuration file: name, place, endpoint, region; its keys as places alone."""
    pytest.importorskip("botocore")
    (home / "wds.toml").write_text(
        f'[s3.profiles.mine]\nendpoint_url = "http://{server}"\nregion = "here-1"\n'
        f'access_key_id = "{PLANTED}A"\nsecret_access_key = "{PLANTED}B"\n',
        encoding="utf-8",
    )
    (home / "wds.toml").chmod(0o600)
    (value,) = check("s3+mine://bucket/a.tar", WDS_CONFIG=str(home / "wds.toml"))
    assert (value["service"], value["profile"], value["region"]) == ("s3", "mine", "here-1")
    assert value["endpoint"] == f"http://{server}"
    assert "wds.toml" in value["origin"]
    assert [text.partition(":")[0] for text in value["credentials"]] == ["access_key_id", "secret_access_key"]
    assert (value["opens"], value["size_bytes"], value["target"]) == (True, 3000, "s3://bucket/a.tar")
    (value,) = check("s3+mine://bucket/refused.tar", status=exit_status.FAILED, WDS_CONFIG=str(home / "wds.toml"))
    assert (value["opens"], value["error_type"]) == (False, "SourceError")
    assert "403" in value["error"]


@pytest.mark.parametrize(
    ("url", "variables", "shown"),
    [
        ("s3://b/k.tar", {"AWS_ACCESS_KEY_ID": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED}, "env:AWS_ACCESS_KEY_ID"),
        ("s3+p://b/k.tar", {**KEYS, "KEY": PLANTED}, "access_key_id: *** (env:KEY)"),
        ("s3+p://b/k.tar", KEYS, "(env:KEY, which is not there)"),
        ("s3+p://b/k.tar", dict.fromkeys(KEYS, PLANTED), "*** (env:WDS_S3_P_ACCESS_KEY_ID)"),
        ("hf://datasets/a/b/c.tar", {"HF_TOKEN": PLANTED}, "env:HF_TOKEN"),
        ("gs://b/k.tar", {"GOOGLE_APPLICATION_CREDENTIALS": f"/x/{PLANTED}.json"}, "env:GOOGLE_APPLICATION"),
        ("az://c/k.tar", {"AZURE_STORAGE_ACCOUNT": "me", "AZURE_STORAGE_KEY": PLANTED}, "env:AZURE_STORAGE_KEY"),
        ("az://c/k.tar", {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=me;AccountKey={PLANTED}=="},
         "env:AZURE_STORAGE_CONNECTION_STRING"),
        ("ais://b/k.tar", {"AIS_AUTHN_TOKEN": PLANTED, "AIS_ENDPOINT": f"http://u:{PLANTED}@h"}, "env:AIS_AUTHN_TOKEN"),
    ],
)  # fmt: skip
def test_secrets_of_every_source_are_named_and_never_shown(home, url, variables, shown):
    """Keys and tokens of the environment: which variable, and ``***``."""
    (value,) = check("--no-open", url, HOME=str(home), **variables)
    assert value["opens"] is None
    assert shown in value["credentials"][0]


def test_proxies(home, server):
    """The proxy of the environment is shown without its login; one that is excepted is not."""
    proxies = {"HTTP_PROXY": f"http://me:{PLANTED}@proxy:3128", "http_proxy": f"http://me:{PLANTED}@proxy:3128"}
    (value,) = check("--no-open", "http://elsewhere/a.tar", **proxies)
    assert value["proxy"] == "http://***@proxy:3128"
    (value,) = check(f"http://{server}/a.tar", no_proxy="127.0.0.1", **proxies)
    assert (value["proxy"], value["opens"]) == (None, True)


def test_rewriting_and_commands(home):
    """What is opened in the place of a url is said; commands are not run."""
    (home / "a.tar").write_bytes(CONTENT)
    (value,) = check("s3://x/a.tar", WDS_REWRITE=f"s3://x={home}")
    assert (value["target"], value["opens"]) == (str(home / "a.tar"), True)
    (value,) = check(f"pipe:touch {home / 'run'}; curl -u me:{PLANTED} http://x")
    assert (value["service"], value["opens"]) == ("pipe", None)
    assert not (home / "run").exists()


def test_mistakes(home):
    """Unknown profiles and schemes are typed messages, and the exit status says that something does not open."""
    (value,) = check("s3+nothing://b/k.tar", status=exit_status.FAILED)
    assert value["error_type"] == "ConfigError"
    (value,) = check("strange://b/k.tar", status=exit_status.FAILED)
    assert value["error_type"] == "UsageError"
