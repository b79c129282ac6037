"""A server that lives and sends nothing is raced by another one: the first batch wins; differing servers are told."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from support.data_servers import run_server, write_served_shards
from webdataset.core.errors import StateMismatch
from webdataset.serving.lane_progress import HedgeRule, count_allowed_hedges
from webdataset.serving.server_lane import LaneSettings

STALLS_AT = "2-011"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the url of the shards."""
    return write_served_shards(tmp_path_factory.mktemp("served"))


class Stall:
    """A function of samples that waits at one of them, at the first server that comes there."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.waits = threading.Event()

    def __call__(self, sample: Any) -> Any:
        """Return the sample."""
        if sample["__key__"] == STALLS_AT and not self.waits.is_set():
            self.waits.set()
            self.goes_on.wait(60)
        return sample


@pytest.fixture
def stall() -> Iterator[Stall]:
    """Return a function that stalls, and let it go on at the end."""
    made = Stall()
    yield made
    made.goes_on.set()


def make_dataset(shards: str, function: Callable[[Any], Any], keep: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return an elastic dataset of keys and arrays, with functions of its own."""
    dataset = wds.WebDataset(shards, shardshuffle=10, seed=5).select(keep).map(function).shuffle(12).decode()
    return dataset.to_tuple("__key__", "npy").elastic(6)


def read_locally(shards: str, batch_size: int, **options: Any) -> list[list[str]]:
    """Return the keys of a local loader's batches."""
    return [list(keys) for keys, _ in wds.Loader(make_dataset(shards, lambda sample: sample), batch_size, **options)]


@pytest.mark.parametrize("options", [{}, {"exact": True}])
@pytest.mark.parametrize("workers", [(0, 0), (2, 1)])
def test_a_slow_server_is_raced(shards: str, stall: Stall, options: dict[str, Any], workers: tuple[int, int]) -> None:
    """The other server's batches come, each once and in order; the slow one's is compared, and its lane closed."""
    expected = read_locally(shards, 2, **options)
    with ExitStack() as opened:
        hows = [LaneSettings(workers=number, mode="threads", prefetch=1) for number in workers]
        servers = [opened.enter_context(run_server(make_dataset(shards, stall), how)) for how in hows]
        urls = [url for _, url in servers]
        loader = wds.RemoteLoader(urls, 2, plain=True, prefetch=1, hedge_seconds=0.2, timeout=60, **options)
        with opened.enter_context(loader) as remote:
            found, positions = [], []
            lane = remote._remote.lane  # noqa: SLF001
            for keys, _ in remote:
                found.append(list(keys))
                positions.append(remote.state_dict()["received"])
                if len(found) == len(expected) - 8:
                    # the comparison of what the slow one makes after all
                    stall.goes_on.set()
                    while lane._second is not None:  # noqa: SLF001
                        time.sleep(0.01)
        assert stall.waits.is_set()
        assert found == expected
        assert positions == list(np.cumsum([len(keys) for keys in expected]))
        assert (lane.hedges.opened, lane.hedges.won) == (1, 1)
        assert sum(server.counts["hedged"] for server, _ in servers) == 1


def test_a_slow_server_that_is_faster_after_all(shards: str) -> None:
    """Where the first server sends before the second one, the second lane is compared and closed."""
    seen: list[int] = []
    second_came = threading.Event()

    def wait(sample: Any) -> Any:
        """The first server waits for the second one, which then waits longer."""
        if sample["__key__"] == STALLS_AT:
            seen.append(1)
            if len(seen) == 1:
                second_came.wait(60)
            elif len(seen) == 2:
                second_came.set()
                time.sleep(0.5)
        return sample

    expected = read_locally(shards, 2)
    with (
        run_server(make_dataset(shards, wait)) as (one, first),
        run_server(make_dataset(shards, wait)) as (two, second),
    ):
        with wds.RemoteLoader([first, second], 2, plain=True, prefetch=1, hedge_seconds=0.2, timeout=60) as remote:
            assert [list(keys) for keys, _ in remote] == expected
            lane = remote._remote.lane  # noqa: SLF001
            assert (lane.hedges.opened, lane.hedges.won) == (1, 0)
        assert one.counts["hedged"] + two.counts["hedged"] == 1


