"""A RemoteLoader gives what a local Loader gives, with the same states."""

import gc
import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from support.data_servers import INLINE, make_served_dataset, run_server, write_served_shards
from webdataset.core.errors import (
    CodecError,
    DecodingError,
    EncodingError,
    FlowError,
    NoSamples,
    SampleError,
    SourceError,
    StateMismatch,
    UsageError,
    WorkerDied,
)
from webdataset.serving import batch_format
from webdataset.serving.server_lane import Lane, LaneSettings


def connect(url: str | list[str], batch_size: int | None = 7, **options: Any) -> wds.RemoteLoader:
    """Return a loader of a plain server."""
    return wds.RemoteLoader(url, batch_size, **{"plain": True, "timeout": 60, "silence_seconds": 20, **options})


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the url of the shards."""
    return write_served_shards(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served(shards: str) -> Iterator[str]:
    """Return the url of a server."""
    with run_server(make_served_dataset(shards)) as (_, url):
        yield url


def as_plain(batches: list[Any]) -> list[Any]:
    """Return batches as values that can be compared."""
    return [tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in batch) for batch in batches]


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(7, {}), (7, {"drop_last": True}), (7, {"exact": True}), (1, {}), (500, {}), (None, {})],
    ids=str,
)
def test_order(shards: str, served: str, batch_size: int | None, options: dict[str, Any]) -> None:
    """Two epochs, and one that is chosen, are those of a local loader, batch by batch."""
    local = wds.Loader(make_served_dataset(shards), batch_size, **options)
    with connect(served, batch_size, **options) as remote:
        for _ in range(2):
            assert as_plain(list(remote)) == as_plain(list(local))
        local.set_epoch(5)
        remote.set_epoch(5)
        assert as_plain(list(remote)) == as_plain(list(local))
        assert remote.stats().samples == local.stats().samples
        assert remote.stats().drops == local.stats().drops
        assert bool(local.stats().drops) == ("drop_last" in options)
        assert remote.state_dict() == local.state_dict()


@pytest.mark.parametrize("exact", [False, True])
def test_states_move(shards: str, served: str, exact: bool) -> None:  # noqa: FBT001
    """At each batch the state is that of a local loader, and either goes on from the state of the other."""
    dataset = make_served_dataset(shards)
    whole = as_plain(list(wds.Loader(dataset, 7, exact=exact)))
    local = wds.Loader(make_served_dataset(shards), 7, exact=exact)
    with connect(served, exact=exact) as remote, connect(served, exact=exact) as other:
        pairs = zip(local, remote, strict=True)
        for count, _ in enumerate(pairs, 1):
            state = remote.state_dict()
            assert state == local.state_dict()
            state = json.loads(json.dumps(state))
            if count in (1, 5, len(whole) - 2, len(whole) - 1):
                other.load_state_dict(local.state_dict())
                assert as_plain(list(other)) == whole[count:]
                resumed = wds.Loader(make_served_dataset(shards), 7, exact=exact)
                resumed.load_state_dict(state)
                assert as_plain(list(resumed)) == whole[count:]


def test_epoch_border(shards: str, served: str) -> None:
    """A state after the last batch goes on with the next epoch, and the first state is that of a local loader."""
    local = wds.Loader(make_served_dataset(shards), 7)
    with connect(served) as remote, connect(served) as other:
        assert remote.state_dict() == local.state_dict()
        list(zip(local, remote, strict=True))
        other.load_state_dict(remote.state_dict())
        assert as_plain(list(other)) == as_plain(list(local))
        assert other.epoch == 2


def _read_rank(monkeypatch: pytest.MonkeyPatch, loader: Any, rank: int, ranks: int, most: int, state: Any) -> Any:
    monkeypatch.setenv("WDS_RANK", str(rank))
    monkeypatch.setenv("WDS_WORLD_SIZE", str(ranks))
    if state is not None:
        loader.load_state_dict(state)
    keys: list[str] = []
    for count, batch in enumerate(loader, 1):
        keys += batch[0]
        if count == most:
            break
    return keys, loader.state_dict()


def test_ranks_change(shards: str, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks stop, three go on from their merged state: each sample comes once, to the ranks as it would locally."""
    found = []
    for make in (lambda: connect(served, 5), lambda: wds.Loader(make_served_dataset(shards), 5)):
        begun = [_read_rank(monkeypatch, make(), rank, 2, 3, None) for rank in range(2)]
        merged = wds.merge_states([state for _, state in begun])
        rest = [_read_rank(monkeypatch, make(), rank, 3, 1000, merged)[0] for rank in range(3)]
        keys = [*(key for each, _ in begun for key in each), *(key for each in rest for key in each)]
        assert len(keys) == len(set(keys)) == 30 + 26 + 22 + 18
        found.append((begun, rest))
    assert found[0] == found[1]


