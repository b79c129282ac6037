"""Azure Storage: keys, signatures, tokens; blocks of two writers; what no other store has."""

import base64
import datetime as dt
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

import webdataset as wds
from support import azure_server
from support.proxy import Fault, FaultyProxy
from support.readings import drained
from webdataset.core.errors import ConfigError, NotFound, SourceError, UsageError
from webdataset.storage.backends import azure_client
from webdataset.testing.sources import Answering, Listening

PART = 256 << 10
CANARY = base64.b64encode(b"CANARY0123456789").decode()


@pytest.fixture
def options(az):
    """The account and its place, in storage options; nothing in the environment."""
    az.environment.delenv("AZURE_STORAGE_CONNECTION_STRING")
    return {"account_name": azure_server.ACCOUNT, "endpoint_url": az.running.endpoint}


def sas(container="shards", hours=1, **options):
    """Return a shared access signature."""
    blob = pytest.importorskip("azure.storage.blob")
    return blob.generate_container_sas(
        azure_server.ACCOUNT, container, account_key=azure_server.KEY,
        permission=options.pop("permission", "rwdl"), expiry=dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours),
    )  # fmt: skip


def test_all_forms_of_a_url(az):
    """``az:``, ``abfs:`` and ``abfss:``, with the account or without, are one blob."""
    az.put("forms/x", b"one")
    for stem in ("az://shards", "abfs://shards", "abfss://shards", f"abfs://shards@{azure_server.ACCOUNT}"):
        assert drained(f"{stem}/forms/x") == b"one"
        assert wds.expand_urls(f"{stem}/forms/*") == [f"{stem}/forms/x"]


def test_keys_and_signatures(az, options):
    """The account's key, a shared access signature, by reference or text, under each name: reading, writing, lists."""
    az.environment.setenv("TEST_KEY", azure_server.KEY)
    az.environment.setenv("TEST_SAS", "?" + sas())
    for number, who in enumerate((
        {"account_key": "env:TEST_KEY"}, {"account_key": azure_server.KEY}, {"credential": azure_server.KEY},
        {"sas_token": "env:TEST_SAS"}, {"sas_token": sas()}, {"credential": sas()},
    )):  # fmt: skip
        with wds.gopen(az.url(f"who/{number}"), "wb", storage_options={**options, **who}, part_bytes=PART) as stream:
            stream.write(bytes(2 * PART))
        assert drained(az.url(f"who/{number}"), storage_options={**options, **who}) == bytes(2 * PART)
        assert wds.WebDataset(az.url(f"who/{number}*"), storage_options={**options, **who}, shardshuffle=False)


@pytest.mark.parametrize("names", [("ACCOUNT", "KEY"), ("ACCOUNT_NAME", "ACCOUNT_KEY"), ("ACCOUNT", "SAS_TOKEN")])
def test_the_environment(az, options, names):
    """The variables of Azure's own programs, and those of others."""
    az.put("environment", b"found")
    for name, text in zip(names, (azure_server.ACCOUNT, sas() if "SAS" in names[1] else azure_server.KEY), strict=True):
        az.environment.setenv(f"AZURE_STORAGE_{name}", text)
    assert drained(az.url("environment"), storage_options={"endpoint_url": az.running.endpoint}) == b"found"


def test_everybody(az, options):
    """What is open is read without credentials; what is not is not, and the error says so."""
    blob = pytest.importorskip("azure.storage.blob")
    with blob.BlobServiceClient.from_connection_string(azure_server.connection_string(az.running.endpoint)) as client:
        client.get_blob_client("open", "x").upload_blob(b"open", overwrite=True)
    options["anonymous"] = True
    assert drained("az://open/x", storage_options=options) == b"open"
    for mode, url in (("rb", az.url("x")), ("wb", "az://open/x")):
        with pytest.raises(SourceError, match=r"40[134]"), wds.gopen(url, mode, storage_options=options) as stream:
            stream.write(b"x")


