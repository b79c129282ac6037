"""``wds map`` by several processes writes what one writes, byte by byte; failures are told by their keys."""

import io
import json
import os
import random
import signal
import sys
import tarfile

import pytest

from support.command import run_wds, start_wds
from webdataset.reshaping.processing import map_in_processes
from webdataset.samples.raw_samples import RawMember, RawSample

FUNCTIONS = '''
import hashlib, os, random, signal, sys, time

def change(sample):
    """All that a function may do, chosen by the key."""
    rng = random.Random(sample["__key__"])
    kind = rng.randrange(7)
    if kind == 0:
        return None
    if kind == 1:
        return sample
    if kind == 2:
        return [{**sample, "__key__": f"{sample['__key__']}-{n}", "json": {"n": n}} for n in range(3)]
    if kind == 3:
        return {"txt": hashlib.sha256(sample["txt"]).hexdigest()}
    if kind == 4:
        return {**sample, "cls": rng.randrange(10)}
    time.sleep(rng.random() / 200)
    return {"bin": sample["bin"], "txt": sample["txt"]}

def fail(sample):
    if sample["__key__"].endswith("7"):
        raise ValueError(f"not {sample['__key__']}")
    if sample["__key__"].endswith("18"):
        return 5
    return sample

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def fail_oddly(sample):
    raise Odd("a", "b")

def die(sample):
    if sample["__key__"].endswith("23"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

def leave(sample):
    sys.exit(9)

def wait(sample):
    open("working", "w").close()
    time.sleep(1000)
'''


@pytest.fixture
def here(tmp_path):
    """Shards of samples of very different sizes, and the functions."""
    rng = random.Random(5)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    for shard in range(3):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for number in range(100):
                for field in ("txt", "bin"):
                    info = tarfile.TarInfo(f"{shard}/{number:03}.{field}")
                    info.size, info.mtime, info.uname = (
                        rng.choice((0, 10, 3000, 300_000 if number % 20 == 0 else 9)),
                        number,
                        "ann",
                    )
                    archive.addfile(info, io.BytesIO(rng.randbytes(info.size)))
    return tmp_path


def mapped(here, function, *options, status=0, output="out.tar"):
    """The bytes that are written, and what is said."""
    run = run_wds(
        "map", *options, "--force", f"functions:{function}", "-o", output, "s-{0..2}.tar", cwd=here, status=status
    )
    return b"".join(path.read_bytes() for path in sorted(here.glob("out*.tar"))), run.stderr


def test_bytes_are_the_same_at_every_number_of_jobs(here):
    """Samples that are left out, multiplied, changed and kept, in shards of a size."""
    expected = mapped(here, "change", "-s", "500kB", output="out-%03d.tar")
    assert len(expected[0]) > 1_000_000
    for jobs in (("-j", "2"), ("-j", "5"), ("-j", "3", "--threads")):
        assert mapped(here, "change", "-s", "500kB", *jobs, output="out-%03d.tar") == expected


@pytest.mark.parametrize("on_error", ["skip", "keep", "stop"])
def test_failures_are_the_same(here, on_error):
    """What fails is told with the same words, in order, and the rest is written."""
    runs = []
    for jobs in ("1", "3"):
        (here / "out.tar").unlink(missing_ok=True)
        status, err = mapped_status(here, "fail", on_error, jobs)
        runs.append((status, err, (here / "out.tar").read_bytes() if (here / "out.tar").exists() else b""))
    assert runs[0] == runs[1]
    assert runs[0][0] != 0
    assert b"not 0/007" in runs[0][1]
    assert (runs[0][2] == b"") == (on_error == "stop")


def mapped_status(here, function, on_error, jobs):
    """Status and messages of a run."""
    command = start_wds(
        "map", "-j", jobs, "--on-error", on_error, f"functions:{function}", "-o", "out.tar", "s-{0..2}.tar", cwd=here
    )
    _, err = command.communicate(timeout=120)
    return command.returncode, err


def test_errors_that_cannot_be_sent(here):
    """An exception that pickle cannot copy is told all the same."""
    status, err = mapped_status(here, "fail_oddly", "stop", "2")
    assert status not in (0, -2)
    assert b"the function fails: Odd: a" in err
    assert b"0/000" in err
    assert b"Traceback" not in err


def test_a_process_that_dies_names_its_sample(here):
    """The sample is told; with skip all others are written, and nothing else is lost."""
    status, err = mapped_status(here, "die", "stop", "2")
    assert status not in (0, -2)
    assert b"SIGKILL" in err
    assert b"0/023" in err
    assert not (here / "out.tar").exists()
    status, err = mapped_status(here, "die", "skip", "3")
    assert err.count(b"left out: ") == 3
    keys = [json.loads(line)["key"] for line in run_wds("ls", "--json", "out.tar", cwd=here).stdout.splitlines()]
    assert keys == [f"{shard}/{number:03}" for shard in range(3) for number in range(100) if number != 23]


def test_a_function_that_leaves(here):
    """``sys.exit`` in the function ends the command with its status, as it does with one job."""
    assert mapped_status(here, "leave", "stop", "1")[0] == mapped_status(here, "leave", "stop", "2")[0] == 9


def test_ctrl_c(here):
    """Ctrl-C ends the command while functions work; no file is left."""
    command = start_wds("map", "-j", "2", "functions:wait", "-o", "out.tar", "s-{0..2}.tar", cwd=here)
    while not (here / "working").exists():
        pass
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == -signal.SIGINT
    assert b"Traceback" not in err
    assert [path.name for path in here.glob("out*")] == []


def test_memory_is_bounded(tmp_path, monkeypatch):
    """Of endless samples a few are read ahead, however slow the one in turn is."""
    (tmp_path / "slow.py").write_text("import time\ndef first(s):\n    time.sleep(s['__key__'] == '0')\n    return s\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    read = []

    def source():
        for number in range(10**9):
            read.append(number)
            yield RawSample(str(number), (RawMember(f"{number}.bin", b"", bytes(300_000)),), ("bin",), "x", 0)

    results = map_in_processes("slow:first", source(), 2)
    assert next(results)[0].key == "0"
    assert len(read) <= 2 * 4 + 3
    results.close()
    sys.modules.pop("slow", None)
    assert os.getpid()
