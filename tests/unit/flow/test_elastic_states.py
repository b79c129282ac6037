"""States of elastic runs where seeds are drawn, rules for names raise, and streams are of other code."""

import gzip
import io
import tarfile
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.samples.grouping import base_plus_ext
from webdataset.testing import archives


@pytest.fixture
def shards(tmp_path):
    """Three shards of twenty samples, as a pattern of paths."""
    for shard in range(3):
        members = [(f"{shard}-{number:02d}.{field}", b"1") for number in range(20) for field in ("cls", "txt")]
        (tmp_path / f"s{shard}.tar").write_bytes(archives.by_hand(members))
    return f"{tmp_path}/s{{0..2}}.tar"


def keys(items):
    """Return the keys of samples, or of lists of them."""
    return [item["__key__"] for item in items]


def loader(dataset):
    """Read without workers."""
    return wds.Loader(dataset)


def worker_loader(dataset):
    """Read with two threads."""
    return wds.Loader(dataset, workers=2)


def web_loader(dataset):
    """Read through torch's loader."""
    pytest.importorskip("torch")
    return wds.WebLoader(dataset, batch_size=None, num_workers=0)


@pytest.mark.parametrize("make", [loader, worker_loader, web_loader])
@pytest.mark.parametrize("cut", [0, 25, 60])
def test_a_seed_that_was_drawn_goes_on(shards, make, cut):
    """The epochs after a resumed one are those of the job that was not stopped, though nobody chose a seed."""

    def start():
        return make(wds.WebDataset(shards, shardshuffle=9).shuffle(20).elastic(4))

    job = start()
    first = job.state_dict()
    run = iter(job)
    for _ in range(cut):
        next(run)
    state = job.state_dict()
    assert state["seed"] == first["seed"]
    rest = keys(run)
    later = [keys(job), keys(job)]
    for _ in range(2):
        resumed = start()
        resumed.load_state_dict(state)
        epochs = ([keys(resumed)] if rest else []) + [keys(resumed), keys(resumed)]
        assert epochs == ([rest] if rest else []) + later


@pytest.mark.parametrize("fault", [5, 300, 900])
@pytest.mark.parametrize("streams", [1, 3])
def test_a_rule_for_names_that_raises(tmp_path, fault, streams):
    """What is whole before the fault is given, wherever chunks end; a resumed run gives the same."""
    members = [(f"{number:04d}.{field}", b"x" * 700) for number in range(1200) for field in ("cls", "txt")]
    (tmp_path / "a.tar").write_bytes(archives.by_hand(members))

    def split(name):
        if name == f"{fault:04d}.txt":
            raise ValueError("no key")
        return base_plus_ext(name)

    def make():
        return wds.WebDataset(
            f"{tmp_path}/a.tar", shardshuffle=False, handler=wds.ignore_and_continue, keys=split
        ).elastic(streams)

    whole = keys(make())
    assert sorted(whole) == [f"{number:04d}" for number in range(fault)]
    for cut in sorted({1, fault // 3, fault // 2, fault - 1}):
        run = iter(make())
        given = keys(next(run) for _ in range(cut))
        rest = keys(make().elastic_run(state=run.state_dict(), continue_epochs=False))
        assert given + rest == whole
    stopped = []
    with pytest.raises(ValueError, match="no key"):
        stopped.extend(wds.WebDataset(f"{tmp_path}/a.tar", shardshuffle=False, keys=split))


@pytest.mark.parametrize(
    "opening", [lambda path: io.BytesIO(Path(path).read_bytes()), lambda path: Path(path).open("rb")]
)
@pytest.mark.parametrize("streams", [1, 3, 4])
@pytest.mark.parametrize("buffer", [0, 30])
def test_streams_that_tell_nothing_once_closed(shards, monkeypatch, opening, streams, buffer):
    """An opener of the user's may return a file or bytes: every state is as of other shards."""
    monkeypatch.setitem(wds.gopen_schemes, "my", lambda url, *args, **kw: opening(url.removeprefix("my:")))

    def make():
        return wds.WebDataset(f"my:{shards}", shardshuffle=False, seed=1).shuffle(buffer).elastic(streams)

    whole = keys(make())
    assert len(set(whole)) == 60
    for cut in range(1, 60):
        run = iter(make())
        given = keys(next(run) for _ in range(cut))
        rest = make()
        rest.load_state_dict(run.state_dict())
        assert given + keys(rest) == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_after_a_loader_has_no_state(shards, workers):
    """That is said when a state is asked for, not when it is needed."""
    pytest.importorskip("torch")

    def hold(items):
        held = []
        for item in items:
            held.append(item)
            if len(held) > 3:
                yield held.pop(0)
        yield from held

    dataset = wds.WebDataset(shards, shardshuffle=False, seed=1).elastic(2)
    run = wds.WebLoader(dataset, batch_size=None, num_workers=workers).compose(hold)
    items = iter(run)
    next(items)
    with pytest.raises(UsageError, match="in front of elastic"):
        run.state_dict()
    assert len(list(items)) == 59


def write_links(path, again):
    """Write ten samples with a hard link each, twice; the second time with links, or without."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for linked in (True, again):
            for number in range(10):
                for field in ("cls", "txt"):
                    member = tarfile.TarInfo(f"{number:02d}.{field}")
                    member.size = 3
                    archive.addfile(member, io.BytesIO(b"abc"))
                if linked:
                    member = tarfile.TarInfo(f"{number:02d}.lnk")
                    member.type, member.linkname = tarfile.LNKTYPE, f"{number:02d}.txt"
                    archive.addfile(member)


@pytest.mark.parametrize("how", ["{}", "pipe:cat {}", "{}.gz"])
@pytest.mark.parametrize(("again", "count"), [(True, 20), (False, 10)])
def test_links_are_fields_of_the_samples_before(tmp_path, how, again, count):
    """A joined archive whose samples hold links: copies are told from parts alike, wherever a run goes on."""
    path = tmp_path / "a.tar"
    write_links(path, again)
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))

    def make():
        url = how.format(path)
        return wds.WebDataset(url, shardshuffle=False, handler=wds.ignore_and_continue).elastic(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = keys(make())
        assert len(whole) == count
        for cut in range(1, count):
            run = iter(make())
            given = keys(next(run) for _ in range(cut))
            state = run.state_dict()
            # one that is dropped warns of the keys that came again
            del run
            assert given + keys(make().elastic_run(state=state, continue_epochs=False)) == whole
