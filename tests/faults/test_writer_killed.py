"""A writer that is killed, runs out of space or fails at any call leaves no incomplete file under a final name."""

import errno
import io
import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from webdataset.core import durable_files
from webdataset.core.errors import WebDatasetError
from webdataset.testing import archives
from webdataset.writing import local_file
from webdataset.writing.shard_writer import ShardWriter

PER_SHARD = 20
WRITER = """
import sys
from webdataset.writing.shard_writer import ShardWriter
folder, pattern, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
writer = ShardWriter(folder + "/" + pattern, maxcount={per_shard}, encoder=False, compress=None)
for index in range(count):
    writer.write({{"__key__": f"{{index:06d}}", "x": bytes([index % 256]) * (index * 977 % 20000), "y": b"%d" % index}})
    print(index, flush=True)
writer.close()
""".format(per_shard=PER_SHARD)


def check_complete(folder):
    """Check that every file under a final name is a complete shard; return the samples' numbers in order."""
    found = []
    for path in sorted(folder.glob("[!.]*")):
        with tarfile.open(path) as opened:
            contents = {member.name: opened.extractfile(member).read() for member in opened}
        if path.suffix == ".tar":
            assert path.read_bytes().endswith(bytes(1024))
        numbers = sorted({int(name.split(".")[0]) for name in contents})
        assert len(contents) == 2 * len(numbers)
        for index in numbers:
            assert contents[f"{index:06d}.x"] == bytes([index % 256]) * (index * 977 % 20000)
            assert contents[f"{index:06d}.y"] == b"%d" % index
        found += numbers
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pattern", ["a-%03d.tar", "a-%03d.tar.gz"])
def test_killed_at_a_random_point(memory_folder, pattern, seed):
    """After SIGKILL each file under a final name is complete; together they hold all samples of finished shards."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(memory_folder), pattern, "1000000"], stdout=subprocess.PIPE, text=True
    )
    rng = random.Random(seed)
    acknowledged = -1
    for _ in range(rng.randrange(1, 150)):
        acknowledged = int(child.stdout.readline())
    time.sleep(rng.random() / 100)
    child.kill()
    rest = child.communicate()[0].split()
    assert child.returncode == -signal.SIGKILL
    acknowledged = int(rest[-1]) if rest and rest[-1].isdigit() else acknowledged
    found = check_complete(memory_folder)
    assert found == list(range(len(found)))
    finished = acknowledged // PER_SHARD * PER_SHARD
    assert finished <= len(found) <= finished + PER_SHARD
    leftover = [path for path in memory_folder.iterdir() if path.name.startswith(".")]
    assert len(leftover) <= 1
    assert all(path.name.endswith(".partial") for path in leftover)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_ended_by_a_signal(memory_folder, end):
    """So it is after the polite signals; a KeyboardInterrupt removes the partial file where `with` is used."""
    program = (
        WRITER.replace("writer = ", "with ")
        .replace("compress=None)", "compress=None) as writer:")
        .replace("\nfor ", "\n  for ")
        .replace("\n    ", "\n      ")
        .replace("\nwriter.close()", "")
    )
    # a suite started in the background has inherited SIGINT ignored, and so would the writer
    program = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + program
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(memory_folder), "a-%d.tar", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for _ in range(50):
        child.stdout.readline()
    child.send_signal(end)
    child.communicate()
    assert child.returncode != 0
    assert len(check_complete(memory_folder)) >= 40
    if end == signal.SIGINT:
        assert list(memory_folder.glob(".*")) == []


def _small_files():
    """Limit files to 50,000 bytes, by an error rather than a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