def test_servers_that_differ(shards: str, stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose code drops other samples is found out when its batch is compared; the error names both."""
    # Which server is asked first follows from its port, and one of them stalls before its first batch. A second lane is
    # opened while one stalls, also before all that it had made came; the loser's batch is waited for.
    monkeypatch.setattr(HedgeRule, "is_due", lambda _rule, _waited: stall.waits.is_set())
    monkeypatch.setattr("webdataset.serving.lane_client.COMPARE_SECONDS", 100.0)

    def receive(remote: wds.RemoteLoader) -> None:
        lane = remote._remote.lane  # noqa: SLF001
        for _ in remote:
            if lane.hedges.won:
                stall.goes_on.set()
                # the comparison of what the loser makes after all
                while lane._second is not None:  # noqa: SLF001
                    time.sleep(0.01)

    def drop(digits: str) -> Callable[[Any], bool]:
        return lambda sample: sample["__key__"] == STALLS_AT or sample["__key__"][-1] not in digits

    with run_server(make_dataset(shards, stall, drop("02468"))) as (_, one):
        with run_server(make_dataset(shards, stall, drop("13579"))) as (_, two):
            with wds.RemoteLoader([one, two], 2, plain=True, prefetch=0, hedge_seconds=0.2, timeout=60) as remote:
                with pytest.raises(StateMismatch, match="two data servers made different batches") as caught:
                    receive(remote)
            assert one in str(caught.value)
            assert two in str(caught.value)


def test_one_server_is_waited_for(shards: str, stall: Stall) -> None:
    """With a single server, or without hedging, a slow one is waited for."""
    expected = read_locally(shards, 2)
    for urls, seconds in ((1, 0.1), (2, None)):
        stall.waits.clear()
        stall.goes_on.clear()
        with ExitStack() as opened:
            servers = [opened.enter_context(run_server(make_dataset(shards, stall))) for _ in range(urls)]
            addresses = [url for _, url in servers]
            with wds.RemoteLoader(addresses, 2, plain=True, prefetch=1, hedge_seconds=seconds, timeout=60) as remote:
                threading.Timer(0.8, stall.goes_on.set).start()
                assert [list(keys) for keys, _ in remote] == expected
            assert sum(server.counts["opened"] for server, _ in servers) == 1


def test_when_a_second_lane_is_opened() -> None:
    """After five times the usual, a second at least; not before some parts are known; one for twenty parts at most."""
    rule = HedgeRule(1.0)
    assert not rule.is_due(29)
    assert rule.is_due(31)
    for _ in range(19):
        rule.note_part(0.5)
    rule.note_part(20.0)
    assert not rule.is_due(2.4)
    assert rule.is_due(2.6)
    rule.opened = 2
    assert not rule.is_due(60)
    for _ in range(20):
        rule.note_part(0.01)
    assert rule.is_due(60)
    quick = HedgeRule(1.0)
    for _ in range(50):
        quick.note_part(0.001)
    assert not quick.is_due(0.9)
    assert quick.is_due(1.1)
    assert not HedgeRule(None).is_due(1e9)


@pytest.mark.parametrize(("lanes", "allowed"), [(0, 1), (19, 1), (40, 2), (64, 3), (200, 10)])
def test_how_many_a_server_takes(lanes: int, allowed: int) -> None:
    """A twentieth of its lanes, one at least."""
    assert count_allowed_hedges(lanes) == allowed


def test_an_overload_does_not_double_itself(shards: str) -> None:
    """Where all trainers of a server find it slow at once, the other one takes one of their second lanes, not all."""
    expected = read_locally(shards, 2)
    stalled: set[str] = set()
    goes_on = threading.Event()

    def wait(sample: Any) -> Any:
        """All lanes of this server wait."""
        if sample["__key__"] == STALLS_AT:
            stalled.add(threading.current_thread().name)
            goes_on.wait(60)
        return sample

    def train(found: list[list[str]], urls: list[str]) -> None:
        with wds.RemoteLoader(urls, 2, plain=True, prefetch=1, hedge_seconds=0.2, silence_seconds=1, timeout=60) as one:
            found.extend(list(keys) for keys, _ in one)

    with run_server(make_dataset(shards, wait)) as (slow, one), run_server(make_dataset(shards, wait)) as (other, two):
        results: list[list[list[str]]] = [[] for _ in range(4)]
        threads = [threading.Thread(target=train, args=(found, [one, two])) for found in results]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while slow.counts["hedged"] + other.counts["hedged"] < 1:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(1.5)
        seconds = [sum(lane.hedge for lane in list(server._lanes.values())) for server in (slow, other)]  # noqa: SLF001
        assert max(seconds) <= 1
        goes_on.set()
        for thread in threads:
            thread.join(60)
        assert results == [expected] * 4
