"""Writing onto mounted file systems that fail: a shard is whole under its name, or that name is not there."""

import errno
import os
import random
from pathlib import Path

import pytest

import webdataset as wds
from support.flaky_mount import READING, WRITING, mount_or_skip
from webdataset.core.errors import AlreadyExists, SourceError
from webdataset.index.formats.table import SHARD_FORMATS, is_index
from webdataset.index.publish import publish_file
from webdataset.reshaping.folders import is_free
from webdataset.storage import retries
from webdataset.storage.local_listing import is_there
from webdataset.writing.local_file import LocalFileOutput

COUNT, EACH = 36, 12
CODES = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EINTR, errno.EAGAIN)
SAMPLES = [{"__key__": f"{index:03d}", "bin": bytes([index]) * (2000 + 900 * index)} for index in range(COUNT)]


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """A mount for shards."""
    with mount_or_skip(tmp_path_factory.mktemp("fuse") / "place") as mount:
        yield mount


def write(folder, ending, **options):
    """Write three shards; tell whether that succeeded."""
    try:
        with wds.ShardWriter(f"{folder}/%02d{ending}", maxcount=EACH, verbose=0, **options) as sink:
            for sample in SAMPLES:
                sink.write(sample)
    except SourceError:
        return False
    return True


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize(("ending", "options"), [(".tar", {"index": ["binary", "files"]}), (".tar.gz", {})])
def test_shards_are_whole_or_absent(mount, monkeypatch, seed, ending, options):
    """Whichever calls fail, once or for good, from the beginning on or later."""
    monkeypatch.setattr(retries, "sleep", lambda _: None)
    chosen = random.Random(seed)
    mount.heal()
    folder = f"{seed}{ending}"
    (mount.root / folder).mkdir()
    mount.plan_failures(
        *chosen.sample(CODES, chosen.randint(1, 3)),
        calls=tuple(chosen.sample(WRITING + READING, chosen.randint(1, 5))),
        share=chosen.choice((0.05, 0.3, 1.0)),
        times=chosen.choice((1, 2, 10**9)),
        after=chosen.choice((0, 1, 5, 20)),
        seed=seed,
    )
    done = write(mount.path / folder, ending, **options)
    mount.heal()
    shards = sorted((mount.root / folder).glob(f"[0-9]*{ending}"))
    assert len(shards) == COUNT // EACH or not done
    for shard in shards:
        first = int(shard.name[:2]) * EACH
        samples = list(wds.WebDataset(str(shard), shardshuffle=False))
        assert [(s["__key__"], s["bin"]) for s in samples] == [
            (s["__key__"], s["bin"]) for s in SAMPLES[first : first + EACH]
        ]


@pytest.mark.parametrize("call", ["unlink", "close"])
def test_why_a_shard_is_given_up_is_not_hidden(tmp_path, monkeypatch, caplog, call):
    """By a file system that does not close its file, or keeps what was written; that is a line of the log."""
    output = LocalFileOutput(str(tmp_path / "a.tar"))

    def refuse(*_arguments):
        raise OSError(errno.EIO, "refused")

    if call == "unlink":
        monkeypatch.setattr(os, "unlink", refuse)
    else:
        close = output.stream.close
        output.stream = type("Refusing", (), {"close": lambda self: (close(), refuse())})()
    output.abort()
    if call == "unlink":
        assert [record.message for record in caplog.records] == [f"{output.partial} is left over: refused"]
    monkeypatch.undo()
    assert os.path.exists(output.partial) is (call == "unlink")
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize(
    "error",
    [FileExistsError(errno.EEXIST, "there"), OSError(errno.EIO, "refused"), FileNotFoundError(errno.ENOENT, "gone")],
)
def test_an_answer_that_is_lost(tmp_path, monkeypatch, error):
    """NFS asks again, and is told that the name is taken, or the file gone: by what succeeded the first time."""
    path = tmp_path / "a.tar"
    replaces = isinstance(error, FileNotFoundError)
    if replaces:
        path.write_bytes(b"old")
    name = "replace" if replaces else "link"
    succeed = getattr(os, name)

    def lose_answer(source, target):
        succeed(source, target)
        raise error

    output = LocalFileOutput(str(path))
    output.write([b"new"], 3)
    monkeypatch.setattr(os, name, lose_answer)
    output.commit()
    output.abort()
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["a.tar"]