@pytest.mark.parametrize("who", [
    {"account_key": CANARY}, {"sas_token": f"sig={CANARY}"}, {"account_key": "no-base64!"},
    {"connection_string": f"AccountName=a;AccountKey={CANARY}"}, {"connection_string": CANARY},
])  # fmt: skip
def test_no_secret_is_shown(az, options, waits, caplog, who):
    """No failure shows keys or signatures: not in texts, tracebacks with causes, logs or pickles."""
    caplog.set_level(logging.DEBUG)
    shown = []
    host = az.running.endpoint.removeprefix("http://").partition("/")[0]
    for fault in (None, Fault("busy"), Fault("reset")):
        with FaultyProxy(host, lambda _method, _path, fault=fault: fault) as way:  # type: ignore[misc]
            given = {**who, "endpoint_url": f"{way.url}/{azure_server.ACCOUNT}"}
            for mode in ("rb", "wb"):
                with pytest.raises((SourceError, UsageError)) as caught:
                    with wds.gopen(az.url("x"), mode, attempts=2, storage_options=given) as stream:
                        stream.write(b"x")
                shown.append("".join(traceback.format_exception(caught.value)))
                shown.append(repr(pickle.dumps(caught.value)) + repr(caught.value.__dict__))
    assert CANARY not in "".join(shown) + caplog.text
    assert "no-base64" not in "".join(shown) + caplog.text


def test_a_signature_that_has_expired(az, options):
    """It is refused, and the error says what may be wrong."""
    az.put("expired", b"x")
    with pytest.raises(SourceError, match="403.*the key or the signature is wrong"):
        wds.gopen(az.url("expired"), storage_options={**options, "sas_token": sas(hours=-1)})


def test_a_key_that_is_rotated(az, options, waits, monkeypatch, tmp_path):
    """A key that is refused is read once more from where it is."""
    az.put("rotated", b"rotated")
    file = tmp_path / "key"
    file.write_text(CANARY)
    forget = azure_client.forget_token

    def renewed(service, used):
        file.write_text(azure_server.KEY)
        forget(service, used)

    monkeypatch.setattr(azure_client, "forget_token", renewed)
    assert drained(az.url("rotated"), storage_options={**options, "account_key": f"file:{file}"}) == b"rotated"
    assert len(waits) == 1


