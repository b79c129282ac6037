"""Headers that declare more than there is: refused before the memory is taken, and large members that are honest pass.

Each shard is read in a child whose address space is bounded, as by ``ulimit -v``.
"""

import gzip
import io
import os
import subprocess
import sys
import zlib

import pytest

import webdataset as wds
from webdataset.core import errors
from webdataset.samples import member_sizes
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.tar.header import Limits
from webdataset.testing.archives import archive, header, member, old_gnu_sparse, padded, pax_header

resource = pytest.importorskip("resource")
MIB = 1 << 20
CHILD = """
import sys
import webdataset as wds
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.storage.open_url import open_stream
from support.hostile import limit_process
list(wds.WebDataset(sys.argv[3]))
limit_process(int(sys.argv[2]) << 20, 120)
try:
    print([{k: len(v) for k, v in s.items() if k[0] != "_"} for s in wds.WebDataset(sys.argv[1], empty_check=False)])
except Exception as error:
    print(type(error).__name__, error)
"""


def read_within(tmp_path, data, mebibytes, *, pipe=False, **environment):
    """Read a shard in a child that may take some MiB more than it has; return what it says."""
    path, small = tmp_path / "x.tar", tmp_path / "small.tar.gz"
    if data is not None:
        path.write_bytes(data)
    small.write_bytes(gzip.compress(archive(member(b"a.txt", b"1"))))
    url = f"pipe:cat {path}" if pipe else str(path)
    child = [sys.executable, "-c", CHILD, url, str(mebibytes), str(small)]
    done = subprocess.run(child, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def zeros_gz(size, *, before=b"", after=b""):
    """Return ``size`` zeros compressed, between other bytes; never whole in memory."""
    engine = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [engine.compress(before)]
    parts += [engine.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(parts) + engine.compress(after) + engine.flush()


needs_linux = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks /proc")  # noqa: PTH110


@needs_linux
@pytest.mark.parametrize("pipe", [False, True])
@pytest.mark.parametrize("kind", ["gz", "plain", "sparse", "pax sparse", "in a record"])
def test_declared_sizes_that_nobody_can_take(tmp_path, kind, pipe):
    """A shard of a few KB or MB that declares 4 GiB: LimitExceeded with url, member and setting, not a MemoryError."""
    four = 4 << 30
    data = {
        "gz": lambda: zeros_gz(256 * MIB, before=header(b"big.bin", four)),
        "plain": lambda: header(b"big.bin", four) + bytes(1024),
        "sparse": lambda: old_gnu_sparse(b"big.bin", bytes(600), [(0, 3)]).replace(b"%011o\0" % 600, b"%011o\0" % four),
        "pax sparse": lambda: pax_header(
            [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.name", b"big.bin"), (b"GNU.sparse.realsize", b"%d" % four)]
        ) + member(b"x", padded(b"1\n0\n3\n") + b"abc"),
        "in a record": lambda: pax_header([(b"size", b"%d" % four)]) + header(b"big.bin", 0),
    }[kind]()  # fmt: skip
    if kind == "sparse":
        # the size in the map changed its header
        blank = data[:148] + b" " * 8 + data[156:512]
        data = data[:148] + b"%06o\0 " % sum(blank) + data[156:] + bytes(1024)
    message = read_within(tmp_path, data, 700, pipe=pipe)
    assert message.startswith("LimitExceeded member 'big.bin' declares 4294967296 bytes"), message
    assert "WDS_MAX_MEMBER_BYTES" in message
    assert "x.tar" in message


@needs_linux
def test_growth_from_a_pipe_is_stopped(tmp_path):
    """Where nobody knows the shard's length, a member may grow a hundredfold beyond 128 MiB, and no more."""
    data = zeros_gz(400 * MIB, before=header(b"a.bin", 400 * MIB), after=bytes(1024))
    message = read_within(tmp_path, data, 3000, pipe=True)
    assert message.startswith("LimitExceeded member 'a.bin' declares 419430400 bytes, and grows from"), message
    assert read_within(tmp_path, data, 3000, WDS_MAX_MEMBER_BYTES="500000000") == "[{'bin': 419430400}]"
    message = read_within(tmp_path, data, 3000, WDS_MAX_MEMBER_BYTES="300000000")
    assert "more than the 300000000 of WDS_MAX_MEMBER_BYTES" in message


@needs_linux
@pytest.mark.parametrize("kind", ["plain", "gz", "sparse", "pipe"])
def test_large_members_that_are_honest_pass(tmp_path, kind):
    """A member of 400 MiB is read where 700 MiB are left: plain, compressed, sparse, from a pipe; never held twice."""
    size = 400 * MIB
    path = tmp_path / "x.tar"
    if kind == "sparse":
        block = old_gnu_sparse(b"a.bin", bytes(600), [(0, 3)]).replace(b"%011o\0" % 600, b"%011o\0" % size)
        blank = block[:148] + b" " * 8 + block[156:512]
        path.write_bytes(block[:148] + b"%06o\0 " % sum(blank) + block[156:] + bytes(1024))
    elif kind == "gz":
        # bytes that do not compress, as videos: stored in blocks
        engine, piece = zlib.compressobj(0, zlib.DEFLATED, 31), os.urandom(MIB)
        with path.open("wb") as file:
            file.write(engine.compress(header(b"a.bin", size)))
            for _ in range(400):
                file.write(engine.compress(piece))
            file.write(engine.compress(bytes(1024)) + engine.flush())
    else:
        with path.open("wb") as file:
            file.write(header(b"a.bin", size))
            file.truncate(512 + size + 1024)
    assert read_within(tmp_path, None, 700, pipe=kind == "pipe") == "[{'bin': 419430400}]"


def test_memory_that_is_not_there_after_all(monkeypatch):
    """A MemoryError inside a member becomes LimitExceeded, which handlers see like any other error."""

    class Poor(io.BytesIO):
        """A stream whose second read finds no memory."""

        def read(self, size=-1):
            """Read once."""
            if self.tell():
                raise MemoryError
            return super().read(2048)

    shards = [{"url": "x.tar", "stream": Poor(archive(member(b"a.bin", bytes(300_000))))}]
    with pytest.raises(
        errors.LimitExceeded, match="'a.bin' declares 300000 bytes, for which there is no memory"
    ) as caught:
        list(read_samples(shards, Reading()))
    assert isinstance(caught.value.__cause__, MemoryError)
    assert (caught.value.url, caught.value.field, caught.value.offset) == ("x.tar", "a.bin", 0)


def test_samples_before_come_and_the_next_shard_follows(tmp_path, monkeypatch):
    """The member is refused, what came before it is given, and the handler decides on; random access says the same."""
    monkeypatch.setattr(member_sizes, "FREE_BYTES", 1000)
    monkeypatch.setenv("WDS_MAX_MEMBER_BYTES", "240000")
    # the native core reads members of less than FREE_BYTES by itself
    monkeypatch.setenv("WDS_NATIVE", "0")
    sparse = old_gnu_sparse(b"b.bin", bytes(250_000) + b"end", [(250_000, 3)])
    for number, bad in enumerate((member(b"b.bin", bytes(250_000)), sparse)):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(archive(member(b"a.bin", bytes(30_000)), bad))
        seen = []
        dataset = wds.WebDataset([str(path), str(path)], handler=lambda error: seen.append(error) or True)
        assert [sample["__key__"] for sample in dataset] == ["a", "a"]
        assert [type(error) for error in seen] == [errors.LimitExceeded] * 2
        assert seen[0].key is None
    with pytest.raises(errors.LimitExceeded):
        wds.IndexedShard(path)[1]
    monkeypatch.setenv("WDS_MAX_MEMBER_BYTES", "260000")
    assert len(list(wds.WebDataset([str(path)]))) == 2


@pytest.mark.parametrize("size", [64 * MIB, 64 * MIB + 1])
def test_the_native_core_leaves_what_is_bounded_to_python(tmp_path, monkeypatch, size):
    """It reads bodies of up to 64 MiB, which is less than what Python takes without a question."""
    monkeypatch.setattr(member_sizes, "FREE_BYTES", 1000)
    monkeypatch.setenv("WDS_MAX_MEMBER_BYTES", "2000")
    small = tmp_path / "small.tar"
    small.write_bytes(archive(member(b"a.bin", b"1")))
    assert len(list(wds.WebDataset(str(small)))) == 1
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(member(b"a.bin", b"1") + header(b"b.bin", size))
        file.truncate(1536 + (size + 511) // 512 * 512 + 1024)
    if size > 64 * MIB or wds.__native__ != "yes":
        with pytest.raises(errors.LimitExceeded):
            list(wds.WebDataset(str(path)))
    else:
        assert [len(sample["bin"]) for sample in wds.WebDataset(str(path))] == [1, size]


@needs_linux
@pytest.mark.parametrize("native", ["0", "1"])
def test_a_member_for_which_there_is_no_memory(tmp_path, native):
    """It is named, whether C or Python would have read it."""
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(member(b"a.bin", b"1") + header(b"b.bin", 60 * MIB))
        file.truncate(1536 + 60 * MIB + 1024)
    message = read_within(tmp_path, None, 40, WDS_NATIVE=native)
    assert message.startswith("LimitExceeded member 'b.bin' declares 62914560 bytes, for which there is no memory now")


def test_room_is_what_the_narrowest_limit_leaves(tmp_path, monkeypatch):
    """Machine, container and address space: the least counts, and a system that says nothing bounds nothing."""
    monkeypatch.setattr(member_sizes, "_GROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    whole = member_sizes.available_memory_bytes()
    (tmp_path / "memory.max").write_text("4000000\n")
    assert member_sizes.available_memory_bytes() == 3_000_000
    monkeypatch.setattr(member_sizes, "_process_limits", lambda: iter([500]))
    assert member_sizes.available_memory_bytes() == 500
    assert whole > 4_000_000
    for name in ("_machine_memory", "_container_limits", "_process_limits"):
        monkeypatch.setattr(member_sizes, name, lambda: iter(()))
    assert member_sizes.available_memory_bytes() is None


def test_limits_of_expansion_stay(monkeypatch):
    """The limit on sparse members holds as before, and small ones are not weighed."""
    monkeypatch.setattr(member_sizes, "available_memory_bytes", lambda: 0)
    data = archive(old_gnu_sparse(b"b.bin", bytes(50_000) + b"end", [(50_000, 3)]))
    shard = {"url": "x", "stream": io.BytesIO(data)}
    assert len(list(read_samples([shard], Reading()))[0]["bin"]) == 50_003
    shard = {"url": "x", "stream": io.BytesIO(data)}
    with pytest.raises(errors.LimitExceeded, match="expands to 50003"):
        list(read_samples([shard], Reading(limits=Limits(expanded_bytes=100))))


def test_growth_beyond_a_hundredfold_is_refused(monkeypatch):
    """A member is weighed against the compressed bytes of its shard: a hundred times as much is the most."""
    monkeypatch.setattr(member_sizes, "available_memory_bytes", lambda: None)
    monkeypatch.delenv("WDS_MAX_MEMBER_BYTES", raising=False)
    stored = 3 << 20
    body = member_sizes.MemberBody(0x30, "a.bin", 100 * stored, 512)
    member_sizes.check_member_size(body, lambda: stored)
    member_sizes.check_member_growth(body, 100 * stored, stored)
    with pytest.raises(errors.LimitExceeded, match="in a shard of 3145728 compressed bytes"):
        member_sizes.check_member_size(body._replace(size=100 * stored + 1), lambda: stored)
    with pytest.raises(errors.LimitExceeded, match="grows from 3145728 compressed bytes"):
        member_sizes.check_member_growth(body, 100 * stored + 1, stored)
