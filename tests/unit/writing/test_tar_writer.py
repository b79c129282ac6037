"""One shard: what is written, what is refused, and what is there in the end."""

import io
import logging
import multiprocessing
import os
import subprocess
import sys
import tarfile
import warnings

import pytest

from webdataset.core.errors import AlreadyExists, EncodingError, SampleError, SourceError, UsageError
from webdataset.tar.builder import END_MARK, EPOCH
from webdataset.writing.tar_writer import TarWriter


def members(source):
    """Return (name, content) of each member."""
    with tarfile.open(fileobj=io.BytesIO(source)) if isinstance(source, bytes) else tarfile.open(source) as opened:
        return [(member.name, opened.extractfile(member).read()) for member in opened]


def put_then_raise(writer, error):
    """Write a sample, then fail."""
    writer.write({"__key__": "a", "x": b"1"})
    raise error


def written(*samples, **options):
    """Return the bytes of an archive of these samples."""
    stream = io.BytesIO()
    with TarWriter(stream, **{"encoder": False, **options}) as writer:
        for sample in samples:
            writer.write(sample)
    return stream.getvalue()


def test_members_are_sorted_fields():
    """A sample becomes one member a field, sorted by extension."""
    assert members(written({"__key__": "a/b", "txt": b"t", "cls": b"1", "seg.png": b"p"})) == [
        ("a/b.cls", b"1"),
        ("a/b.seg.png", b"p"),
        ("a/b.txt", b"t"),
    ]


def test_write_returns_payload_bytes():
    """The return value counts payloads, without headers and padding."""
    with TarWriter(io.BytesIO(), encoder=False) as writer:
        assert writer.write({"__key__": "a", "x": b"123", "y": b"4567"}) == 7
        assert writer.write({"__key__": "b"}) == 0


def test_members_carry_owner_mode_and_a_constant_time():
    """Defaults are upstream's, but for the time, which is the same in every run."""
    with tarfile.open(fileobj=io.BytesIO(written({"__key__": "a", "x": b""}))) as opened:
        member = opened.getmembers()[0]
    assert (member.uname, member.gname, member.mode, member.uid, member.gid) == ("bigdata", "bigdata", 0o444, 0, 0)
    assert member.mtime == EPOCH


def test_owner_mode_and_time_as_given():
    """User, group, mode and mtime are written as given; fractions are kept by format="pax" only."""
    options = {"user": "u", "group": "g", "mode": 0o600, "mtime": 12.5}
    for format, mtime in ((None, 12), ("gnu", 12), (tarfile.PAX_FORMAT, 12.5)):
        with tarfile.open(fileobj=io.BytesIO(written({"__key__": "a", "x": b""}, format=format, **options))) as opened:
            member = opened.getmembers()[0]
        assert (member.uname, member.gname, member.mode, member.mtime) == ("u", "g", 0o600, mtime)


def test_tiny_members_cost_two_blocks():
    """1000 tiny members are half of upstream's 2,058,240 bytes, and runs are byte-identical."""
    samples = [{"__key__": f"{index:04d}", "cls": b"1"} for index in range(1000)]
    first = written(*samples)
    assert len(first) == 1000 * 1024 + len(END_MARK) <= 0.52 * 2_058_240
    assert first == written(*samples)


def test_every_archive_ends_with_its_mark():
    """Even an archive without samples has the two blocks of zeros, and no more."""
    assert written() == END_MARK
    assert members(written()) == []


def test_metadata_is_left_out():
    """Fields that start with an underscore are not written by default."""
    assert members(written({"__key__": "a", "__url__": "u", "_x": 5, "x": b""})) == [("a.x", b"")]


def test_keep_meta_writes_metadata():
    """With keep_meta they are, as text or bytes; the key itself is not."""
    sample = {"__key__": "a", "__url__": "ü\udcff", "_x": b"b", "x": b""}
    assert members(written(sample, keep_meta=True)) == [
        ("a.__url__", "ü\udcff".encode("utf-8", "surrogateescape")),
        ("a._x", b"b"),
        ("a.x", b""),
    ]
    with pytest.raises(EncodingError, match="metadata must be text or bytes"):
        written({"__key__": "a", "_x": 5}, keep_meta=True)


@pytest.mark.parametrize("content", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"axbxcx")[::2]])
def test_other_buffers(content):
    """Bytearrays and memoryviews are written like bytes."""
    assert members(written({"__key__": "a", "x": content})) == [("a.x", b"abc")]


