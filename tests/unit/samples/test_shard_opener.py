"""Shards opened ahead of their turn: what comes out, and when it fails, is as if they were opened one at a time."""

import gc
import itertools
import json
import os
import threading
import time
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from webdataset import gopen, tariterators
from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.samples.shard_opener import open_shards
from webdataset.storage import prefetch_worker
from webdataset.storage.prefetch_worker import prefetch_budget
from webdataset.testing.archives import archive, member
from webdataset.testing.sources import RangeServer

KEYS = "abcdefgh"


def shard(number, size=30_000):
    """The bytes of one shard: eight samples of 30 KB."""
    return archive(*[member(f"{number}{key}.txt".encode(), b"%d" % number * size) for key in KEYS])


PAGES = {f"/{number}.tar": shard(number) for number in range(6)}
ALL = [f"{number}{key}" for number in range(6) for key in KEYS]


@pytest.fixture(autouse=True)
def far(monkeypatch):
    """Every source is taken for one that is far away; in the end no thread, byte or connection is held."""
    monkeypatch.setattr(prefetch_worker, "FAR_SECONDS", -1.0)
    yield
    gc.collect()
    for _ in range(1500):
        if ahead_threads() == 0 and (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0):
            break
        time.sleep(0.01)
    assert ahead_threads() == 0
    assert (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0)


@pytest.fixture
def server():
    """A web server with six shards."""
    with RangeServer(dict(PAGES)) as running:
        yield running


def urls_of(server, numbers=range(6)):
    """The urls of some shards."""
    return [f"{server.root}/{number}.tar" for number in numbers]


def ahead_threads():
    """How many threads read ahead."""
    return sum(thread.name == "webdataset-ahead" for thread in threading.enumerate())


def dataset(urls, **options):
    """A dataset of some urls, in order."""
    return wds.WebDataset(urls, shardshuffle=False, **options)


def keys(samples):
    """The keys of samples."""
    return [sample["__key__"] for sample in samples]


def asked(server):
    """The numbers of the shards that were asked for."""
    return [int(path[1]) for path, _ in server.asked]


