"""Every fault that a way to a shard can have, for every scheme: all bytes, each once and in order, or a typed error."""

import contextlib
import threading
from pathlib import Path

import pytest

import webdataset as wds
from support import readings
from support.fault_matrix import CHANGED, EQUAL, MATRIX, as_table, cells
from support.gcs_server import Gate
from support.proxy import Fault, planned
from support.readings import digests_of, shard
from support.scheme_servers import NAMES
from support.schemes import Target
from webdataset.core import errors
from webdataset.testing.sources import Answering, Listening

BODY, OTHER = shard(1), shard(2)
BYTES, SAMPLES = digests_of(BODY)
AT = 150_000
KEY = "matrix.tar"
ANSWERS = {
    "reset": "reset", "short end": "cut", "stall": "stall", "5xx burst": "busy", "429 with Retry-After": "throttled",
    "ignored Range": "rangeless", "wrong Content-Range": "misplaced",
}  # fmt: skip


@pytest.fixture(autouse=True)
def waits(monkeypatch, request):
    """Waiting is noted, and a hundred times shorter; nobody waits for a byte longer than 0.4 s.

    But where the object is replaced after the first bytes: whoever asks again before that is done reads the old one.
    """
    return readings.impatient(monkeypatch.setattr, 20 if "[object-swapped" in request.node.name else 0.4)


@pytest.fixture
def stage(scheme_of):
    """Return a function from a scheme's name to the scheme, with the object there."""

    def get(name):
        scheme = scheme_of(name)
        scheme.put(KEY, BODY)
        return scheme

    return get


