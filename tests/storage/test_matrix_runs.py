"""Runs drawn from seeds: every scheme, every way of reading; equal bytes or a typed error.

``MATRIX_RUNS_SHARE`` is the percentage of a thousand seeds that is played: 25, unless it says otherwise. Nearly all of
their time is waiting for connections that are silent.
"""

import contextlib
import os
import threading

import pytest

import webdataset as wds
from support import readings
from support.proxy import KINDS, planned, seeded
from support.readings import digests_of, shard
from webdataset.core.errors import NoRandomAccess, SourceError, WebDatasetError
from webdataset.core.seeds import make_rng
from webdataset.storage import prefetch_worker

BODY, OTHER = (shard(seed, samples=8, size_bytes=12_000) for seed in (1, 2))
SIZE = len(BODY)
KNOWN = {digest: name for name, content in (("body", BODY), ("other", OTHER)) for digest in digests_of(content)}
KEY = "runs.tar"
RUNS = {
    "http": 220, "https": 120,
    "s3": 150, "gs": 180, "az": 60, "hf": 130, "ais": 120, "ssh": 8, "fsspec": 6, "memory": 6,
}  # fmt: skip
"""Scheme to the number of its seeds; where a connection takes half a second, there are fewer of them."""
SHARE = int(os.environ.get("MATRIX_RUNS_SHARE", "25"))
RUNS_PLAYED = {name: max(6, count * SHARE // 100) for name, count in RUNS.items()}
BLOCK = 25
BLOCKS = [
    (name, start, min(start + BLOCK, count)) for name, count in RUNS_PLAYED.items() for start in range(0, count, BLOCK)
]
WAYS = ("streamed", "streamed", "several", "ranged", "sampled", "ahead", "indexed", "cached")


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Waits are a thousand times shorter; nobody waits for a byte longer than 0.1 s."""
    return readings.impatient(monkeypatch.setattr, 0.1, share=0.001)


def read(way, target, folder, seed):
    """Return the digest of what one way of reading gives."""
    if way == "several":
        with pytest.MonkeyPatch.context() as patch:
            readings.starving(patch.setattr)
            return readings.streamed(target)
    if way == "ahead":
        return ahead(target)
    if way == "ranged":
        return readings.ranged(target, seed=seed, size_bytes=20_000)
    if way == "cached":
        return readings.cached(target, folder / str(seed))
    return {"streamed": readings.streamed, "sampled": readings.sampled, "indexed": readings.indexed}[way](target)


def ahead(target):
    """Read the shard three times in a row, the later ones ahead; where one differs from another, none is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch_worker, "FAR_SECONDS", -1.0)
        dataset = wds.WebDataset([target.url] * 3, shardshuffle=False, storage_options=target.options)
        samples = list(dataset)
    count = len(samples) // 3
    found = {readings.digest_of(samples[start : start + count]) for start in range(0, 3 * count, count)}
    assert len(samples) == 3 * count
    return found.pop() if len(found) == 1 else "a mixture of versions, each whole" if count == 8 else "a mixture"


@contextlib.contextmanager
def proxied(scheme):
    """Put a proxy before a scheme, one for all runs; None where a proxy makes no sense."""
    if not scheme.web:
        yield None
        return
    with scheme.broken(planned(()), KEY) as made:
        yield made


class Swap:
    """Replaces the object, in a run that may; a connection of an earlier run that breaks now finds it too late."""

    def __init__(self, scheme, *, may):
        self._scheme, self._lock, self._over = scheme, threading.Lock(), not may

    def __call__(self):
        """Replace it."""
        with self._lock:
            if not self._over:
                self._scheme.put(KEY, OTHER)

    def end(self):
        """Put the first object back."""
        with self._lock:
            self._over = True
            self._scheme.put(KEY, BODY)


@contextlib.contextmanager
def faulty(scheme, made, seed):
    """Put what the seed says before a scheme; yields the target, and whether the object may be replaced."""
    rng = make_rng("run", seed)
    if made is not None:
        (proxy, target), swapping = made, rng.random() < 0.25
        kinds = [kind for kind in KINDS if kind not in ("expired", "swapped")] + ["swapped"] * swapping
        proxy.plan, proxy.swap = seeded(seed, kinds, size=SIZE, rate=0.6, most=4), Swap(scheme, may=swapping)
        proxy.careless = scheme.heeds and rng.random() < 0.3
        yield target, swapping
        proxy.plan, proxy.careless = planned(()), False
        if swapping:
            proxy.swap.end()
    elif scheme.name == "memory":
        yield scheme.target(KEY), False
    else:
        plan = [rng.choice((rng.randrange(6000), rng.randrange(SIZE))) for _ in range(rng.randrange(1, 3))]
        with scheme.torn(plan, KEY, kind=rng.choice(("reset", "end"))) as (_, target):
            yield target, False


def run(scheme, made, seed, folder):
    """Make one run; return what came of it: the name of a version, or an error."""
    way = WAYS[seed % len(WAYS)]
    with faulty(scheme, made, seed) as (target, swapping):
        try:
            found = read(way, target, folder, seed)
        except WebDatasetError as error:
            found = error
    if isinstance(found, WebDatasetError):
        assert found.url is not None, f"{scheme.name}, seed {seed}, {way}: {found!r} has no url"
        return found, swapping
    if found == "a mixture of versions, each whole":
        assert swapping
        return "other", swapping
    assert found in KNOWN, f"{scheme.name}, seed {seed}, {way}: bytes that are no version of the object"
    assert KNOWN[found] == "body" or swapping, f"{scheme.name}, seed {seed}, {way}: an object that was not there"
    return KNOWN[found], swapping


def test_there_are_a_thousand():
    """In all, over all schemes; and each scheme has some, whatever the share."""
    assert sum(RUNS.values()) == 1000
    assert sum(stop - start for _, start, stop in BLOCKS) == sum(RUNS_PLAYED.values()) >= 10 * SHARE
    assert {name for name, _, _ in BLOCKS} == set(RUNS)


@pytest.mark.parametrize(("name", "start", "stop"), BLOCKS)
def test_no_run_differs_in_silence(scheme_of, tmp_path, name, start, stop):
    """Each gives a version of the object, whole, or an error with a url; most give the object that was there."""
    scheme, failed, replaced = scheme_of(name), [], 0
    scheme.put(KEY, BODY)
    with proxied(scheme) as made:
        for seed in range(start, stop):
            outcome, swapping = run(scheme, made, seed, tmp_path)
            if swapping:
                replaced += 1
            elif not isinstance(outcome, str | NoRandomAccess):  # a first answer without ranges: told, and rightly so
                failed.append((seed, outcome))
    assert len(failed) <= 1 + 0.06 * (stop - start), failed
    assert replaced <= 1 + 0.5 * (stop - start)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_seed_replays(scheme_of, tmp_path, seed):
    """The same seed gives the same requests and faults."""
    scheme = scheme_of("http")
    scheme.put(KEY, BODY)
    seen = []
    for _ in range(2):
        plan = seeded(seed, ("reset", "cut", "busy", "misplaced"), size=SIZE, rate=0.7)
        with scheme.broken(plan, KEY) as (proxy, target):
            assert readings.streamed(target) in KNOWN
        seen.append([(request.method, request.fault) for request in proxy.passed])
    assert seen[0] == seen[1]
    assert any(fault for _, fault in seen[0])


@pytest.mark.parametrize("name", ["http", "https", "s3", "gs", "az", "hf", "ais"])
def test_cuts_cost_few_bytes(scheme_of, name):
    """At 30 % of the answers cut, at most 1.3 times the bytes are sent."""
    scheme = scheme_of(name)
    scheme.put(KEY, BODY)
    cut = 0
    with scheme.broken(planned(()), KEY) as (proxy, target):
        for seed in range(100, 130):
            proxy.plan = seeded(seed, ("cut", "reset"), size=SIZE, rate=0.3)
            assert KNOWN[readings.streamed(target)] == "body"
        cut = sum(request.fault is not None for request in proxy.passed)
    assert cut >= 0.2 * len(proxy.passed)
    assert SIZE * 30 <= proxy.sent <= 1.3 * SIZE * 30


@pytest.mark.parametrize("name", ["ssh", "fsspec"])
def test_cut_wires_cost_few_bytes(scheme_of, monkeypatch, name):
    """One connection of two is cut: at most 1.3 times the bytes leave the server. Some MiB were on their way."""
    readings.impatient(monkeypatch.setattr, 60.0)
    scheme, body = scheme_of(name), BODY * {"ssh": 300, "fsspec": 30}[name]
    scheme.put(KEY, body)
    with scheme.torn([len(body) // 2], KEY) as (wire, target):
        assert readings.streamed(target, size_bytes=1 << 20) == digests_of(body)[0]
    assert 2 <= wire.connections <= 4
    assert len(body) <= wire.sent <= 1.3 * len(body)


def test_the_detector_detects(scheme_of):
    """One bit that differs would be noticed: the runs can fail."""
    scheme = scheme_of("http")
    scheme.put(KEY, BODY)

    damaged = bytearray(BODY)
    damaged[SIZE // 2] ^= 1
    scheme.put(KEY, bytes(damaged))
    assert readings.streamed(scheme.target(KEY)) not in KNOWN
    assert readings.sampled(scheme.target(KEY)) not in KNOWN
    with pytest.raises(SourceError):
        readings.streamed(scheme.target("absent.tar"))
