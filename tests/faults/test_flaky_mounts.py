"""Shards on mounted file systems that fail for a moment, against a real FUSE mount: every sample comes, once."""

import contextlib
import errno
import gzip
import io
import logging
import os
import random
import tarfile
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path

import pytest

import webdataset as wds
from support.flaky_mount import mount_or_skip
from webdataset.cli.main import main
from webdataset.core.errors import NotFound, ShardChanged, SourceError
from webdataset.index import lookup
from webdataset.index.lookup import find_index_beside
from webdataset.samples.sample_reader import Reading
from webdataset.shards.directory import DirectoryShardList
from webdataset.storage import retries
from webdataset.storage.local_files import is_safe_to_map, open_buffered, open_raw
from webdataset.storage.local_listing import find_files, walk_folder
from webdataset.storage.random_access import open_ranges

COUNT, SHARDS = 60, 4
TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EAGAIN)


def write_shards(folder):
    """Write small and large samples; one shard is compressed."""
    large = os.urandom(150_000)
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"s-{shard}.tar")) as sink:
            for index in range(COUNT):
                payload = large[index:] if index % 7 == 3 else large[index : index + 5_000]
                sink.write({"__key__": f"{shard}-{index:03d}", "bin": payload, "cls": index})
    wds.write_columns([str(folder / f"s-{shard}.tar") for shard in range(SHARDS)], ["cls"])
    last = folder / f"s-{SHARDS - 1}.tar"
    (folder / f"z-{SHARDS - 1}.tar.gz").write_bytes(gzip.compress(last.read_bytes(), 1))


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """A mount that holds shards."""
    with mount_or_skip(tmp_path_factory.mktemp("fuse") / "place") as mount:
        write_shards(mount.root)
        yield mount


@pytest.fixture
def mount(mounted):
    """The mount, on which nothing fails before and after the test."""
    mounted.heal()
    yield mounted
    mounted.heal()


@pytest.fixture
def hasty(monkeypatch):
    """No pauses between attempts; the list gets them."""
    pauses = []
    monkeypatch.setattr(retries, "sleep", pauses.append)
    return pauses


@pytest.fixture
def patient(monkeypatch):
    """Where many calls fail by chance, eight attempts are too few now and then."""
    monkeypatch.setenv("WDS_RETRY_SECONDS", "60")


def read(folder, **options):
    """Return samples as they come."""
    return list(wds.WebDataset(f"{folder}/s-{{0..{SHARDS - 1}}}.tar", shardshuffle=False, **options))


def strip(samples, folder):
    """Return samples with urls relative to a folder, and bytes in place of views."""
    return [
        {name: bytes(v) if isinstance(v, memoryview) else v.replace(f"{folder}/", "") if name == "__url__" else v
         for name, v in sample.items() if name != "__local_path__"}
        for sample in samples
    ]  # fmt: skip


def open_elastic(folder):
    """Return an elastic dataset over several streams."""
    return wds.WebDataset(f"{folder}/s-{{0..{SHARDS - 1}}}.tar", shardshuffle=3, seed=4).shuffle(10).elastic(streams=6)


def read_by_number(folder, **options):
    """Return samples at random: of the first shard by its index, of the others by their headers."""
    dataset = wds.IndexedDataset(f"{folder}/s-{{0..{SHARDS - 1}}}.tar", **options)
    return [dataset[number] for number in (5, 3, len(dataset) - 1, 0, 119, 31, 3)]


def run_commands(folder):
    """Return what ``wds info`` and ``wds check`` write, and how they end."""
    urls = [f"{folder}/s-{shard}.tar" for shard in range(SHARDS)]
    told = []
    for command in ("info", "check"):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            code = main([command, *urls])
        told.append({"text": text.getvalue().replace(f"{folder}/", ""), "code": code})
    return told


def read_cached(folder):
    """Return samples of a dataset that keeps copies of its shards."""
    with tempfile.TemporaryDirectory() as cache:
        return read(folder, cache_dir=cache)