def test_buffers_of_wider_numbers():
    """A memoryview counts in bytes, not in numbers."""
    numbers = memoryview(b"abcdefgh").cast("I")
    assert members(written({"__key__": "a", "x": numbers})) == [("a.x", b"abcdefgh")]


def test_buffers_may_be_reused(tmp_path):
    """A bytearray that is changed after write() does not change what was written."""
    path = tmp_path / "a.tar"
    content = bytearray(b"old")
    with TarWriter(path, encoder=False) as writer:
        writer.write({"__key__": "a", "x": content})
        content[:] = b"new"
    assert members(path) == [("a.x", b"old")]


@pytest.mark.parametrize("content", ["text", 5, None, [b"x"]])
def test_without_encoder_fields_are_bytes(content):
    """Anything else names the field, the type, the key and the file, and nothing of the sample is written."""
    stream = io.BytesIO()
    writer = TarWriter(stream, encoder=False)
    with pytest.raises(EncodingError, match="doesn't map to a bytes") as caught:
        writer.write({"__key__": "k", "a": b"good", "x": content})
    assert (caught.value.key, caught.value.field) == ("k", "x")
    writer.write({"__key__": "l", "a": b"good"})
    writer.close()
    assert members(stream.getvalue()) == [("l.a", b"good")]


@pytest.mark.parametrize(
    "sample",
    [{"x": b""}, {"__key__": 3}, {"__key__": b"a"}, {"__key__": ""}, {"__key__": "a/"}, {"__key__": "a\0"}, [], 5],
)
def test_samples_need_a_key(sample):
    """A sample without a usable key is an error, and also a ValueError."""
    with pytest.raises(SampleError, match="__key__"):
        written(sample)


def test_keys_may_be_subclasses_of_text():
    """A key of a class derived from str (numpy's, for example) is as good as text."""

    class Name(str):
        __slots__ = ()

    assert members(written({"__key__": Name("a"), "x": b""})) == [("a.x", b"")]


def test_repeated_key():
    """A sample with the key of the one before reads back as a part of it: one warning, or as the policy says."""
    parts = [{"__key__": "a", "x": b""}, {"__key__": "a", "y": b""}, {"__key__": "a", "z": b""}]
    with pytest.raises(SampleError, match="read back as one"):
        written(*parts, check_keys="error")
    with pytest.warns(UserWarning, match="read back as one") as caught:
        content = written(*parts)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(*parts, check_keys="ignore") == content
    assert [name for name, _ in members(content)] == ["a.x", "a.y", "a.z"]


