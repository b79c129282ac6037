"""A canary in the place of every secret: it is sent to nobody but the service, and shown nowhere."""

import copy
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer

import cloudpickle
import pytest

import webdataset as wds
from support.profiles import bare_home
from webdataset import config
from webdataset.core.errors import WebDatasetError

CANARY = "cAnArY0987654321"
KEYS = {"access_key_id": CANARY + "id", "secret_access_key": CANARY + "key", "session_token": CANARY + "token"}


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    """A home without configuration; where its file would be."""
    place = bare_home(monkeypatch, tmp_path)
    with config.temporary():
        yield place


@pytest.fixture
def refusing():
    """A service that knows nobody."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"<Error><Code>InvalidAccessKeyId</Code><Message>who are you</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def by_python(endpoint, file, monkeypatch):
    """Define the profile in Python."""
    config.profile("ceph", endpoint_url=endpoint, region="r", **KEYS)
    return "s3+ceph://bucket/x.tar", {}


def by_file(endpoint, file, monkeypatch):
    """Define the profile in the configuration file, the secrets as text."""
    lines = [f'{name} = "{value}"\n' for name, value in {**KEYS, "endpoint_url": endpoint, "region": "r"}.items()]
    file.write_text("[s3.profiles.ceph]\n" + "".join(lines))
    return "s3+ceph://bucket/x.tar", {}


def by_petrel(endpoint, file, monkeypatch):
    """Define it in petrel's file."""
    (file.parents[2] / "petreloss.conf").write_text(
        f"[ceph]\naccess_key={KEYS['access_key_id']}\nsecret_key={KEYS['secret_access_key']}\nhost_base={endpoint}\n"
    )
    return "ceph:s3://bucket/x.tar", {}


def by_options(endpoint, file, monkeypatch):
    """Give it to the dataset."""
    return "s3://bucket/x.tar", {"storage_options": {"endpoint_url": endpoint, "region": "r", **KEYS}}


def by_variables(endpoint, file, monkeypatch):
    """Set our variables."""
    for name, value in {**KEYS, "endpoint_url": endpoint, "region": "r"}.items():
        monkeypatch.setenv(f"WDS_S3_CEPH_{name.upper()}", value)
    return "s3+ceph://bucket/x.tar", {}


def by_megfile(endpoint, file, monkeypatch):
    """Set variables as megfile names them."""
    names = {"AWS_ACCESS_KEY_ID": "access_key_id", "AWS_SECRET_ACCESS_KEY": "secret_access_key"}
    for name, field in names.items():
        monkeypatch.setenv(f"CEPH__{name}", KEYS[field])
    monkeypatch.setenv("CEPH__OSS_ENDPOINT", endpoint)
    return "s3+ceph://bucket/x.tar", {}


WAYS = [by_python, by_file, by_petrel, by_options, by_variables, by_megfile]


@pytest.mark.parametrize("way", WAYS)
def test_refused_request_shows_nothing(way, refusing, file, monkeypatch, caplog, capfd):
    """The error is typed and names the way out; no message, log or local variable holds a secret."""
    pytest.importorskip("botocore")
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    url, options = way(refusing, file, monkeypatch)
    with caplog.at_level(logging.DEBUG):
        dataset = wds.WebDataset(url, empty_check=False, **options)
        profile, _ = config.profile_for(url, options.get("storage_options"))
        with pytest.raises(WebDatasetError, match="InvalidAccessKeyId") as caught:
            list(dataset)
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    while "test_config_secrets" in frames.stack[0].filename:  # this test holds what it gave
        del frames.stack[0]
    rules = [stage.reading for stage in dataset.pipeline if hasattr(stage, "reading")]
    shown = [str(caught.value), repr(caught.value), "".join(frames.format()), caplog.text, repr(dataset), repr(rules)]
    shown += [str(vars(dataset)), repr(profile), str(caught.value.__dict__), *capfd.readouterr()]
    assert len(rules) == 1
    assert not [text[text.index("cAnArY") - 200 :][:300] for text in shown if "cAnArY" in text]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_no_pickle_holds_a_secret(way, pickler, file, monkeypatch):
    """A dataset and its profile travel by reference or by name, or refuse."""
    url, options = way("http://127.0.0.1:9", file, monkeypatch)
    dataset = wds.WebDataset(url, **options)
    profile, _ = config.profile_for(url, options.get("storage_options"))
    refused = []
    for thing in (dataset, profile, copy.deepcopy(profile), config.profiles()):
        try:
            pickled = pickler.dumps(thing)
        except config.ConfigError as error:
            refused.append(str(error))
        else:
            assert b"cAnArY" not in pickled
    assert not [message for message in refused if "cAnArY" in message or "'file:PATH'" not in message]
    assert len(refused) == {by_python: 3, by_options: 3}.get(way, 0)