@pytest.mark.parametrize("prefetch", [None, 0, 10, 100_000])
def test_order_and_bytes(server, prefetch):
    """The samples and their order do not depend on what is read ahead."""
    samples = list(dataset(urls_of(server), prefetch=prefetch))
    assert keys(samples) == ALL
    assert all(sample["txt"] == b"%d" % (index // 8) * 30_000 for index, sample in enumerate(samples))
    assert sorted(asked(server)) == list(range(6))


def test_the_next_two_are_open_while_one_is_read(server):
    """Soon, two further ones have been asked for, and no more."""
    flow = iter(dataset(urls_of(server)))
    next(flow)
    assert asked(server) == [0]  # whoever looks at one sample opens one shard
    assert keys(itertools.islice(flow, 4)) == ["0b", "0c", "0d", "0e"]
    for _ in range(1500):
        if len(server.asked) > 2:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert sorted(asked(server)) == [0, 1, 2]
    flow.close()


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_switched_off(server, monkeypatch, how):
    """Nothing is asked for before its turn."""
    if how == "variable":
        monkeypatch.setenv("WDS_PREFETCH_BYTES", "0")
    flow = iter(dataset(urls_of(server), **({"prefetch": 0} if how == "argument" else {})))
    assert keys(itertools.islice(flow, 8)) == ALL[:8]
    time.sleep(0.05)
    assert asked(server) == [0]
    flow.close()


@pytest.mark.parametrize("prefetch", [-1, "much", 1.5])
def test_what_is_no_number_of_bytes(prefetch):
    """A prefetch that cannot mean anything is refused."""
    with pytest.raises(UsageError, match="prefetch"):
        dataset(["http://localhost/x.tar"], prefetch=prefetch)


def test_an_unreadable_setting_is_no_fault_of_a_shard(server, monkeypatch):
    """No handler steps over a setting that cannot be read."""
    monkeypatch.setenv("WDS_PREFETCH_BYTES", "much")
    with pytest.raises(UsageError, match="WDS_PREFETCH_BYTES"):
        list(dataset(urls_of(server), handler=wds.ignore_and_continue))


@pytest.mark.parametrize("missing", [0, 1, 3, 5])
def test_a_shard_that_cannot_be_opened(server, missing):
    """The handler hears about it when its turn has come, after the samples before it, and about nothing else."""
    del server.pages[f"/{missing}.tar"]
    seen, heard = [], []

    def handler(error):
        heard.append((len(seen), type(error), error.url))
        return True

    for sample in dataset(urls_of(server), handler=handler):
        seen.append(sample["__key__"])
    assert seen == [key for key in ALL if key[0] != str(missing)]
    assert heard == [(missing * 8, NotFound, f"{server.root}/{missing}.tar")]
    with pytest.raises(NotFound):
        list(dataset(urls_of(server)))
    assert keys(dataset(urls_of(server), handler=wds.ignore_and_stop, empty_check=False)) == ALL[: missing * 8]


def test_a_shard_that_comes_in_time(server):
    """One that was not there when it was looked for ahead, but is when its turn comes, is read."""
    late = server.pages.pop("/1.tar")
    flow = iter(dataset(urls_of(server, [0, 1])))
    found = keys(itertools.islice(flow, 7))
    while asked(server) != [0, 1] or ahead_threads():
        time.sleep(0.001)
    server.pages["/1.tar"] = late
    assert found + keys(flow) == ALL[:16]
    assert asked(server) == [0, 1, 1]


def test_a_list_that_fails(server):
    """What the list of shards raises comes after the samples of the shards that it gave before."""

    def listed():
        yield from ({"url": url} for url in urls_of(server, [0, 1]))
        raise LookupError("no more names")

    seen = []
    with pytest.raises(LookupError, match="no more names"):  # noqa: PT012  at whichever sample
        for sample in wds.DataPipeline(listed, wds.tarfile_to_samples()):
            seen.append(sample["__key__"])  # noqa: PERF401  those before the error count
    assert seen == ALL[:16]


def test_what_is_no_shard(server):
    """Things that are no shards reach the handler in their place."""
    heard = []
    places = [{"url": urls_of(server)[0]}, "nonsense", {"url": urls_of(server)[1]}, {}]
    streams = list(open_shards(iter(places), lambda error: heard.append(str(error)) or True))  # type: ignore[arg-type]
    for place in streams:
        place["stream"].close()
    assert [place["url"] for place in streams] == urls_of(server, [0, 1])
    assert len(heard) == 2


def test_local_files_are_never_opened_ahead(tmp_path, server):
    """A list of files is asked for one at a time; behind a remote shard, a file waits for its turn."""
    path = tmp_path / "x.tar"
    path.write_bytes(PAGES["/0.tar"])
    given = []

    def listed():
        for url in (str(path), str(path), urls_of(server)[1], str(path), urls_of(server)[2]):
            given.append(url)
            yield {"url": url}

    flow = iter(wds.DataPipeline(listed, wds.tarfile_to_samples()))
    assert keys(itertools.islice(flow, 8)) == ALL[:8]
    assert given == [str(path)]
    assert keys(itertools.islice(flow, 16)) == ALL[:16]
    assert len(given) == 4
    path.unlink()
    with pytest.raises(NotFound):
        next(flow)


def test_foreign_openers_stay_in_their_thread(server, monkeypatch):
    """Code of other people, a scheme's opener or a replaced gopen, is called by the reader alone, in order."""
    callers = []

    def opener(url, *_, **__):
        callers.append((url, threading.current_thread()))
        return gopen.gopen_http(url.replace("mine:", "http:"))

    mine = [url.replace("http:", "mine:") for url in urls_of(server)]
    monkeypatch.setitem(gopen.gopen_schemes, "mine", opener)
    assert keys(dataset(mine)) == ALL
    assert callers == [(url, threading.main_thread()) for url in mine]
    callers.clear()
    monkeypatch.setattr(gopen, "gopen", opener)
    assert keys(dataset(mine)) == ALL
    assert callers == [(url, threading.main_thread()) for url in mine]


def test_a_replaced_url_opener_knows_nothing_of_it(server, monkeypatch):
    """A program's own url_opener is not handed an argument that it does not know."""

    def url_opener(data, handler=None):
        for place in data:
            yield {**place, "stream": gopen.gopen(place["url"])}

    monkeypatch.setattr(tariterators, "url_opener", url_opener)
    assert keys(dataset(urls_of(server))) == ALL


def children():
    """Return the processes that this one has started; servers of other tests may be among them."""
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for children under /proc")
@pytest.mark.parametrize("leaving", ["close", "drop", "error"])
def test_leaving_early_leaves_nothing(tmp_path, server, leaving):
    """A break, a forgotten iterator or an error of the consumer ends threads, connections and commands, silently."""
    (tmp_path / "x.tar").write_bytes(shard(0, 400_000))
    before = children()
    commands = [f"pipe:echo >> {tmp_path}/ran; cat {tmp_path}/x.tar; sleep 600"] * 4
    for urls in (urls_of(server), commands):
        flow = iter(dataset(urls))
        keys(itertools.islice(flow, 3))
        if urls is commands:
            while not (tmp_path / "ran").exists():
                time.sleep(0.001)
        if leaving == "close":
            flow.close()
        elif leaving == "error":
            with pytest.raises(ZeroDivisionError):
                wds.DataPipeline(lambda flow=flow: flow, wds.map(lambda _: 1 / 0)).__iter__().__next__()
        del flow
        gc.collect()
    assert children() <= before


def test_commands_are_started_ahead(tmp_path):
    """The next commands run while one is read; a command that fails does so behind its samples, in its place."""
    (tmp_path / "x.tar").write_bytes(shard(0))
    (tmp_path / "y.tar").write_bytes(shard(1))
    failing = [f"pipe:cat {tmp_path}/x.tar", f"pipe:cat {tmp_path}/y.tar; exit 3", f"pipe:cat {tmp_path}/x.tar"]
    for prefetch in (0, None):
        heard, seen = [], []
        rules = {"handler": lambda error, seen=seen, heard=heard: heard.append((len(seen), str(error))) or True}
        for sample in dataset(failing, prefetch=prefetch, **rules):
            seen.append(sample["__key__"])  # noqa: PERF401  those before the error count
        assert seen == ALL[:15] + ALL[:8]  # the last one of the second command is not known to be whole
        assert [count for count, _ in heard] == [15]
        assert "exit status 3" in heard[0][1]


def test_an_endless_list(server):
    """Draws with replacement, cut to epochs, come out as long as asked, epoch after epoch."""
    drawn = wds.WebDataset(urls_of(server), resampled=True, seed=3).with_epoch(20)
    plain = wds.WebDataset(urls_of(server), resampled=True, seed=3, prefetch=0).with_epoch(20)
    for _ in range(3):
        found = keys(drawn)
        assert len(found) == 20
        assert found == keys(plain)


def test_shuffles_and_snapshots(server):
    """A snapshot at any sample continues with the same samples, though the list was asked ahead of it."""

    def made():
        return wds.WebDataset(urls_of(server), shardshuffle=10, seed=5).shuffle(5)

    whole = keys(made().start())
    assert sorted(whole) == ALL
    for step in (0, 1, 7, 8, 9, 23, 40, 47):
        run = made().start()
        before = keys(itertools.islice(run, step))
        state = json.loads(json.dumps(run.snapshot()))
        run.close()
        assert before + keys(made().start(state=state)) == whole


def test_streams_taken_by_themselves(server):
    """Whoever opens shards and reads them later, or never, or in other threads, has all the bytes."""
    places = list(tariterators.url_opener({"url": url} for url in urls_of(server)))
    found = {}
    readers = [
        threading.Thread(target=lambda place=place: found.update({place["url"]: place["stream"].read()}))
        for place in places[1:]
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == {f"{server.root}/{number}.tar": PAGES[f"/{number}.tar"] for number in range(1, 6)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle(server):
    """Parent and child both read the rest, in order, and neither takes a byte from the other."""
    flow = iter(dataset(urls_of(server)))
    before = keys(itertools.islice(flow, 5))
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(sending, ",".join(keys(flow)).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answer:
        assert before + answer.read().split(",") == ALL
    os.waitpid(child, 0)
    assert before + keys(flow) == ALL


def test_memory_is_bounded(server, monkeypatch):
    """However many datasets read, what is held ahead stays within the process's budget."""
    monkeypatch.setenv("WDS_PREFETCH_BYTES", "200000")
    held, more = [], prefetch_budget.more

    def noted(*arguments, **options):
        granted = more(*arguments, **options)
        held.append(prefetch_budget.size_bytes)
        return granted

    monkeypatch.setattr(prefetch_budget, "more", noted)
    flows = [iter(dataset(urls_of(server))) for _ in range(4)]
    found = [keys(flow) for flow in zip(*flows, strict=True)]
    assert [key for key, *_ in found] == ALL
    assert 0 < max(held) <= 200_000
    for flow in flows:
        flow.close()


def test_a_slow_source_is_read_further_ahead(server, monkeypatch):
    """While the reader waits for slow sources, further shards are read, whole, and no more than may be."""
    monkeypatch.setattr("webdataset.storage.prefetch.MOST", 4)
    monkeypatch.setattr(prefetch_worker, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(prefetch_worker, "WINDOW_BYTES", 1)
    monkeypatch.setattr(prefetch_worker.ReadRate, "starving", True)
    flow = iter(dataset(urls_of(server)))
    next(flow)
    next(flow)
    for _ in range(1500):
        if len(server.asked) == 5 and not ahead_threads():
            break
        time.sleep(0.01)
    assert sorted(asked(server)) == [0, 1, 2, 3, 4]
    for number in range(1, 5):
        del server.pages[f"/{number}.tar"]
    assert keys(flow) == ALL[2:]


def test_a_thread_that_is_done_begins_the_next(server, monkeypatch):
    """While the reader is busy elsewhere, freed connections go on to the next shards; only the reader asks the list."""
    monkeypatch.setattr(prefetch_worker, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(prefetch_worker, "WINDOW_BYTES", 1)
    monkeypatch.setattr(prefetch_worker.ReadRate, "starving", True)
    monkeypatch.setenv("WDS_CONNECTIONS", "2")
    askers = set()

    def listed():
        for url in urls_of(server):
            askers.add(threading.current_thread())
            yield {"url": url}

    flow = iter(wds.DataPipeline(listed, wds.tarfile_to_samples()))
    found = keys(itertools.islice(flow, 4))
    for _ in range(1500):
        if len(server.asked) == 6 and not ahead_threads():
            break
        time.sleep(0.01)
    assert sorted(asked(server)) == list(range(6))  # one at a time, and the reader read nothing meanwhile
    assert found + keys(flow) == ALL
    assert askers == {threading.main_thread()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_counts_what_it_opens_itself(server):
    """After a fork in the middle of a shard, what the child opens ahead is its own, and is all given back."""
    flow = iter(dataset(urls_of(server)))
    before = keys(itertools.islice(flow, 5))
    child = os.fork()
    if child == 0:
        try:
            whole = before + keys(flow) == ALL
            os._exit(0 if whole and (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0) else 1)
        except BaseException:  # noqa: BLE001  no test report is written twice
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert before + keys(flow) == ALL


def test_errors_of_the_list_that_are_no_exceptions_of_ours(server):
    """SourceError or not: what an opener raises is located, and what is read afterwards is whole."""
    server.pages["/1.tar"] = PAGES["/1.tar"][:5000]
    with pytest.raises((SourceError, ValueError)) as caught:
        list(dataset(urls_of(server)))
    assert caught.value.url == f"{server.root}/1.tar"


def test_a_programs_own_list_is_not_asked_ahead(server):
    """An object of the user's that gives urls is asked when one is needed, unless prefetch says otherwise."""

    class PipelineStage:
        def __init__(self):
            self.given = []

        def run(self):
            for url in urls_of(server):
                self.given.append(url)
                yield {"url": url}

        def __iter__(self):
            return self.run()

        def __call__(self):
            return self.run()

    for prefetch, wanted in ((None, 1), (1 << 20, 3)):
        source = PipelineStage()
        flow = iter(dataset(source, **({} if prefetch is None else {"prefetch": prefetch})))
        keys(itertools.islice(flow, 5))
        assert len(source.given) == wanted
        flow.close()


def test_nothing_is_opened_for_who_has_left(server):
    """A stream that is read on after its list was left neither asks the list nor opens a shard."""
    given = []

    def listed():
        for url in urls_of(server):
            given.append(url)
            yield {"url": url}

    opened = open_shards(listed())
    stream = next(opened)["stream"]
    opened.close()
    assert b"".join(iter(lambda: stream.read(1000), b"")) == PAGES["/0.tar"]
    assert len(given) == 1
    assert asked(server) == [0]
    stream.close()