@pytest.mark.parametrize("pattern", ["a-%d.tar", "a-%d.tar.gz"])
def test_no_space(memory_folder, pattern):
    """When a file cannot grow the error names it, nothing is under its name, and earlier shards stay."""
    program = f"""
import os
from webdataset.core.errors import SourceError
from webdataset.writing.shard_writer import ShardWriter
try:
    with ShardWriter({str(memory_folder)!r} + "/{pattern}", maxcount=2, encoder=False) as writer:
        writer.write({{"__key__": "000000", "x": b"", "y": b"0"}})
        writer.next_stream()
        for index in range(100):
            writer.write({{"__key__": f"{{index:06d}}", "x": os.urandom(40000)}})
except SourceError as error:
    print(error.errno, error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=_small_files, capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith(f"{errno.EFBIG} cannot write: File too large (url=")
    assert check_complete(memory_folder) == [0]
    assert list(memory_folder.glob(".*")) == []


def samples(fail_at):
    """Yield samples until the iterator itself fails."""
    for index in range(100):
        if index == fail_at:
            raise LookupError("the source of samples failed")
        yield {"__key__": f"{index:06d}", "x": bytes([index]) * (index * 977 % 20000), "y": b"%d" % index}


@pytest.mark.parametrize("fail_at", [0, 1, PER_SHARD - 1, PER_SHARD, PER_SHARD + 1, 55])
def test_failing_source_of_samples(tmp_path, fail_at):
    """When the samples' iterator raises, only finished shards stay."""
    with pytest.raises(LookupError), ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=PER_SHARD, encoder=False) as writer:
        all(writer.write(sample) for sample in samples(fail_at))
    assert check_complete(tmp_path) == list(range(max(fail_at - 1, 0) // PER_SHARD * PER_SHARD))
    assert list(tmp_path.glob(".*")) == []


class FailingSystem:
    """`os` in which the n-th call of the writing functions fails."""

    def __init__(self, fail_at, error):
        self.calls = 0
        self.fail_at = fail_at
        self.error = error

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("writev", "write", "fsync", "replace", "link", "unlink", "open"):
            return real

        def counted(*arguments, **options):
            self.calls += 1
            if self.calls == self.fail_at:
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **options)

        return counted


class InterruptedSystem(FailingSystem):
    """`os`, and `io`, in which Ctrl-C comes during the n-th call: it is made, and the interrupt raised after it."""

    def __getattr__(self, name):
        real = getattr(os if hasattr(os, name) else io, name)
        if name not in ("writev", "write", "fsync", "replace", "link", "unlink", "open", "close", "FileIO"):
            return real

        def counted(*arguments, **options):
            self.calls += 1
            result = real(*arguments, **options)
            if self.calls == self.fail_at:
                if isinstance(result, io.FileIO):  # else its end would be a warning
                    result.close()
                raise KeyboardInterrupt
            return result

        return counted


@pytest.mark.parametrize("overwrite", [True, False])
def test_interrupted_in_every_system_call(tmp_path, monkeypatch, overwrite):
    """Whichever call of the system Ctrl-C comes in, final names hold complete shards, and nothing else is left."""
    for fail_at in range(1, 200):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        (folder / "a-1.tar").write_bytes(archives.by_hand([])) if overwrite else None
        system = InterruptedSystem(fail_at, 0)
        monkeypatch.setattr(local_file, "os", system)
        monkeypatch.setattr(durable_files, "os", system)
        monkeypatch.setattr(local_file, "io", system)
        interrupted = False
        try:
            with ShardWriter(f"{folder}/a-%d.tar", maxcount=30, encoder=False, overwrite=overwrite) as writer:
                for sample in samples(None):
                    writer.write(sample)
        except KeyboardInterrupt:
            interrupted = True
        monkeypatch.undo()
        found = check_complete(folder)
        assert found == list(range(len(found)))
        assert list(folder.glob(".*")) == []
        if not interrupted:
            assert len(found) == 100
            break
    else:
        pytest.fail("the sweep did not reach the last call")
    assert fail_at > 20


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_every_system_call_fails_once(tmp_path, monkeypatch, error, overwrite):
    """Whichever call of the system fails, final names hold complete shards, and no error is lost."""
    for fail_at in range(1, 100):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        system = FailingSystem(fail_at, error)
        monkeypatch.setattr(local_file, "os", system)
        monkeypatch.setattr(durable_files, "os", system)
        failure = None
        try:
            with ShardWriter(f"{folder}/a-%d.tar", maxcount=30, encoder=False, overwrite=overwrite) as writer:
                for sample in samples(None):
                    writer.write(sample)
        except OSError as caught:
            failure = caught
        monkeypatch.undo()
        found = check_complete(folder)
        assert found == list(range(len(found)))
        if failure is None:
            assert len(found) == 100
        else:
            assert isinstance(failure, WebDatasetError) or failure.errno == error
        if system.calls < fail_at:
            break
    else:
        pytest.fail("the sweep did not reach the last call")
    assert fail_at > 12
