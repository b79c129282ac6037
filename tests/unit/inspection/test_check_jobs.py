"""A check by several processes finds what a check by one finds, in the same order, byte by byte."""

import contextlib
import io
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

import webdataset as wds
from support import check_corpus, check_corpus_fields
from support.command import run_wds, start_wds
from webdataset.core.errors import UsageError
from webdataset.testing import archives

assert check_corpus_fields
PROFILES = ("hf", "dali", "energon", "ray", "grain")
NAMES = check_corpus.names()


def make_list(folder: Path, seed: int) -> list[str]:
    """Write a list of shards of the corpus in random order, some of them twice, with neighbours that share keys."""
    rng = random.Random(seed)
    folder.mkdir()
    found = []
    for place, name in enumerate(rng.sample(NAMES, 6)):
        for file, content in check_corpus.make(name, seed).files:
            path = folder / f"{place}-{file}"
            path.write_bytes(content)
            if ".tar" in file:
                found.append(str(path))
    found += [str(folder / "missing.tar"), *rng.sample(found, 2)]
    rng.shuffle(found)
    return found


def told(urls, jobs, **options):
    """All that the reports say, findings in their order."""
    return [
        (report, report.to_json(), list(report.counts)) for report in wds.iterate_checks(urls, jobs=jobs, **options)
    ]


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(6))
def test_lists_of_the_corpus(seed, tmp_path):
    """Any shards in any order, by any number of processes, for all readers, with bounds that are met or not."""
    urls = make_list(tmp_path / "a", seed)
    rng = random.Random(seed)
    options = {
        "profiles": rng.choice([(), PROFILES, ("energon",), ("hf",)]),
        "decode": rng.random() < 0.7,
        "most_findings": rng.choice((1, 3, 100)),
        "most_keys": rng.choice((2, 9, 1000)),
    }
    expected = told(urls, 1, **options)
    for jobs in (2, 5):
        assert told(urls, jobs, **options) == expected
    assert any("repeated-key-across" in counts for _, _, counts in expected)


def test_what_only_the_list_shows(tmp_path):
    """Compression, fields and keys that differ from the shards before."""
    fields = {"a": ("txt", "cls"), "b": ("txt", "cls"), "c": ("txt",), "d": ("txt", "cls")}
    for number, (name, extensions) in enumerate(fields.items()):
        rows = [(f"{number if name != 'd' else 0}-{key}.{each}", b"1") for key in range(5000) for each in extensions]
        (tmp_path / f"{name}.tar").write_bytes(archives.by_hand(rows))
    urls = [str(tmp_path / f"{name}.tar") for name in fields]
    expected = told(urls, 1, most_findings=4000)
    assert told(urls, 3, most_findings=4000) == expected
    assert [counts for _, _, counts in expected] == [[], [], ["ragged-shard"], ["repeated-key-across"]]
    assert expected[3][0].counts == {"repeated-key-across": 5000}


def test_what_cannot_be_sent_is_checked_here(tmp_path):
    """Open files, and names of descriptors, stand in the list among paths."""
    content = archives.by_hand([("0.txt", b"a")])
    (tmp_path / "a.tar").write_bytes(content)
    path = str(tmp_path / "a.tar")
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    with contextlib.closing(os.fdopen(reading, "rb")):
        urls = [path, io.BytesIO(content), path, f"/dev/fd/{reading}", tmp_path / "a.tar"]
        reports = list(wds.iterate_checks(urls, jobs=2))
    assert [report.samples for report in reports] == [1] * 5
    assert [list(report.counts) for report in reports] == [[], *[["repeated-key-across"]] * 4]


def test_missing_packages_are_told_once(tmp_path, monkeypatch):
    """A package that is missing is told of at the first shard that needs it."""
    urls = []
    for number in range(4):
        (tmp_path / f"{number}.tar").write_bytes(
            archives.by_hand([(f"{number}.json", b"{}"), (f"{number}.cbor", b"\xf6")])
        )
        urls.append(str(tmp_path / f"{number}.tar"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "cbor2.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    outputs = [
        run_wds("check", "--json", "-j", jobs, *urls, PYTHONPATH=f"{tmp_path / 'site'}:{Path(wds.__file__).parents[1]}")
        for jobs in ("1", "3")
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert [json.loads(line)["counts"] for line in outputs[1].stdout.splitlines()] == [{"not-checked": 1}, {}, {}, {}]


def test_options_that_cannot_be_sent(tmp_path):
    """An object that pickle cannot move is a mistake of the call, and says so."""
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.txt", b"a")]))
    with pytest.raises(UsageError, match="one job"):
        wds.check_shards([str(tmp_path / "a.tar")] * 3, jobs=2, storage_options={"token": lambda: "x"})


def test_stdin_among_shards(tmp_path):
    """Standard input is read by the command itself."""
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.txt", b"a")]))
    outputs = [
        run_wds(
            "check",
            "--json",
            "-j",
            jobs,
            "a.tar",
            "-",
            "a.tar",
            stdin=(tmp_path / "a.tar").read_bytes(),
            cwd=tmp_path,
            status=1,
        )
        for jobs in ("1", "2")
    ]
    assert outputs[0].stdout == outputs[1].stdout


def make_slow(tmp_path: Path) -> list[str]:
    """Shards of which the one in the middle is read from a command that does not end."""
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.txt", b"a")]))
    path = str(tmp_path / "a.tar")
    return [path, f"pipe:cat {path}; echo $PPID > {tmp_path / 'pid'}; exec sleep 1000 2>/dev/null", path]


def wait_for(path: Path) -> int:
    """Wait for a process id in a file."""
    while not (path.exists() and path.read_text().strip()):
        time.sleep(0.02)
    return int(path.read_text())


def test_a_killed_process_names_its_shard(tmp_path):
    """A process that the system kills is a finding of its shard; all others are checked."""
    urls = make_slow(tmp_path)
    command = start_wds("check", "--json", "-j", "2", *urls, stdout=-1)
    os.kill(wait_for(tmp_path / "pid"), signal.SIGKILL)
    out, err = command.communicate(timeout=60)
    reports = [json.loads(line) for line in out.splitlines()]
    assert command.returncode == 1, err
    assert [report["url"] for report in reports] == urls
    assert [list(report["counts"]) for report in reports] == [[], ["unreadable"], ["repeated-key-across"]]
    assert "SIGKILL" in reports[1]["findings"][0]["message"]
    assert reports[1]["unread"] == [[0, None]]


def test_ctrl_c_ends_all_processes(tmp_path):
    """Ctrl-C ends the command in one line, and its processes with it; what is done was written."""
    command = start_wds("check", "-j", "2", *make_slow(tmp_path), stdout=-1)
    worker = wait_for(tmp_path / "pid")
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == -signal.SIGINT
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_processes_end_with_a_killed_command(tmp_path):
    """A command that is killed leaves no process behind."""
    command = start_wds("check", "-j", "2", *make_slow(tmp_path), stdout=-1)
    worker = wait_for(tmp_path / "pid")
    command.kill()
    command.communicate(timeout=60)
    while Path(f"/proc/{worker}").exists() and "\nState:\tZ" not in Path(f"/proc/{worker}/status").read_text():
        time.sleep(0.02)


def test_jobs_of_nothing():
    """There is at least one job."""
    with pytest.raises(UsageError, match="jobs"):
        wds.check_shards("a.tar", jobs=0)