@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_a_part_that_repeats_a_field(policy):
    """It would be lost on reading: an error, with any of the parts before, unless ignored; nothing of it is written."""
    parts = [{"__key__": "a", "x": b""}, {"__key__": "a", "y": b""}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for wrong in ("x", "X", "y"):
            if policy == "ignore":
                assert len(members(written(*parts, {"__key__": "a", wrong: b"2"}, check_keys=policy))) == 3
                continue
            writer = TarWriter(io.BytesIO(), encoder=False, check_keys=policy)
            writer.write(parts[0])
            if policy == "warn":
                writer.write(parts[1])
            with pytest.raises(SampleError, match="read back as one"):
                writer.write({"__key__": "a", wrong: b"2"})
            assert writer.write({"__key__": "b", "x": b"2"}) == 1
            writer.close()


def test_a_refused_sample_does_not_count_as_the_one_before():
    """After a sample failed, the same key may be written with better fields."""
    writer = TarWriter(io.BytesIO(), encoder=False)
    with pytest.raises(EncodingError):
        writer.write({"__key__": "a", "x": 5})
    assert writer.write({"__key__": "a", "x": b"5"}) == 1
    writer.close()


def test_dotted_keys_warn_once():
    """A key with a dot in its last part is written, with one warning."""
    with pytest.warns(UserWarning, match="reads back as 'dir/a', .5.x") as caught:
        archive = written(*({"__key__": f"dir/a.{index}", "x": b""} for index in range(5, 8)))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert [name for name, _ in members(archive)] == ["dir/a.5.x", "dir/a.6.x", "dir/a.7.x"]


def test_fields_of_all_orders():
    """Samples with different fields, in different orders, are each planned correctly; plans are forgotten in time."""
    stream = io.BytesIO()
    with TarWriter(stream, encoder=False) as writer:
        for index in range(2500):
            writer.write({"__key__": str(index), f"z{index}": b"z", "a": b"a"})
        assert len(writer._plans) <= 1000
    assert members(stream.getvalue())[-2:] == [("2499.a", b"a"), ("2499.z2499", b"z")]


def test_offset_is_where_the_next_header_goes(tmp_path):
    """The offset counts what is gathered and what is written already."""
    with TarWriter(tmp_path / "a.tar", encoder=False) as writer:
        assert writer.offset == 0
        writer.write({"__key__": "a", "x": b"1"})
        assert writer.offset == 1024
        writer.write({"__key__": "b", "x": bytes(300_000)})
        assert writer.offset == 1024 + 512 + 300_032
    with tarfile.open(tmp_path / "a.tar") as opened:
        assert [member.offset for member in opened] == [0, 1024]


def test_many_fields_in_one_sample(tmp_path):
    """A sample of more fields than one system call takes pieces is written whole."""
    sample = {f"f{index:05d}": b"%d" % index for index in range(3000)}
    with TarWriter(tmp_path / "a.tar", encoder=False) as writer:
        writer.write({"__key__": "a", **sample})
    assert members(tmp_path / "a.tar") == [(f"a.{field}", content) for field, content in sample.items()]


def test_encoders():
    """A function replaces the whole sample; False and None leave it."""
    assert members(written({"__key__": "a", "x": "t"}, encoder=lambda sample: {"__key__": "b", "y": b"u"})) == [
        ("b.y", b"u")
    ]
    assert members(written({"__key__": "a", "x": b"t"}, encoder=None)) == [("a.x", b"t")]
    with pytest.raises(UsageError, match="no encoder"):
        written(encoder="jpg")


def test_nothing_under_the_name_before_close(tmp_path):
    """While it is written the file has another, hidden name; on close it appears, and closing again is harmless."""
    path = tmp_path / "a.tar"
    writer = TarWriter(str(path), encoder=False)
    writer.write({"__key__": "a", "x": b"1"})
    (partial,) = tmp_path.iterdir()
    assert partial.name.startswith(f".a.tar.{os.getpid()}-")
    assert partial.name.endswith(".partial")
    writer.close()
    writer.close()
    assert list(tmp_path.iterdir()) == [path]
    assert writer.closed


def test_exception_leaves_nothing(tmp_path):
    """After an exception inside `with` nothing is there, or still the old file."""
    path = tmp_path / "a.tar"
    for before in (None, b"old"):
        if before:
            path.write_bytes(before)
        with pytest.raises(KeyboardInterrupt), TarWriter(path, encoder=False) as writer:
            put_then_raise(writer, KeyboardInterrupt)
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [before] * bool(before)


def test_abort_leaves_nothing(tmp_path):
    """Neither does abort(), after which nothing can be written; close() then does nothing."""
    writer = TarWriter(tmp_path / "a.tar", encoder=False)
    writer.abort()
    writer.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="aborted"):
        writer.write({"__key__": "a"})


def test_writing_after_close():
    """A closed writer takes no more samples."""
    writer = TarWriter(io.BytesIO(), encoder=False)
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.write({"__key__": "a"})


def test_aborted_archive_in_a_file_object_has_no_end_mark():
    """In a file object that the caller keeps, an archive that was given up does not pass for complete."""
    stream = io.BytesIO()
    with pytest.raises(ZeroDivisionError), TarWriter(stream, encoder=False) as writer:
        put_then_raise(writer, ZeroDivisionError)
    assert len(stream.getvalue()) == 1024
    assert not stream.closed


def test_failed_write_makes_the_archive_fail():
    """After the output failed, no sample can be added and close() does not pretend that all is well."""

    class Full(io.BytesIO):
        def write(self, piece):
            raise OSError(28, "No space left on device")

    writer = TarWriter(Full(), encoder=False)
    with pytest.raises(OSError, match="No space"):
        writer.write({"__key__": "a", "x": b"1"})
    with pytest.raises(UsageError, match="broken by a failed write"):
        writer.write({"__key__": "b", "x": b"1"})
    with pytest.raises(SourceError, match="not complete"):
        writer.close()
    assert writer.closed


def test_overwrite_false(tmp_path):
    """With overwrite=False an existing file is an error at the start, or at the end if it appeared meanwhile."""
    path = tmp_path / "a.tar"
    with TarWriter(path, encoder=False, overwrite=False) as writer:
        writer.write({"__key__": "a", "x": b"1"})
    with pytest.raises(FileExistsError, match="overwrite=True"):
        TarWriter(path, encoder=False, overwrite=False)
    path.unlink()
    writer = TarWriter(path, encoder=False, overwrite=False)
    writer.write({"__key__": "b", "x": b"1"})
    path.write_bytes(b"theirs")
    with pytest.raises(AlreadyExists, match="kept as"):
        writer.close()
    assert path.read_bytes() == b"theirs"
    (kept,) = tmp_path.glob(".*.partial")
    assert members(kept) == [("b.x", b"1")]