READINGS = {
    "by number": read_by_number,
    "by number, views": lambda folder: read_by_number(folder, memory_map=True),
    "where": lambda folder: read(folder, where="cls > 47"),
    "commands": run_commands,
    "cached": read_cached,
    "plain": read,
    "views": lambda folder: read(folder, memory_map=True),
    "compressed": lambda folder: list(wds.WebDataset(f"{folder}/z-{SHARDS - 1}.tar.gz", shardshuffle=False)),
    "elastic": lambda folder: list(open_elastic(folder)),
    "wildcard": lambda folder: list(wds.WebDataset(f"{folder}/s-*.tar", shardshuffle=False)),
    "selected": lambda folder: read(folder, select_files=lambda name: name.endswith("cls")),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reading", READINGS)
def test_whatever_fails_for_a_moment_every_sample_comes(mount, hasty, patient, reading, seed):
    """Opening, reading, asking for size and time, and listing: one call in four fails, with any of the errors."""
    wanted = strip(READINGS[reading](mount.root), mount.root)
    before = len(mount.failures)
    mount.plan_failures(
        *TRANSIENT, calls=("read", "open", "getattr", "readdir"), share=0.25, times=10**9, seed=seed, name=""
    )
    assert strip(READINGS[reading](mount.path), mount.path) == wanted
    assert len(mount.failures) > before
    assert hasty


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("reading", READINGS)
def test_reads_may_give_less_than_was_asked_for(mount, reading, seed):
    """Anything from one byte on, as files of FUSE and networks may; only nothing is the end."""
    wanted = strip(READINGS[reading](mount.root), mount.root)
    mount.plan_failures(short=0.7, seed=seed, calls=())
    assert strip(READINGS[reading](mount.path), mount.path) == wanted


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("stages", [[], [wds.shuffle(12, initial=6)]], ids=["plain", "shuffled"])
def test_a_resumed_run_reads_a_few_bytes_at_a_time(mount, suffix, stages):
    """What a shard is compressed with is seen in its first bytes, however few of them come at once."""
    url = f"{mount.path}/few.tar{suffix}"
    with wds.TarWriter(str(mount.root / f"few.tar{suffix}")) as sink:
        for index in range(20):
            sink.write({"__key__": f"{index:03d}", "txt": str(index) * 40})

    def open_dataset():
        return wds.WebDataset([url, url], shardshuffle=False, seed=3).compose(*stages).elastic(streams=2)

    wanted = [sample["__key__"] for sample in open_dataset()]
    mount.plan_failures(short=1.0, most=3, calls=())
    stream = open_dataset()
    run = iter(stream)
    keys = [next(run)["__key__"] for _ in range(17)]
    state = stream.state_dict()
    resumed = open_dataset()
    resumed.load_state_dict(state)
    assert keys + [sample["__key__"] for sample in resumed] == wanted


@pytest.mark.parametrize("code", TRANSIENT, ids=lambda code: errno.errorcode[code])
def test_each_error_is_tried_again(mount, hasty, code):
    """Wherever in a shard it is."""
    wanted = strip(read(mount.root), mount.root)
    for after in (0, 1, 2, 5):
        before = len(mount.failures)
        mount.plan_failures(code, after=after, times=3)
        assert strip(read(mount.path), mount.path) == wanted
        assert len(mount.failures) == before + 3


@pytest.mark.parametrize("code", [errno.EACCES, errno.EFBIG, errno.EINVAL], ids=lambda code: errno.errorcode[code])
def test_what_will_not_pass_is_an_error_at_once(mount, hasty, code):
    """It names the shard, and the place in it."""
    mount.plan_failures(code, after=1, times=10**9, name="s-1.tar")
    with pytest.raises(SourceError, match=f"cannot read: {os.strerror(code)}") as caught:
        read(mount.path)
    assert caught.value.errno == code
    assert caught.value.url == f"{mount.path}/s-1.tar"
    assert caught.value.offset is not None
    assert caught.value.offset > 0
    assert not hasty


def test_what_does_not_pass_is_an_error_in_the_end(mount, hasty, caplog):
    """After eight attempts, with pauses that add up to twelve seconds; one line of the log says why it waits."""
    mount.plan_failures(errno.EIO, after=1, times=10**9, name="s-1.tar")
    with caplog.at_level(logging.WARNING, "webdataset"), pytest.raises(SourceError) as caught:
        read(mount.path)
    text = str(caught.value)
    assert "cannot read: Input/output error, 8 attempts; is the file system mounted" in text
    assert "WDS_RETRY_SECONDS=600" in text
    assert "s-1.tar" in text
    assert caught.value.errno == errno.EIO
    assert len(hasty) == 7
    assert 4 < sum(hasty) < 26
    assert [line.message for line in caplog.records] == [
        f"{mount.path}/s-1.tar: cannot read: Input/output error; trying again"
    ]


def test_a_handler_is_asked_in_the_end(mount, hasty):
    """What lies before the byte that cannot be read is given; the other shards come whole; the loss is counted."""
    mount.plan_failures(errno.EIO, after=2, times=10**9, name="s-1.tar")
    errors = []
    samples = read(mount.path, handler=lambda error: errors.append(error) or True)
    by_shard = [sum(sample["__url__"].endswith(f"s-{shard}.tar") for sample in samples) for shard in range(SHARDS)]
    assert by_shard[0] == by_shard[2] == by_shard[3] == COUNT
    assert 0 < by_shard[1] < COUNT
    assert [error.url for error in errors] == [f"{mount.path}/s-1.tar"]


def test_it_is_tried_for_as_long_as_is_asked(mount, monkeypatch):
    """``WDS_RETRY_SECONDS`` holds for mounts, too."""
    clock = [0.0]
    monkeypatch.setenv("WDS_RETRY_SECONDS", "600")
    monkeypatch.setattr(retries, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    mount.plan_failures(errno.ETIMEDOUT, times=10**9)
    with pytest.raises(SourceError, match=r"\d\d attempts; is the file system mounted, and its server up\? "):
        read(mount.path)
    assert 600 <= clock[0] < 640


@pytest.mark.parametrize("reading", ["plain", "elastic", "compressed"])
def test_dead_handles_are_replaced(mount, hasty, reading):
    """A server that was started again knows no handle any more: the files are opened anew, and read on."""
    wanted = strip(READINGS[reading](mount.root), mount.root)
    if reading == "compressed":
        stream = iter(wds.WebDataset(f"{mount.path}/z-{SHARDS - 1}.tar.gz", shardshuffle=False))
    else:
        stream = iter(open_elastic(mount.path) if reading == "elastic" else wds.WebDataset(
            f"{mount.path}/s-{{0..{SHARDS - 1}}}.tar", shardshuffle=False))  # fmt: skip
    samples = []
    for sample in stream:
        samples.append(sample)
        if len(samples) in (1, 20, 21, 50):
            mount.forget_handles()
    assert strip(samples, mount.path) == wanted
    assert any("ESTALE" in line for line in mount.failures)


def test_a_link_whose_target_cannot_be_read_is_an_error(mount, hasty):
    """Whichever read fails for good, there is an error: no sample comes without the member that a link stands for."""
    payload = os.urandom(100_000)
    with tarfile.open(mount.root / "links.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for index in range(40):
            entry = tarfile.TarInfo(f"{index:02d}.bin")
            if index and index % 13 == 0:
                entry.type, entry.linkname = tarfile.LNKTYPE, f"{index // 26:02d}.bin"
                archive.addfile(entry)
            else:
                entry.size = len(payload)
                archive.addfile(entry, io.BytesIO(payload))
            entry = tarfile.TarInfo(f"{index:02d}.cls")
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"1"))

    def read_links(folder):
        return strip(wds.WebDataset(f"{folder}/links.tar", shardshuffle=False), folder)

    wanted = read_links(mount.root)
    assert [len(sample["bin"]) for sample in wanted] == [len(payload)] * 40
    reads = 0
    while True:
        mount.plan_failures(errno.EIO, after=reads, times=10**9)
        try:
            assert read_links(mount.path) == wanted
            break
        except SourceError:
            reads += 1
    assert reads > 20


def test_an_index_on_a_mount_is_not_mapped(mount, hasty):
    """Some of these file systems refuse maps; of others a page that does not come would end the process."""
    indexed = mount.root / "indexed"
    indexed.mkdir(exist_ok=True)
    with wds.TarWriter(str(indexed / "a.tar"), index=["binary", "files"]) as sink:
        for index in range(3000):
            sink.write({"__key__": f"{index:05d}", "cls": index})
    for path in (indexed, mount.path / "indexed"):
        dataset = wds.IndexedDataset(f"{path}/a.tar")
        with open_raw(path / "a.wdsindex") as stream:
            assert is_safe_to_map(stream.fileno()) is (path == indexed)
        assert isinstance(read_index(path / "a.wdsindex"), bytes) is (path != indexed)
        assert [dataset[number]["cls"] for number in (5, 2999)] == [b"5", b"2999"]
    # however few bytes of it come at once, it is an index
    (indexed / "a.wdsindex").unlink()
    mount.plan_failures(short=1.0, most=2, calls=(), name="a.json")
    assert find_index_beside(f"{mount.path}/indexed/a.tar", open_ranges(f"{mount.path}/indexed/a.tar"), Reading())


def read_index(path):
    """Return what an index is read from."""
    return lookup._read_index(path, 1 << 24, None, None)


def test_positioned_reads_survive(mount, hasty):
    """A file that is open for reads anywhere."""
    content = (mount.root / "s-0.tar").read_bytes()
    with open_ranges(f"{mount.path}/s-0.tar") as ranges:
        for offset in (0, 700_000, 5_000):
            mount.forget_handles()
            mount.plan_failures(errno.EIO, times=2)
            assert ranges.read_at(offset, 300_000) == content[offset : offset + 300_000]
    assert hasty


def test_the_position_survives(mount, hasty):
    """Whole reads, parts and buffers, after seeking."""
    content = (mount.root / "s-0.tar").read_bytes()
    with open_raw(mount.path / "s-0.tar") as stream:
        assert stream.read(1000) == content[:1000]
        mount.forget_handles()
        assert stream.read(1000) == content[1000:2000]
        assert stream.tell() == 2000
        stream.seek(100_000)
        mount.plan_failures(errno.EIO, after=2, times=2)
        assert stream.read() == content[100_000:]
        stream.seek(7)
        mount.forget_handles()
        space = bytearray(500)
        assert stream.readinto(space) == 500
        assert bytes(space) == content[7:507]
        assert stream.read(5) == content[507:512]


def test_closing_fails(mount, hasty):
    """All has been read by then; and what went wrong before is not hidden."""
    wanted = strip(read(mount.root), mount.root)
    before = len(mount.failures)
    mount.plan_failures(errno.EIO, calls=("flush",), times=10**9)
    assert strip(read(mount.path), mount.path) == wanted
    assert len(mount.failures) == before + SHARDS
    with open_ranges(f"{mount.path}/s-0.tar") as ranges:
        ranges.read_at(0, 512)
    mount.plan_failures(errno.EINVAL, calls=("flush", "read"), times=10**9)
    with pytest.raises(SourceError, match="cannot read: Invalid argument"):
        read(mount.path)


def test_a_file_that_was_replaced_is_not_read_on(mount, hasty):
    """The one that was opened is not to be had any more, and the one of this name is another."""
    path = mount.root / "replaced.tar"
    path.write_bytes((mount.root / "s-0.tar").read_bytes())
    with open_raw(mount.path / "replaced.tar") as stream:
        stream.read(1000)
        path.unlink()
        path.write_bytes((mount.root / "s-1.tar").read_bytes())
        mount.forget_handles()
        with pytest.raises(ShardChanged, match="overwritten while it was being read"):
            stream.read(1000)
    path.unlink()
    # no more than one attempt
    assert len(hasty) == 1


def fail_twice(stream, code):
    """Return what reads a kilobyte, and fails twice before; on whichever file the descriptor leads to."""
    left = [2]

    def read_on():
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return os.read(stream.fileno(), 1000)

    return read_on


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE], ids=["EIO", "ESTALE"])
def test_the_open_file_counts_not_its_name(tmp_path, hasty, code):
    """A file that took its name is not read in its place: the open one is, unless its handle is dead."""
    path, old = tmp_path / "a.tar", bytes(1000) + b"old" * 1000
    path.write_bytes(old)
    with open_raw(path) as stream:
        stream.seek(1000)
        (tmp_path / "b").write_bytes(b"new" * 2000)
        (tmp_path / "b").replace(path)
        failure = OSError(code, os.strerror(code))
        if code == errno.ESTALE:
            with pytest.raises(ShardChanged, match="overwritten"):
                stream.retry(fail_twice(stream, code), failure)
        else:
            assert stream.retry(fail_twice(stream, code), failure) == old[1000:2000]
            # nor is one that is gone
            path.unlink()
            assert stream.retry(fail_twice(stream, code), failure) == old[2000:3000]


