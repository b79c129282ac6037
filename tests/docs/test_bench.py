"""The benchmark measures what it says: its shards, its questions and its table."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def load(name):
    """Load one module of bench/ by path."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("work", "fields"), [("W1", 3), ("W2", 2), ("W3", 1), ("W4", 2)])
def test_workloads_are_plain_ustar(tmp_path, work, fields):
    """Each workload is USTAR with whole times, and has the documented fields per sample."""
    paths = load("shards").write(work, tmp_path, scale=0.001)
    members = []
    for path in paths:
        with tarfile.open(path) as archive:
            members += archive.getmembers()
    keys = {member.name.split(".")[0] for member in members}
    assert len(members) == fields * len(keys) > 0
    assert not any(member.pax_headers for member in members)


def ask(script, *words, **settings):
    """Run one question on a little data, with this interpreter on both sides; return its lines."""
    environment = {**os.environ, "BENCH_ROUNDS": "1", "BENCH_SCALE": "0.002"}
    environment |= {"WDS_ORACLE_102": sys.executable, "WDS_ORACLE_111": sys.executable}
    command = [sys.executable, BENCH / f"{script}.py", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment | settings)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("script", "words", "questions"),
    [
        ("raw", ("W2", "W2p", "W4"), ["raw W2", "raw W2p", "raw W4"]),
        ("limit", ("W1",), ["limit W1"]),
        ("chain", (), ["chain W2", "chain W2 pure"]),
        ("elastic_reading", (), [f"elastic {shards}" for shards in (3, 6, 25, 30, 48)]),
        ("writing", ("W2",), ["write W2"]),
        ("importing", (), ["import", "import with names", "import and read", "import and write"]),
        ("first_sample", (), ["first sample W2"]),
        ("commands", ("W2",), ["cat W2", "reshard W2", "shuffle W2", "check W2"]),
        ("random_access", ("W2",), ["access W2 in order", "access W2 random"]),
    ],
)
def test_question_prints_one_json_line(script, words, questions):
    """Each question prints a JSON line with its ratio, a positive number."""
    lines = ask(script, *words)
    assert [line["question"] for line in lines] == questions
    assert all(line["ratio"] > 0 for line in lines)


def test_opening_prints_its_figures():
    """What small shards and a million of them cost, with all the figures that the table takes."""
    small, listed, many = ask("opening")
    assert small["ratio"] > 0 < small["to_bare"]
    assert many["pickle_bytes"] < 1024 < listed["pickle_bytes"]
    assert {"made_ms", "first_ms", "elastic_first_ms", "state_ms", "memory_bytes"} < set(many)


def test_states_print_their_figures():
    """What a state costs, here beside that of the same version, and what resuming far on costs."""
    raw, shuffled = ask("states", "states", WAS=str(BENCH.parent / "src"))
    assert all(line[figure] > 0 for line in (raw, shuffled) for figure in ("state_us", "was_us", "to_was"))
    for line, name in zip(ask("states", "resume"), ("braces", "list"), strict=True):
        assert line["question"] == f"resume at 90 % {name}"
        assert line["cpu_seconds"] > 0 < line["alone"]


def test_bytes_of_an_elastic_epoch_are_counted():
    """One worker asks for the bytes of the shards once; four ask four times for a shard that all of them share."""
    lines = {line["question"]: line for line in ask("elastic_bytes")}
    assert list(lines) == [f"elastic bytes {shards}" for shards in (3, 6, 25, 48)]
    assert {line["bytes_1"] for line in lines.values()} == {1}
    assert (lines["elastic bytes 3"]["bytes_4"], lines["elastic bytes 48"]["bytes_4"]) == (4, 1)


def test_workers_that_disagree_are_an_error(tmp_path):
    """Two libraries that read different numbers of samples are not compared."""
    sys.path.insert(0, str(BENCH))
    try:
        harness = load("harness")
    finally:
        sys.path.remove(str(BENCH))
    paths = load("shards").write("W2", tmp_path, scale=0.002)
    library = harness.Library(sys.executable)
    try:
        with pytest.raises(RuntimeError, match="disagree"):
            harness.in_turns(
                (library, {"job": "raw", "shards": paths}), (library, {"job": "raw", "shards": paths[:1]}), rounds=1
            )
    finally:
        library.close()


def test_table_says_what_misses():
    """The table marks a figure below what is wanted, one that passes and one that reaches the aim."""
    table = load("table")
    answers = {
        "raw W2": {"ratio": 39.9},
        "raw W1": {"ratio": 8.0},
        "raw W3": {"ratio": 2.9},
        "import": {"ours_ms": 101.0},
        "write W2": {"ratio": 20.0, "size": 0.5},
    }
    text = table.table({"answers": answers, "date": "2026-01-01", "machine": "a machine"})
    assert "| raw iteration W2, small samples | 40x | 60x | 39.9x | MISS |" in text
    assert "| raw iteration W1, 80 KB JPEGs | 8x | 10x | 8x | pass |" in text
    assert "| raw iteration W3, 5 MB members | 2.5x | 2.8x | 2.9x | aim reached |" in text
    assert "| import webdataset | 100 ms | 50 ms | 101 ms | MISS |" in text
    assert "| size of a W2 shard against 1.0.2's | 52% | 52% | 50% | aim reached |" in text
    assert text.endswith("Measured 2026-01-01 on a machine; medians, both libraries in turns.")


def test_plot_is_drawn(tmp_path):
    """The figures are drawn as an SVG file."""
    pytest.importorskip("matplotlib")
    table = load("table")
    path = tmp_path / "bench.svg"
    table.plot({"answers": {"raw W2": {"ratio": 12.0}, "chain W2": {"ratio": 9.0}}}, path)
    assert "<svg" in path.read_text()


def test_the_page_has_the_block_that_is_refreshed():
    """The page of figures keeps the marks between which the table is copied."""
    text = (BENCH.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert text.count("<!-- bench -->") == text.count("<!-- /bench -->") == 1