def test_overwriting_an_old_file_and_not_a_new_one(tmp_path):
    """By default an old file is replaced, but not one that another writer made at the same time."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"old")
    first, second = (TarWriter(path, encoder=False) for _ in range(2))
    first.write({"__key__": "first", "x": b"1"})
    second.write({"__key__": "second", "x": b"1"})
    first.close()
    with pytest.raises(AlreadyExists, match="another writer"):
        second.close()
    assert members(path) == [("first.x", b"1")]
    (kept,) = tmp_path.glob(".*.partial")
    assert members(kept) == [("second.x", b"1")]


def test_forgotten_writer_completes_its_shard_and_says_so(tmp_path, caplog):
    """Programs that never close their writer find the shard, as with the published versions; one warning says so."""
    writer = TarWriter(tmp_path / "a.tar", encoder=False)
    writer.write({"__key__": "a", "x": b"1"})
    with caplog.at_level(logging.WARNING, "webdataset"), pytest.warns(ResourceWarning, match="never closed"):
        writer.__del__()
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert members(tmp_path / "a.tar") == [("a.x", b"1")]
    assert (tmp_path / "a.tar").read_bytes().endswith(bytes(1024))
    assert caplog.text.count("was never closed: it was completed with its 1 samples") == 1
    # what a program does later, in a __del__ of its own, changes nothing
    writer.close()


def test_a_forgotten_writer_that_cannot_complete_says_why(tmp_path, caplog):
    """It goes away without an exception; another writer's file stays."""
    writer = TarWriter(tmp_path / "a.tar", encoder=False)
    writer.write({"__key__": "a", "x": b"1"})
    (tmp_path / "a.tar").write_bytes(b"other")
    with caplog.at_level(logging.WARNING, "webdataset"), pytest.warns(ResourceWarning, match="could not be completed"):
        writer.__del__()
    assert "another writer made this file" in caplog.text
    assert (tmp_path / "a.tar").read_bytes() == b"other"


def _leave(writer):
    """Leave a forked copy of a writer by every exit."""
    writer.abort()
    writer.__del__()
    with pytest.raises(UsageError, match="belongs to the process"):
        writer.write({"__key__": "b", "x": bytes(1 << 18)})
    with pytest.raises(UsageError, match="belongs to the process"):
        writer.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_forked_copies_leave_the_file_alone(tmp_path):
    """A copy of the writer in a forked process neither completes nor removes the file of its parent."""
    path = tmp_path / "a.tar"
    with TarWriter(path, encoder=False) as writer:
        writer.write({"__key__": "a", "x": b"1"})
        child = multiprocessing.get_context("fork").Process(target=_leave, args=(writer,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert members(path) == [("a.x", b"1")]


def test_attributes():
    """What upstream's writer shows is there."""
    stream = io.BytesIO()
    writer = TarWriter(stream, encoder=False, user="u", compress="gz")
    shown = (writer.stream, writer.user, writer.group, writer.mode, writer.compress, writer.keep_meta, writer.tarstream)
    assert shown == (stream, "u", "bigdata", 0o444, "gz", False, writer)
    assert not writer.own_fileobj
    writer.close()


def test_positional_arguments():
    """The order of upstream's arguments holds."""
    stream = io.BytesIO()
    with TarWriter(stream, "u", "g", 0o600, "gz", None, True, 7, "gnu") as writer:
        writer.write({"__key__": "a", "_m": "1"})
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as opened:
        (member,) = opened.getmembers()
    assert (member.name, member.uname, member.gname, member.mode, member.mtime) == ("a._m", "u", "g", 0o600, 7)


def test_unknown_arguments():
    """An unknown format, compression or policy is an error before any file is made."""
    for options in (
        {"format": "zip"},
        {"compress": "rar"},
        {"check_keys": "maybe"},
        {"compress": "gz", "compresslevel": 77},
    ):
        with pytest.raises(UsageError):
            TarWriter(io.BytesIO(), encoder=False, **options)


def test_an_absolute_key_is_noticed(tmp_path):
    """The writer asks the rules about it."""
    with TarWriter(str(tmp_path / "a.tar"), check_keys="error") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        with pytest.raises(SampleError, match="absolute"):
            writer.write({"__key__": "/a", "txt": "x"})


def test_the_permissions_of_a_file_that_is_replaced_stay(tmp_path):
    """Who could not read the old file cannot read the new one."""
    path = tmp_path / "a.tar"
    for mode in (0o600, 0o640, 0o666):
        path.write_bytes(b"old")
        path.chmod(mode)
        with TarWriter(path, encoder=False) as writer:
            writer.write({"__key__": "a", "x": b"1"})
        assert path.stat().st_mode & 0o777 == mode
    assert members(path) == [("a.x", b"1")]


ENDS = """
import webdataset as wds

class Job:
    def __init__(self):
        self.sink = wds.TarWriter({path!r})
        self.sink.write({{"__key__": "a", "txt": "1"}})

    def __del__(self):
        self.sink.close()

job = Job()
closed = wds.TarWriter({other!r})
closed.close()
{end}
"""


def _run_to_its_end(tmp_path, end):
    program = ENDS.format(path=str(tmp_path / "a.tar"), other=str(tmp_path / "b.tar"), end=end)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "del job"])