def test_no_descriptor_is_lost(tmp_path, hasty):
    """A descriptor is led to the new file, keeps its number, and is closed on exec."""
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(5000))
    before = len(os.listdir("/proc/self/fd"))
    with open_raw(path) as stream:
        number, file = stream.fileno(), os.fstat(stream.fileno()).st_ino
        os.utime(path, ns=(1, stream.identity.changed_ns))
        copy = tmp_path / "copy"
        copy.write_bytes(bytes(5000))
        os.utime(copy, ns=(1, stream.identity.changed_ns))
        copy.replace(path)
        assert stream.retry(fail_twice(stream, errno.ESTALE), OSError(errno.ESTALE, "")) == bytes(1000)
        assert stream.fileno() == number
        assert os.fstat(number).st_ino != file
        assert not os.get_inheritable(number)
    assert len(os.listdir("/proc/self/fd")) == before


def test_opening_is_tried_again(mount, hasty):
    """By the shard reader and by ``gopen``; a file that is not there is an error at once."""
    for opened in (open_raw, open_buffered):
        mount.plan_failures(errno.ESTALE, errno.EIO, calls=("open",), times=5)
        with opened(mount.path / "s-0.tar") as stream:
            assert len(stream.read(512)) == 512
    hasty.clear()
    with pytest.raises(NotFound):
        open_raw(mount.path / "nowhere.tar")
    assert not hasty