def test_rank_with_nothing_left(shards: str, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has nothing left of an epoch that goes on elsewhere gives nothing, as it does locally."""
    ended = _read_rank(monkeypatch, wds.Loader(make_served_dataset(shards), 1), 0, 6, 1000, None)[1]
    others = [
        _read_rank(monkeypatch, wds.Loader(make_served_dataset(shards), 1), rank, 6, 1, None)[1] for rank in range(1, 6)
    ]
    merged = wds.merge_states([ended, *others])
    local = _read_rank(monkeypatch, wds.Loader(make_served_dataset(shards), 1), 0, 6, 1000, merged)
    with connect(served, 1) as remote:
        assert _read_rank(monkeypatch, remote, 0, 6, 1000, merged) == local


def test_with_epoch(shards: str) -> None:
    """``with_epoch`` gives as many samples as locally, over several epochs."""
    endless = wds.WebDataset(shards, resampled=True, seed=5).decode().to_tuple("__key__")
    dataset = endless.with_epoch(24).elastic(6)
    local = wds.Loader(dataset, 4)
    with run_server(dataset) as (_, url), connect(url, 4) as remote:
        for _ in range(3):
            given = list(local)
            assert len(given) == 6
            assert list(remote) == given


def test_other_states_are_refused(shards: str, served: str) -> None:
    """A state of another dataset, or one that was changed, is refused in words."""
    other = wds.Loader(make_served_dataset(shards, streams=5), 7)
    state = other.state_dict()
    with connect(served) as remote:
        with pytest.raises(StateMismatch, match="streams 5"):
            remote.load_state_dict(state)
        good = remote.state_dict()
        with pytest.raises(StateMismatch, match="changed"):
            remote.load_state_dict({**good, "received": 3})
        assert len(list(remote)) == 14


def test_servers_of_other_datasets(shards: str) -> None:
    """A server of another dataset is left for the right one; where all refuse, the error has all their answers."""
    whole = as_plain(list(wds.Loader(make_served_dataset(shards), 7)))
    others = [make_served_dataset(shards, streams=5), make_served_dataset(shards, seed=6)]
    with run_server(make_served_dataset(shards)) as (_, right), run_server(others[0]) as (_, one):
        with run_server(others[1]) as (_, two):
            with connect(right) as first:
                header = first._remote.describe()  # noqa: SLF001
            with connect([right, one, two], silence_seconds=0.5) as remote:
                remote._remote._header = header  # noqa: SLF001  as known from before
                assert as_plain(list(remote)) == whole
            with connect([one, two], silence_seconds=0.5) as remote:
                remote._remote._header = header  # noqa: SLF001  as known from before
                with pytest.raises(StateMismatch, match=r"no data server takes this run.*(streams 5|seed 6).*another"):
                    list(remote)


def test_no_server(shards: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without a server the loader waits; after ``timeout`` it says whom it asked."""
    with run_server(make_served_dataset(shards)) as (_, url):
        remote = connect(url, 2, timeout=1.5, silence_seconds=0.6, prefetch=1)
        iterator = iter(remote)
        next(iterator)
    with pytest.raises(SourceError, match=f"no data server was heard.*{url}.*one with other keys or --plain"):
        list(iterator)
    # it is asked again after each silence, which is told once
    assert caplog.text.count("left tcp") == 1
    remote.close()


def test_slow_restore(shards: str) -> None:
    """A server that needs long for its first batch lives: it is not left."""

    def wait(sample: Any) -> Any:
        if sample["__key__"].endswith("000"):
            time.sleep(0.4)
        return sample

    dataset = wds.WebDataset(shards, seed=1).map(wait).to_tuple("__key__").elastic(2)
    with run_server(dataset) as (server, url), connect(url, 50, silence_seconds=0.3) as remote:
        assert sum(len(batch[0]) for batch in remote) == 96
        assert server.counts["opened"] == 1


def test_errors_of_the_pipeline(shards: str) -> None:
    """What a pipeline raises comes as the same class with its places; the state before it holds."""

    def fail(sample: Any) -> Any:
        if sample["__key__"] == "1-003":
            raise DecodingError("s3://host/x?token=secret5", "1-003", "jpg", message="no such picture")
        return sample

    dataset = wds.WebDataset(shards, seed=1).map(fail).to_tuple("__key__").elastic(2)
    with run_server(dataset) as (_, url), connect(url, 4) as remote:
        found: list[Any] = []
        with pytest.raises(DecodingError, match="at the data server: no such picture") as caught:
            found.extend(remote)
        assert caught.value.key == "1-003"
        assert "secret5" not in str(caught.value)
        assert found
        assert remote.state_dict()["received"] == 4 * len(found)
        plain = wds.WebDataset(shards, seed=1).map(lambda sample: 1 / 0).to_tuple("__key__").elastic(2)
    with run_server(plain) as (_, url), connect(url, 4) as remote, pytest.raises(FlowError, match="ZeroDivisionError"):
        list(remote)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exit_in_the_pipeline(shards: str, workers: int) -> None:
    """A function that calls sys.exit ends the lane with an error that says so, and not in silence."""

    def leave(sample: Any) -> Any:
        raise SystemExit("no more")

    dataset = wds.WebDataset(shards, seed=1).map(leave).to_tuple("__key__").elastic(2)
    how = LaneSettings(workers=workers, mode="threads")
    with run_server(dataset, how) as (_, url), connect(url, 4) as remote:
        with pytest.raises(FlowError, match="SystemExit: no more"):
            list(remote)


def test_long_errors(shards: str) -> None:
    """An error whose words and places are long in any script comes, shortened, and does not end the lane in silence."""

    def fail(sample: Any) -> Any:
        raise SampleError("\U0001f600" * 5000, url="中" * 5000, key="\x01" * 5000, field="é" * 5000)

    dataset = wds.WebDataset(shards, seed=1).map(fail).to_tuple("__key__").elastic(2)
    with run_server(dataset) as (_, url), connect(url, 4) as remote, pytest.raises(SampleError) as caught:
        list(remote)
    assert "\U0001f600" * 1000 in str(caught.value)
    assert caught.value.url == "中" * 1000
    assert caught.value.key == "\x01" * 1000


@pytest.mark.parametrize("texts", [False, True])
def test_batches_that_are_too_large(shards: str, monkeypatch: pytest.MonkeyPatch, texts: bool) -> None:  # noqa: FBT001
    """What a line would refuse is refused where it is made, with its size; it is not sent again and again."""
    monkeypatch.setattr(batch_format, "LARGEST_BATCH_BYTES", 1 << 20)
    dataset = wds.WebDataset(shards, seed=1).map(
        lambda sample: {"x": "a" * 300_000 if texts else np.zeros(300_000, np.uint8), "cls": 1}
    )
    with run_server(dataset.elastic(2)) as (_, url):
        with connect(url, 4) as remote, pytest.raises(EncodingError, match="smaller batch_size") as caught:
            list(remote)
        assert caught.value.field == (None if texts else "x")
        with connect(url, 3) as remote:
            assert len(next(iter(remote))["cls"]) == 3


def test_objects_are_refused(shards: str) -> None:
    """An object that cannot be described is refused at the server, by its field's name."""
    dataset = wds.WebDataset(shards, seed=1).map(lambda sample: {"good": 1, "bad": object()}).elastic(2)
    with run_server(dataset) as (_, url), connect(url, 4) as remote:
        with pytest.raises(EncodingError, match="object cannot be sent.*field='bad'") as caught:
            list(remote)
        assert isinstance(caught.value, CodecError)


def test_empty_pass(tmp_path: Path) -> None:
    """Shards without a sample are an error, as they are locally."""
    with wds.TarWriter(str(tmp_path / "none.tar")):
        pass
    dataset = wds.WebDataset(str(tmp_path / "none.tar"), seed=1).elastic(1)
    with run_server(dataset) as (_, url), connect(url, 4) as remote, pytest.raises(NoSamples):
        list(remote)


def test_more_ranks_than_streams(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More ranks than streams are refused."""
    monkeypatch.setenv("WDS_RANK", "0")
    monkeypatch.setenv("WDS_WORLD_SIZE", "7")
    with connect(served) as remote, pytest.raises(UsageError, match="7 ranks"):
        list(remote)


def test_drain(shards: str) -> None:
    """A server that drains hands its trainer over to another one, and ends; nothing is lost."""
    whole = as_plain(list(wds.Loader(make_served_dataset(shards), 2)))
    datasets = make_served_dataset(shards), make_served_dataset(shards)
    with run_server(datasets[0]) as (one, first), run_server(datasets[1]) as (two, second):
        with connect([first, second], 2, prefetch=1) as remote:
            found = []
            for count, batch in enumerate(remote):
                found.append(batch)
                if count == 3:
                    (one if one.lanes else two).drain(30)
                time.sleep(0.03)
        assert as_plain(found) == whole
        assert one.counts["opened"] + two.counts["opened"] == 2
        # the one that drains ends by itself
        while not (one._ended.is_set() or two._ended.is_set()):  # noqa: SLF001
            time.sleep(0.05)


def test_busy(shards: str) -> None:
    """A server with enough trainers sends the next one away, which waits until there is room."""
    with run_server(make_served_dataset(shards), most_lanes=1) as (_, url), connect(url, 7) as first:
        iterator = iter(first)
        next(iterator)
        with connect(url, 7, silence_seconds=0.5) as second:
            found: list[Any] = []
            # made here: a loader is for one thread, and makes its lane when that is needed first
            lane = second._remote.lane  # noqa: SLF001
            reading = threading.Thread(target=lambda: found.extend(second))
            reading.start()
            while "already" not in lane.describe_servers():
                time.sleep(0.02)
            assert not found
            iterator.close()
            reading.join(60)
            assert len(found) == 14


def test_given_up_epochs(shards: str, served: str) -> None:
    """An epoch that is given up for another one leaves no batch of its own in it."""
    whole = as_plain(list(wds.Loader(make_served_dataset(shards), 7)))
    with connect(served) as remote:
        for _ in range(3):
            next(iter(remote))
            remote.set_epoch(0)
        assert as_plain(list(remote)) == whole


def test_pickled_loader(shards: str, served: str) -> None:
    """A loader that was pickled goes on after the batch that was received last."""
    whole = as_plain(list(wds.Loader(make_served_dataset(shards), 7)))
    with connect(served) as remote:
        iterator = iter(remote)
        found = [next(iterator) for _ in range(3)]
        with pickle.loads(pickle.dumps(remote)) as twin:
            assert as_plain([*found, *twin]) == whole


def test_wrong_arguments(tmp_path: Path) -> None:
    """What cannot mean anything is refused before anything is connected."""
    for servers, options in (
        ([], {"plain": True}),
        ("http://host", {"plain": True}),
        ("tcp://host", {"plain": True}),
        ("tcp://:5600", {"plain": True}),
        ("tcp://host:65536", {"plain": True}),
        ("tcp://host:0000099999", {"plain": True}),
        ("tcp://host:port", {"plain": True}),
        ("tcp://host:1", {}),
        ("tcp://host:1", {"key": str(tmp_path)}),
        ("tcp://host:1", {"key": "a", "server_key": "b", "plain": True}),
    ):
        with pytest.raises(UsageError):
            wds.RemoteLoader(servers, 4, **options)


def test_what_cannot_be_served(shards: str) -> None:
    """A dataset that is not elastic, or has no seed, is refused: two servers of it would differ."""
    for dataset in (wds.WebDataset(shards, seed=1), wds.WebDataset(shards).elastic(2)):
        with pytest.raises(UsageError, match=r"give --streams and --seed|, or --seed"), run_server(dataset):
            pass


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_and_their_memory(tmp_path: Path, mode: str) -> None:
    """Batches in memory that workers use again come unchanged, however slowly they are sent and received."""
    with wds.TarWriter(str(tmp_path / "big.tar")) as writer:
        for number in range(64):
            writer.write({"__key__": f"{number:03d}", "npy": np.full((100, 300), number, np.float32)})
    dataset = wds.WebDataset(str(tmp_path / "big.tar"), seed=1).decode().to_tuple("__key__", "npy").elastic(4)
    how = LaneSettings(workers=2, mode=mode, prefetch=1)
    with run_server(dataset, how) as (_, url), connect(url, 4, prefetch=1) as remote:
        for _ in range(2):
            keys = []
            for found, arrays in remote:
                time.sleep(0.01)
                for key, array in zip(found, arrays, strict=True):
                    keys.append(key)
                    assert (array == int(key)).all()
                # a consumer may write to its batch
                arrays[:] = -1
            assert sorted(keys) == [f"{number:03d}" for number in range(64)]


def test_settings_bound_trainers(shards: str) -> None:
    """A batch larger than the server makes is refused in words."""
    how = LaneSettings(workers=0, most_batch=10)
    assert INLINE.most_batch > 10
    with run_server(make_served_dataset(shards), how) as (_, url), connect(url, 11) as remote:
        with pytest.raises(StateMismatch, match="at most 10"):
            list(remote)


def test_refused_and_dead(shards: str) -> None:
    """One server of another dataset and one that is not there do not count as servers: ``timeout`` holds."""
    right = make_served_dataset(shards)
    with run_server(make_served_dataset(shards, streams=5)) as (_, wrong):
        with run_server(right) as (_, url):
            with connect(url) as first:
                header = first._remote.describe()  # noqa: SLF001
        with connect([wrong, url], timeout=3, silence_seconds=0.3) as remote:
            remote._remote._header = header  # noqa: SLF001  as known from a server that has ended
            with pytest.raises(SourceError, match="another dataset"):
                list(remote)


def test_dead_worker_ends_one_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that kills its worker process ends its trainer's lane with an error; the other trainer receives all."""
    url = write_served_shards(tmp_path)

    def crash(sample: Any) -> Any:
        if sample["__key__"] == "1-010":
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    # a stream for each shard; ranks of two own two shards each
    dataset = wds.WebDataset(url, seed=1).map(crash).to_tuple("__key__").elastic(4)
    ended = []
    with run_server(dataset, LaneSettings(workers=1)) as (server, address):
        for rank in range(2):
            monkeypatch.setenv("WDS_WORLD_SIZE", "2")
            monkeypatch.setenv("WDS_RANK", str(rank))
            with connect(address, 4) as remote:
                try:
                    assert sum(len(batch[0]) for batch in remote) in (30 + 22, 26 + 18, 30 + 18, 26 + 22, 48)
                except WorkerDied:
                    ended.append(rank)
        assert server.counts["opened"] == 2
    assert len(ended) == 1


def test_credit_is_absolute(shards: str) -> None:
    """Credit that comes twice, or late, changes nothing, and more than the server allows is cut."""
    header = {"nonce": 1, "rank": 0, "ranks": 1, "credit": 3}
    lane = Lane(make_served_dataset(shards), INLINE, b"peer", header, {}, lambda *_: None)
    for credit, allowed in ((5, 5), (5, 5), (2, 5), (1 << 60, 64), (7, 64)):
        lane.allow(credit)
        assert lane._credit == allowed  # noqa: SLF001


def test_forgotten_loader(shards: str, served: str) -> None:
    """A loader that is forgotten within an epoch ends its thread."""
    remote = connect(served)
    next(iter(remote))
    lane = remote._remote.lane  # noqa: SLF001
    assert lane.is_alive()
    assert served in remote.explain()
    del remote
    gc.collect()
    lane.join(30)
    assert not lane.is_alive()


@pytest.mark.torch
def test_tensors_and_devices(shards: str, served: str) -> None:
    """Tensors come as tensors, and ``device`` makes arrays tensors."""
    torch = pytest.importorskip("torch")
    dataset = wds.WebDataset(shards, seed=1).decode().to_tuple("__key__", "npy").map_tuple(str, torch.from_numpy)
    whole = list(wds.Loader(dataset.elastic(3), 7))
    with run_server(dataset.elastic(3)) as (_, url), connect(url) as remote:
        for found, expected in zip(remote, whole, strict=True):
            assert found[0] == expected[0]
            assert torch.is_tensor(found[1])
            assert torch.equal(found[1], expected[1])
            found[1].add_(1)
    with connect(served, device="cpu") as remote:
        assert all(torch.is_tensor(batch[1]) for batch in remote)