@pytest.mark.parametrize("way", [by_file, by_petrel, by_variables, by_megfile])
def test_another_process_finds_the_secrets(way, file, monkeypatch):
    """What travelled is complete on the other side, where the file or the variables are read again."""
    url, _ = way("http://127.0.0.1:9", file, monkeypatch)
    pickled = pickle.dumps(config.profile_for(url)[0])
    code = (
        "import pickle, sys; profile = pickle.loads(bytes.fromhex(sys.stdin.read()))\n"
        "print(profile); print(profile.secret_access_key.reveal()[-3:], profile.name)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], input=pickled.hex(), capture_output=True, text=True, check=True
    )
    assert child.stdout.splitlines()[-1] == "key ceph"
    assert "cAnArY" not in child.stdout + child.stderr


def test_references_in_options_travel(monkeypatch):
    """A dataset whose options refer to variables is pickled, and finds them again."""
    monkeypatch.setenv("MY_ID", CANARY)
    options = {"endpoint_url": "http://h", "key": "env:MY_ID", "secret": "env:MY_ID"}
    dataset = wds.WebDataset("s3://bucket/x.tar", storage_options=options)
    pickled = pickle.dumps(dataset)
    assert b"cAnArY" not in pickled
    rules = next(stage.reading for stage in pickle.loads(pickled).pipeline if hasattr(stage, "reading"))
    profile, _ = config.profile_for("s3://bucket/x.tar", rules.storage_options)
    assert profile.secret_access_key.reveal() == CANARY


CHILD = """
import pickle, sys
import webdataset as wds
dataset = pickle.loads(bytes.fromhex(sys.stdin.read()))
for url in ("inhouse://x.tar", "s3+text://bucket/x.tar"):
    try:
        profile, plain = wds.config.profile_for(url)
        print(profile.name, plain, profile.secret_access_key.reveal()[-3:], profile.origin)
    except wds.config.ConfigError as error:
        print(error)
"""


def test_definitions_of_python_travel_with_a_dataset(monkeypatch):
    """Another process that unpickles a dataset knows them; a secret given as text stays, and is missed by name."""
    monkeypatch.setenv("MY_KEY", CANARY + "key")
    config.profile("ref", access_key_id="env:MY_KEY", secret_access_key="env:MY_KEY")
    config.profile("text", **KEYS)
    config.route("inhouse://", "ref", target="s3://bucket/prefix")
    pickled = pickle.dumps(wds.WebDataset("inhouse://x.tar"))
    assert b"cAnArY" not in pickled
    words = [sys.executable, "-c", CHILD]
    child = subprocess.run(words, input=pickled.hex(), capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[0] == "ref s3://bucket/prefix/x.tar key python"
    assert "S3 profile 'text' was defined in another process with a secret as text" in child.stdout
    assert "cAnArY" not in child.stdout + child.stderr


def test_definitions_do_not_come_back():
    """A pickle that is read where it was made defines nothing."""
    with config.temporary():
        config.profile("gone", region="r")
        pickled = pickle.dumps(wds.WebDataset("s3://bucket/x.tar"))
    pickle.loads(pickled)
    with pytest.raises(config.ConfigError, match="no S3 profile 'gone'"):
        config.profile("gone")


def test_options_with_a_mistake_are_refused_at_once():
    """Before a shard is opened, and without the value."""
    with pytest.raises(config.ConfigError, match="did you mean 'secret_access_key'") as caught:
        wds.WebDataset("s3://bucket/x.tar", storage_options={"secret_acces_key": CANARY})
    assert "cAnArY" not in str(caught.value)


def test_options_are_not_lost_on_other_urls(tmp_path):
    """A url that S3 does not serve refuses them; local files need none."""
    dataset = wds.WebDataset("http://127.0.0.1:9/x.tar", storage_options={"anon": True})
    with pytest.raises(WebDatasetError, match="does not apply here"):
        list(dataset)
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": "a", "txt": "b"})
    assert len(list(wds.WebDataset(str(tmp_path / "x.tar"), storage_options={"anon": True}))) == 1