def test_a_file_that_its_folder_lists_is_waited_for(mount, hasty):
    """Mounts of stores say that it is not there when their store does not answer, as s3fs does."""
    wanted = strip(read(mount.root), mount.root)
    mount.plan_failures(errno.ENOENT, calls=("open", "getattr"), times=5, name="s-1.tar")
    assert strip(read(mount.path), mount.path) == wanted
    assert 1 < len(hasty) < 7
    mount.plan_failures(errno.ENOENT, calls=("open", "getattr"), times=10**9, name="s-1.tar")
    with pytest.raises(NotFound, match="cannot open: No such file or directory, 8 attempts"):
        read(mount.path)
    hasty.clear()
    # neither is that of a link that leads nowhere
    (mount.root / "link.tar").symlink_to("nowhere")
    for name in ("link.tar", "nowhere.tar", "no/folder.tar"):
        with pytest.raises(NotFound, match="cannot open: No such file or directory(?!, 8 attempts)"):
            open_raw(mount.root / name)
    (mount.root / "link.tar").unlink()
    assert not hasty


def test_a_folder_is_listed_again(mount, hasty):
    """A wildcard finds all shards, not those before a failure; in the end it is an error, not an empty list."""
    mount.plan_failures(errno.EIO, calls=("readdir",), times=3)
    assert len(wds.expand_urls(f"{mount.path}/s-*.tar")) == SHARDS
    assert len(hasty) == 3
    mount.plan_failures(errno.EIO, calls=("readdir",), times=10**9)
    with pytest.raises(SourceError, match="cannot list: Input/output error, 8 attempts"):
        wds.expand_urls(f"{mount.path}/s-*.tar")