class Guarded(Answering):
    """A blob for whoever has the right token; azurite takes tokens over https only."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        """Send it."""
        good = self.headers.get("Authorization") == f"Bearer {self.server.token}"
        self.send(200 if good else 401, b"guarded" if good else b"", ETag='"1"')

    def do_PUT(self):
        """Take a block or a list of blocks; after the planned number of blocks another token is the right one."""
        self.rfile.read(int(self.headers["Content-Length"]))
        sent = self.headers.get("Authorization")
        with self.server.counting:
            self.server.blocks += 1
            if self.server.blocks == self.server.turn:
                self.server.token = "token-2"
            good = sent == f"Bearer {self.server.token}"
        if "comp=blocklist" not in self.path:
            time.sleep(0.05)  # the blocks of other threads are refused, too
        self.send(201 if good else 401)


class Token(NamedTuple):
    """What a credential gives."""

    token: str
    expires_on: float


class Credential:
    """Gives tokens as ``azure-identity`` does."""

    def __init__(self, seconds=3600):
        self.given, self.seconds, self.error = 0, seconds, None

    def get_token(self, scope):
        """Give one."""
        assert scope == "https://storage.azure.com/.default"
        if self.error is not None:
            raise self.error
        self.given += 1
        return Token(f"token-{self.given}", time.time() + self.seconds)


@pytest.fixture
def guarded():
    """A service that takes tokens."""
    with Listening(Guarded, token="token-1", blocks=0, turn=0, counting=threading.Lock()) as server:
        server.options = {"account_name": "test", "endpoint_url": server.url}
        yield server


def test_tokens(guarded, waits):
    """A token is fetched once, anew when it expires, and anew where the service refuses it."""
    options = {**guarded.options, "credential": Credential()}
    for _ in range(2):
        assert drained("az://c/x", storage_options=options) == b"guarded"
    assert options["credential"].given == 1
    guarded.token = "token-2"
    assert drained("az://c/x", storage_options=options) == b"guarded"
    guarded.token = "another"
    with pytest.raises(SourceError, match="401"):
        wds.gopen("az://c/x", storage_options=options)
    brief = {**guarded.options, "credential": Credential(seconds=60)}
    for number in (1, 2):
        guarded.token = f"token-{number}"
        assert drained("az://c/x", storage_options=brief) == b"guarded"


def test_a_token_that_is_good_for_some_minutes(guarded, waits):
    """Where none can be fetched before it expires it is used until then."""
    options = {**guarded.options, "credential": Credential(seconds=60)}
    assert drained("az://c/x", storage_options=options) == b"guarded"
    options["credential"].error = ValueError("no way to the service of tokens")
    assert drained("az://c/x", storage_options=options) == b"guarded"
    azure_client._token_caches.clear()
    with pytest.raises(SourceError, match="no way to the service of tokens"):
        wds.gopen("az://c/x", storage_options=options)


@pytest.mark.parametrize("turn", [1, 2, 5, 9])
def test_a_token_that_expires_while_blocks_go_up(guarded, waits, turn):
    """Blocks that several threads send are refused together: each is sent again, and one token is fetched for all."""
    options = {**guarded.options, "credential": Credential()}
    guarded.turn = turn
    with wds.gopen("az://c/x", "wb", storage_options=options, part_bytes=1000) as stream:
        stream.write(bytes(12_000))
    assert options["credential"].given == 2
    assert 13 < guarded.blocks <= 13 + 4


def test_readers_that_are_refused_together(guarded, waits):
    """Sixteen threads find out that a token has expired; one of them fetches another."""
    options = {**guarded.options, "credential": Credential()}
    assert drained("az://c/x", storage_options=options) == b"guarded"
    guarded.token = "token-2"
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: drained("az://c/x", storage_options=options), range(16)))
    assert found == [b"guarded"] * 16
    assert options["credential"].given == 2


def test_tokens_that_cannot_be_had(guarded, waits):
    """What the credential says is told; what may be over soon is tried again."""
    exceptions = pytest.importorskip("azure.core.exceptions")
    options = {**guarded.options, "credential": Credential()}
    options["credential"].error = exceptions.ClientAuthenticationError("run az login")
    with pytest.raises(SourceError, match="no token for Azure Storage.*run az login"):
        wds.gopen("az://c/x", storage_options=options)
    assert not waits
    options["credential"].error = exceptions.ServiceRequestError("no network")
    with pytest.raises(SourceError, match="after 8 attempts.*no network"):
        wds.gopen("az://c/x", storage_options=options)


def test_tokens_are_not_sent_in_the_open():
    """Over http a token goes to this machine only."""
    options = {"account_name": "test", "endpoint_url": "http://storage.example", "credential": Credential()}
    with pytest.raises(ConfigError, match="https only"):
        wds.gopen("az://c/x", storage_options=options)


def test_credentials_of_this_machine(monkeypatch):
    """Without key and signature, azure-identity is asked; where it finds nothing, the error says what to do."""
    pytest.importorskip("azure.identity")
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    azure_client._token_caches.clear()
    with pytest.raises(SourceError, match="az login"):
        wds.gopen("az://c/x", storage_options={"account_name": "test"})


def test_two_writers_of_one_blob(az):
    """Their blocks do not mix: the first that is closed is there whole, the other is told."""
    first, second = (wds.gopen(az.url("two"), "wb", part_bytes=PART) for _ in range(2))
    first.write(b"1" * 2 * PART)
    second.write(b"2" * 3 * PART)
    for stream in (first, second):
        for part in stream._parts:
            part.result()
    first.close()
    with pytest.raises(SourceError, match="another program wrote the same blob"):
        second.close()
    assert az.get("two") == b"1" * 2 * PART


def test_names_that_are_none(az):
    """What Azure cannot hold is refused before anything is sent."""
    for url in ("az://shards/a/../b", "az://shards/./b"):
        with pytest.raises(UsageError, match="no parts"):
            wds.gopen(url)
    with pytest.raises(NotFound, match="check the container's name"):
        wds.gopen("az://absent/b")


def test_without_azure_identity():
    """The error names the extra."""
    code = (
        "import sys; sys.modules['azure.identity'] = None\n"
        "import webdataset as wds\n"
        "try: wds.gopen('az://c/b', storage_options={'account_name': 'test'})\n"
        "except ImportError as error: print(error)"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AZURE_")}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "[azure]" in shown.stdout