def test_another_writer_is_not_taken_for_this_one(tmp_path):
    """A file that another one has put there stays, and this one is kept beside it."""
    output = LocalFileOutput(str(tmp_path / "a.tar"))
    output.write([b"mine"], 4)
    (tmp_path / "a.tar").write_bytes(b"theirs")
    with pytest.raises(AlreadyExists, match="another writer made this file"):
        output.commit()
    output.abort()
    assert (tmp_path / "a.tar").read_bytes() == b"theirs"
    with open(output.partial, "rb") as kept:
        assert kept.read() == b"mine"


def test_a_leftover_is_no_failure(tmp_path, monkeypatch):
    """The shard has its name: that its first one cannot be removed leaves a name more, which a later writer removes."""
    output = LocalFileOutput(str(tmp_path / "a.tar"))
    output.write([b"new"], 3)

    def refuse(*_arguments):
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "unlink", refuse)
    output.commit()
    monkeypatch.undo()
    assert (tmp_path / "a.tar").read_bytes() == b"new"


def test_whether_a_file_is_there_must_be_known(mount):
    """It is not replaced, nor another error given, where the system does not say."""
    (mount.root / "there.tar").write_bytes(b"old")
    mount.plan_failures(errno.EIO, calls=("getattr",), times=10**9, name="/there.tar")
    for overwrite in (False, True):
        with pytest.raises(SourceError, match="cannot create: Input/output error"):
            LocalFileOutput(str(mount.path / "there.tar"), overwrite=overwrite)
    mount.heal()
    assert (mount.root / "there.tar").read_bytes() == b"old"


@pytest.mark.parametrize(
    "found", [is_there, lambda path: not is_free(Path(path)), lambda path: is_index(SHARD_FORMATS["dali"], path)]
)
def test_what_would_be_replaced_must_be_known(mount, monkeypatch, found):
    """A file of the user's is not taken for none while its file system does not answer."""
    monkeypatch.setattr(retries, "sleep", lambda _: None)
    path = str(mount.path / "own")
    (mount.root / "own").write_bytes(b"my notes")
    mount.plan_failures(errno.EIO, errno.ESTALE, calls=("getattr",), times=3, name="/own")
    known = found(path)
    mount.plan_failures(errno.EIO, calls=("getattr",), times=10**9, name="/own")
    with pytest.raises(SourceError, match="cannot look at: Input/output error, 8 attempts"):
        found(path)
    mount.heal()
    assert found(path) is known


@pytest.mark.parametrize("call", ["replace", "link"])
def test_why_an_index_is_given_up_is_not_hidden(tmp_path, monkeypatch, call):
    """Where what was prepared cannot be removed either."""

    def refuse(*_arguments):
        raise OSError(errno.EIO, "refused")

    writer = wds.TarWriter(str(tmp_path / "a.tar"), index=["files"])
    writer.write(SAMPLES[0])
    for name in ("unlink", "replace", "link")[: 2 if call == "replace" else 3]:
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(SourceError, match="cannot complete: refused"):
        publish_file(str(tmp_path / "b.json"), b"{}")
    with pytest.raises(SourceError, match="cannot complete: refused"):
        writer.close()
    monkeypatch.undo()
    assert not list(tmp_path.glob("[ab].json"))


def test_an_old_index_that_cannot_be_removed(tmp_path, monkeypatch):
    """It would be about another shard: the new one is given up, and it is said why."""
    for _ in range(2):
        writer = wds.TarWriter(str(tmp_path / "a.tar"), index=["files"])
        writer.write(SAMPLES[0])
        if (tmp_path / "a.json").exists():
            unlink = os.unlink

            def refuse(path):
                if str(path).endswith("a.json"):
                    raise OSError(errno.EIO, "refused")
                unlink(path)

            monkeypatch.setattr(os, "unlink", refuse)
            with pytest.raises(SourceError, match="cannot remove: refused"):
                writer.close()
        else:
            writer.close()
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.tar"]