PATTERNS = ("*/t-*.tar", "*/t-0.tar", "**/t-*.tar", "**", "*/")


@pytest.fixture
def folders(mount):
    """Three folders with two shards each."""
    for name in ("a", "b", "c"):
        (mount.root / name).mkdir(exist_ok=True)
        for shard in range(2):
            (mount.root / name / f"t-{shard}.tar").write_bytes(bytes(10240))
    return mount


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_folder_is_left_out_in_silence(folders, hasty, patient, pattern):
    """One that cannot be listed for a moment is listed again; one for which there is no permission is warned of."""
    wanted = [name.replace(str(folders.root), str(folders.path)) for name in find_files(f"{folders.root}/{pattern}")]
    for seed in range(10):
        folders.plan_failures(*TRANSIENT, calls=("readdir", "getattr"), share=0.1, times=10**9, seed=seed)
        assert find_files(f"{folders.path}/{pattern}") == wanted
    assert hasty
    folders.plan_failures(errno.EACCES, calls=("readdir", "open"), times=10**9, name="/b")
    if "t-*" in pattern:
        with pytest.warns(UserWarning, match=r"no permission to look into 1 places, '.*/b' first"):
            assert find_files(f"{folders.path}/{pattern}") == [name for name in wanted if "/b/" not in name]
    name = "/t-0.tar" if "t-0" in pattern else "/b"
    folders.plan_failures(errno.ENXIO, calls=("readdir", "getattr"), times=10**9, name=name)
    with pytest.raises(SourceError, match="cannot (list|look at): No such device or address"):
        find_files(f"{folders.path}/{pattern}")