def test_a_program_that_ends_without_closing(tmp_path, end):
    """Its shards are complete, though its writer is a global that its own ``__del__`` closes, or is never closed."""
    done = _run_to_its_end(tmp_path, end)
    assert done.returncode == (3 if "3" in end else 0), done.stderr
    assert done.stderr.count("was never closed: it was completed with its 1 samples") == ("del" not in end)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]
    assert members(tmp_path / "a.tar") == [("a.txt", b"1")]


CHILDREN = """
import multiprocessing
import sys
import webdataset as wds

sinks = []

def begin(folder):
    sinks.append(wds.ShardWriter(folder + "/%d.tar", maxcount=2, verbose=0))

def write(n):
    sinks[0].write({"__key__": str(n), "txt": "a"})

def run(folder):
    begin(folder)
    for n in range(3):
        write(n)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    child = context.Process(target=run, args=(sys.argv[2],))
    child.start()
    child.join()
    with context.Pool(1, begin, (sys.argv[3],)) as pool:
        pool.map(write, range(3))
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_child_processes_that_end_without_closing(tmp_path, context):
    """The last shards of writers that are globals of a process, or of a pool's workers, are complete."""
    if context not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {context} on this system")
    folders = [tmp_path / "process", tmp_path / "pool"]
    for folder in folders:
        folder.mkdir()
    (tmp_path / "main.py").write_text(CHILDREN)
    command = [sys.executable, str(tmp_path / "main.py"), context, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was never closed: it was completed with its 1 samples") == 2
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["0.tar", "1.tar"]
        assert members(folder / "1.tar") == [("2.txt", b"a")]


@pytest.mark.parametrize("end", ["raise ValueError", "def f():\n    raise KeyboardInterrupt\nf()"])
def test_a_program_that_an_error_ends(tmp_path, end):
    """It says where the samples are; nothing appears under the shard's name."""
    done = _run_to_its_end(tmp_path, end)
    assert done.returncode != 0
    assert done.stderr.count("was never closed: its 1 samples are in") == 1
    (kept,) = tmp_path.glob(".a.tar.*.partial")
    assert str(kept) in done.stderr
    assert members(kept) == [("a.txt", b"1")]
    assert [path.name for path in tmp_path.glob("*.tar") if path != kept] == ["b.tar"]


def _close_together(path, barrier, rounds, results):
    for number in range(rounds):
        writer = TarWriter(f"{path}{number}.tar", encoder=False)
        writer.write({"__key__": str(os.getpid()), "x": b"1"})
        barrier.wait(60)
        try:
            writer.close()
        except AlreadyExists:
            results.put((number, "refused"))
        else:
            results.put((number, str(os.getpid())))


@pytest.mark.parametrize("old", [False, True])
def test_writers_of_one_name_that_close_at_the_same_moment(tmp_path, old):
    """One of them is told: no shard is lost without a word, whether the file is new or replaces another."""
    rounds = 120
    if old:
        for number in range(rounds):
            (tmp_path / f"{number}.tar").write_bytes(b"old")
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.SimpleQueue()
    workers = [
        context.Process(target=_close_together, args=(f"{tmp_path}/", barrier, rounds, results)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    outcomes = [results.get() for _ in range(2 * rounds)]
    for worker in workers:
        worker.join(60)
    for number in range(rounds):
        (kept,) = {outcome for place, outcome in outcomes if place == number} - {"refused"}
        assert members(tmp_path / f"{number}.tar") == [(f"{kept}.x", b"1")]
    assert sum(outcome == "refused" for _, outcome in outcomes) == rounds