class Leading(Answering):
    """Sends everybody elsewhere."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        """Say where."""
        self.send(302, Location=f"{self.server.announced}{self.path}")


@contextlib.contextmanager
def answered(scheme, fault):
    """Twice a broken answer, after one that was cut; 503 and 429 come three times."""
    kind = ANSWERS[fault]
    wait = 1 if kind == "throttled" else None
    last = {"busy": [Fault(kind)] * 3, "throttled": [Fault(kind, 0, wait)] * 3}.get(kind, [Fault(kind, 10)])
    with scheme.broken(planned([Fault("cut", AT), Fault(kind, 100_000, wait), *last]), KEY) as (proxy, target):
        yield target
        assert len(proxy.passed) >= (2 if kind == "rangeless" else 4)  # that answer holds all the rest


@contextlib.contextmanager
def wired(scheme, kind, *, secure=False):
    """The wire is cut in the middle, at once, and in the middle again."""
    with scheme.torn([AT, 100, 200_000], KEY, kind=kind, secure=secure) as (wire, target):
        yield target
        assert wire.connections > 2


@contextlib.contextmanager
def swapped(scheme, *, careless):
    """The object is replaced, and the connection lost."""
    if scheme.name == "memory":
        yield scheme.target(KEY)
    elif scheme.web:
        plan = planned([Fault("swapped", AT)])
        with scheme.broken(plan, KEY, swap=lambda: scheme.put(KEY, OTHER), careless=careless) as (_, target):
            yield target
    else:
        with scheme.torn([350_000], KEY) as (_, target):  # not within the first piece, which comes with the opening
            yield target


@contextlib.contextmanager
def expiring(scheme, tmp_path, *, renewed):
    """The credentials end in the middle; others are in their file by then, or not."""
    file, turned = tmp_path / "token", []
    file.write_text("old")

    def turn():
        turned.append(1)
        if renewed:
            file.write_text("new" if scheme.name != "az" else scheme.signature())

    plan = planned([Fault("swapped", AT)])
    if scheme.name in ("http", "https", "gs"):
        with Gate(scheme.cleartext, tokens=["old"]) as gate:

            def swap():
                turn()
                gate.tokens = ["new"]

            with scheme.broken(plan, KEY, swap=swap, upstream=gate.url.removeprefix("http://")) as (_, target):
                options = {name: given for name, given in (target.options or {}).items() if name != "anonymous"}
                yield Target(target.url, {**options, "token": f"file:{file}"})
    elif scheme.name in ("hf", "ais"):
        before, scheme.server.token = scheme.server.token, "old"

        def swap():
            turn()
            scheme.server.token = "new"

        with scheme.broken(plan, KEY, swap=swap) as (_, target):
            yield Target(target.url, {**target.options, "token": f"file:{file}"})
        scheme.server.token = before
    else:
        kind = {"s3": "expired", "az": "denied"}[scheme.name]
        refusals = [Fault(kind)] * (1 if renewed else 99)
        if scheme.name == "az":
            file.write_text(scheme.signature())
        with scheme.broken(planned([Fault("swapped", AT), *refusals]), KEY, swap=turn) as (_, target):
            secret = {"az": {"sas_token": f"file:{file}"}}.get(scheme.name, {})
            yield Target(target.url, {**target.options, **secret})
    assert turned


@contextlib.contextmanager
def led_astray(scheme):
    """Whoever has the bytes goes away in the middle; whoever names it names another by then."""
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Listening(Leading)) if scheme.name == "http" else None

        def announce(address):
            if leader is None:
                scheme.announce(address)
            else:
                leader.announced = address or scheme.server.plain

        def go():
            proxy._server.stop()
            gone.append(1)
            if len(gone) == 1:
                threading.Timer(0.05, announce, [None]).start()

        gone = []
        proxy, target = stack.enter_context(scheme.broken(planned([Fault("swapped", AT)]), KEY, swap=go))
        announce(proxy.url)
        yield target if leader is None else Target(f"http://127.0.0.1:{leader.server_port}/{KEY}")
        assert gone


def broken(fault, scheme, tmp_path):
    """Return the target with a fault before it."""
    if fault in ANSWERS:
        if scheme.web:
            return answered(scheme, fault)
        return wired(scheme, {"reset": "reset", "short end": "end", "stall": "silence"}[fault])
    if fault.startswith("object swapped"):
        return swapped(scheme, careless=fault.endswith("ignored"))
    if fault.startswith("token expired"):
        return expiring(scheme, tmp_path, renewed=fault.endswith("there"))
    if fault == "target of the redirect gone":
        return led_astray(scheme)
    return wired(scheme, "reset", secure=fault == "TLS aborted")


def drained(scheme, fault, target):
    """Read the object whole; where nothing but us can replace it, replace it on the way."""
    between = fault.startswith("object swapped") and not (scheme.web and scheme.name != "memory")
    with wds.gopen(target.url, storage_options=target.options) as stream:
        content = stream.read(1000)
        if between:
            scheme.put(KEY, OTHER)
        pieces = [content, *iter(lambda: stream.read(50_000), b"")]
    return b"".join(pieces)


def test_every_cell_is_there():
    """Each scheme has a cell in each row: an outcome, or the reason why there is none."""
    assert [list(row) for row in MATRIX.values() if sorted(row) != sorted(NAMES)] == []
    assert len(cells()) > 90


@pytest.mark.parametrize(("fault", "name", "outcome"), cells(), ids=lambda text: text.replace(" ", "-"))
def test_cell(stage, waits, tmp_path, fault, name, outcome):
    """What the matrix says, and nothing else; what failed once, fails again, and names url and place."""
    scheme = stage(name)
    if outcome == EQUAL:
        with broken(fault, scheme, tmp_path) as target:
            assert drained(scheme, fault, target) == BODY
        assert not waits or waits[0] < 0.2 or fault.startswith(("429", "5xx"))
        return
    kind = getattr(errors, outcome)
    with broken(fault, scheme, tmp_path) as target, pytest.raises(kind) as caught:
        drained(scheme, fault, target)
    assert caught.value.url == target.url
    assert isinstance(caught.value, errors.ShardChanged) == (outcome == CHANGED)


WAYS = {
    "streamed": lambda target, _: readings.streamed(target),
    "ranged": lambda target, _: readings.ranged(target),
    "sampled": lambda target, _: readings.sampled(target),
    "indexed": lambda target, _: readings.indexed(target),
    "cached": lambda target, tmp_path: readings.cached(target, tmp_path / "cache"),
}
MAIN = ["reset", "short end", "stall", "5xx burst", "429 with Retry-After", "ignored Range", "wrong Content-Range"]


def of_shard(faults):
    """Return a plan for requests about the shard itself; indexes beside it are looked for, and are not there."""
    plan = planned(faults)
    return lambda method, path: plan(method, path) if path.partition("?")[0].endswith(KEY) else None


@pytest.mark.parametrize("way", [*WAYS, "over several connections"])
@pytest.mark.parametrize("fault", MAIN)
@pytest.mark.parametrize("name", ["http", "s3"])
def test_every_way_of_reading(stage, tmp_path, monkeypatch, name, fault, way):
    """Streams, ranges, samples, samples by number, the cache, several connections: the same bytes."""
    scheme = stage(name)
    kind = ANSWERS[fault]
    if way not in WAYS:
        readings.starving(monkeypatch.setattr)
    read = WAYS.get(way, WAYS["streamed"])
    first = Fault("cut", AT) if way not in ("ranged", "indexed") else Fault("cut", 5000)
    plan = of_shard([None] * (way == "ranged") + [first, Fault(kind, 9000, 0), Fault(kind, 10, 0)])
    with scheme.broken(plan, KEY) as (_, target):
        assert read(target, tmp_path) in (BYTES, SAMPLES)


@pytest.mark.parametrize("way", [*WAYS, "over several connections"])
@pytest.mark.parametrize("careless", [False, True])
@pytest.mark.parametrize("name", ["http", "s3"])
def test_no_way_of_reading_mixes_two_objects(stage, tmp_path, monkeypatch, name, way, careless):
    """Replaced in the middle: an error, in every way of reading, whether or not the service heeds conditions."""
    scheme, begun, replaced = stage(name), threading.Event(), threading.Event()
    if way not in WAYS:
        readings.starving(monkeypatch.setattr)
    read = WAYS.get(way, WAYS["streamed"])
    plan = of_shard([None] * (way in ("ranged", "indexed")) + [Fault("swapped", 2000 if way == "indexed" else AT)] * 2)

    def in_order(method, path):
        # further connections that are answered before the object is replaced would rightly give the old one
        if way not in WAYS and begun.is_set():
            replaced.wait(10)
        fault = plan(method, path)
        if fault is not None:
            begun.set()
        return fault

    def swap():
        scheme.put(KEY, OTHER)
        replaced.set()

    with scheme.broken(in_order, KEY, swap=swap, careless=careless) as (_, target):
        with pytest.raises(errors.ShardChanged) as caught:
            read(target, tmp_path)
    assert caught.value.url == target.url


def test_the_documentation_shows_this_matrix():
    """The table of the page is the one that is tested."""
    page = Path(__file__).parents[2] / "docs" / "design" / "storage.md"
    assert as_table() in page.read_text()