def test_what_nobody_may_look_at_is_warned_of(folders, hasty):
    """A file in a folder that may not be entered, and a link that may not be followed."""
    folders.plan_failures(errno.EACCES, calls=("getattr",), times=10**9, name="/b/t-0.tar")
    with pytest.warns(UserWarning, match=r"no permission to look into 1 places, '.*/b/t-0.tar' first"):
        assert find_files(f"{folders.path}/*/t-0.tar") == [f"{folders.path}/{name}/t-0.tar" for name in "ac"]
    link = folders.path.parent / "links"
    link.mkdir(exist_ok=True)
    for name in "ab":
        (link / name).unlink(missing_ok=True)
        (link / name).symlink_to(folders.path / name)
    folders.plan_failures(errno.EACCES, calls=("getattr",), times=10**9, name="/b")
    with pytest.warns(UserWarning, match=r"no permission to look into 1 places, '.*/links/b' first"):
        assert find_files(f"{link}/*/t-*.tar") == [f"{link}/a/t-{shard}.tar" for shard in range(2)]


def test_a_folder_that_is_named_must_be_readable(folders, hasty):
    """Where no wildcard led to it, there is nothing else that could have been meant."""
    folders.plan_failures(errno.EACCES, calls=("readdir", "open"), times=10**9, name="/b")
    with pytest.raises(SourceError, match="cannot list: Permission denied; look at its owner"):
        wds.expand_urls(f"{folders.path}/b/t-*.tar")
    with pytest.raises(SourceError, match="cannot list: Permission denied"):
        list(walk_folder(str(folders.path)))
    assert not hasty
    for seed in range(10):
        folders.plan_failures(errno.EIO, calls=("readdir", "getattr"), share=0.1, times=10**9, seed=seed)
        found = dict(walk_folder(str(folders.path)))
        assert [len(found[f"{folders.path}/{name}"]) for name in "abc"] == [2] * 3
    assert hasty


def test_a_directory_of_shards_is_not_taken_for_an_empty_one(folders, hasty):
    """Where it cannot be listed: an epoch that ends there would be without its shards."""
    place = folders.root / "claimed"
    place.mkdir(exist_ok=True)
    for name in ("a.tar", "b.tar", "._a.tar"):
        (place / name).write_bytes((folders.root / "s-0.tar").read_bytes())
    claims = DirectoryShardList(f"{folders.path}/claimed/", mode="resample", poll=None)
    folders.plan_failures(errno.EIO, calls=("readdir",), times=3)
    taken = [shard["url"] for shard in islice(claims.shards(0, random.Random), 4)]
    assert {Path(url).name.split("._")[0] for url in taken} <= {"a.tar", "b.tar"}
    assert len(taken) == 4
    folders.plan_failures(errno.EIO, calls=("readdir",), times=10**9)
    with pytest.raises(SourceError, match="cannot list: Input/output error, 8 attempts"):
        next(claims.shards(0, random.Random))


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_survive(mount, patient, workers):
    """Worker processes, and the process of a loader without them, with real pauses."""

    def open_loader(folder):
        dataset = open_elastic(folder).decode().to_tuple("__key__", "bin", "cls")
        return wds.Loader(dataset, batch_size=16, workers=workers)

    def draw(folder):
        with open_loader(folder) as loader:
            return [[list(map(bytes, column)) if isinstance(column[0], bytes) else list(column) for column in batch]
                    for batch in loader]  # fmt: skip

    wanted = draw(mount.root)
    mount.plan_failures(*TRANSIENT, calls=("read", "open", "getattr"), share=0.1, times=10**9, seed=1)
    assert draw(mount.path) == wanted
    assert mount.failures


def test_a_mount_that_is_mounted_again_is_read_on(tmp_path):
    """Its process is killed in the middle of a shard, and started again while the reader waits."""
    with mount_or_skip(tmp_path / "place") as mount:
        write_shards(mount.root)
        wanted = strip(read(mount.root), mount.root)
        samples, mounting = [], None
        for sample in wds.WebDataset(f"{mount.path}/s-{{0..{SHARDS - 1}}}.tar", shardshuffle=False):
            samples.append(sample)
            if len(samples) == 30:
                mount.kill()

                def mount_again():
                    time.sleep(0.5)
                    mount.unmount()
                    time.sleep(0.3)
                    mount.start()

                mounting = threading.Thread(target=mount_again)
                mounting.start()
        mounting.join()
        assert strip(samples, mount.path) == wanted
