"""The benchmark measures what it says: its shards, its questions and its table."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import webdataset as wds

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
    raw, shuffled = ask("states", "states", WDS_BEFORE=str(BENCH.parent / "src"))
    assert all(line[figure] > 0 for line in (raw, shuffled) for figure in ("state_us", "before_us", "ratio"))
    for line, name in zip(ask("states", "resume"), ("braces", "list"), strict=True):
        assert line["question"] == f"resume at 90 % {name}"
        assert line["cpu_s"] > 0 < line["alone"]


def test_bytes_of_an_elastic_epoch_are_counted():
    """One worker asks for the bytes of the shards once; four ask four times, unless the shard has an index."""
    lines = {line["question"]: line for line in ask("elastic_bytes")}
    assert list(lines) == [f"elastic bytes {shards}" for shards in (3, 6, 25, 48)]
    assert {line["bytes_1"] for line in lines.values()} == {1}
    assert (lines["elastic bytes 3"]["bytes_4"], lines["elastic bytes 48"]["bytes_4"]) == (4, 1)
    # where answers come late, since other tests run, gaps are read in place of being left out
    assert all(line["indexed_4"] < 2 for line in lines.values())


@pytest.mark.parametrize(
    ("name", "texts"), [("web", "web"), ("chat", "chat"), ("long", "long documents"), ("short", "captions")]
)
def test_padding_is_what_the_page_says(monkeypatch, name, texts):
    """It follows from the lengths alone: with 64 texts to choose from, and with all tokens joined."""
    monkeypatch.syspath_prepend(BENCH)
    packing = load("packing")
    page = (BENCH.parent / "docs" / "packing.md").read_text(encoding="utf-8")
    (row,) = [line.split("|") for line in page.splitlines() if line.startswith(f"| {texts} |")]
    most, *spread = packing.MIXES[name]
    lengths = packing.draw_lengths(most, *spread)
    assert [int(figure.replace(" ", "")) for figure in row[2].split(", ")] == [round(sum(lengths) / len(lengths)), most]
    for column, how, window in ((4, "window", 64), (6, "concat", None)):
        padding, _ = packing.measure(most, lengths, how=how, window=window)
        assert f"{100 * padding:.2f}" == row[column].strip(" *")


@pytest.mark.parametrize(
    ("name", "texts"), [("web", "web"), ("chat", "chat"), ("long", "long documents"), ("short", "captions")]
)
def test_padding_in_buckets_is_what_the_page_says(monkeypatch, name, texts):
    """It follows from the lengths alone, and so do the batches of an epoch."""
    monkeypatch.syspath_prepend(BENCH)
    packing, bucketing = load("packing"), load("bucketing")
    page = (BENCH.parent / "docs" / "bucketing.md").read_text(encoding="utf-8")
    (row,) = [line.split("|") for line in page.splitlines() if line.startswith(f"| {texts} |")]
    most, *spread = packing.MIXES[name]
    lengths = packing.draw_lengths(most, *spread)
    found = [bucketing.measure(wds.listed(bucketing.BATCH), lengths)]
    for factor in (2.0, 1.25):
        edges = bucketing.make_edges(most, factor)
        stage = wds.bucket("length", edges, max_total=bucketing.BATCH * most, collation_fn=None)
        found.append(bucketing.measure(stage, lengths, edges))
    for cell, (padding, batches, _) in zip(row[3:6], found, strict=True):
        shown = [float(word) for word in cell.replace("batches", "").replace("*", "").replace(" ", "").split(",")]
        assert shown == [round(100 * padding, 1), batches]


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


def test_units_and_runs_are_told():
    """Figures are shown in the unit of their name; several runs and the load are told under the table."""
    table = load("table")
    answers = {"index build": {"ratio": 0.4}, "index len": {"ours_ms": 0.5}, "resume at 90 % list": {"cpu_s": 2.0}}
    kept = {"answers": answers, "date": "2026-01-01", "machine": "a machine", "runs": 3, "load": ["1 2 3", "4 5 6"]}
    text = table.table(kept)
    assert "0.5x | 0.5x | 0.4x | aim reached |" in text
    assert "| - | - | 2 s |  |" in text
    assert "| 1 ms | 1 ms | 0.5 ms | aim reached |" in text
    assert text.endswith("Medians of 3 runs. Load averages (1, 5, 15 minutes): 1 2 3 before, 4 5 6 after.")


def bench_with(folder, scripts):
    """Copy the table into a folder with some scripts of its own; return the table's module."""
    (folder / "table.py").write_text((BENCH / "table.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bench_copy", folder / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COUNTING = """
import json, pathlib
counter = pathlib.Path(__file__).with_suffix(".count")
runs = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(runs + 1))
print(json.dumps({"question": "raw W2", "ratio": [9, 1, 5][runs], "machine": f"run {runs}"}))
"""


def test_runs_are_medians_and_what_is_missing_is_named(tmp_path):
    """Each figure is the median of the runs; failing and left out scripts and missing figures are named."""
    left_out = 'print(\'{"question": "chain W2", "left_out": "not here"}\')'
    table = bench_with(tmp_path, {"raw": COUNTING, "chain": left_out, "stage": "raise SystemExit(3)"})
    table.RUNS = 3
    found, notes = table.answers(["raw", "stage", "chain"])
    assert found["raw W2"] == {"question": "raw W2", "ratio": 5, "machine": "run 0"}
    assert notes == [
        "FAILED: bench/stage.py failed with status 3",
        "left out: chain W2: not here",
    ]
    raw, pax, chain = table.ROWS_OF["raw"][0], table.ROWS_OF["raw"][2], table.ROWS_OF["chain"][0]
    assert table.missing([raw, chain], found, earlier=False) == []
    then = raw._replace(title="raw, 0582e76 being 1", figure="then")
    assert table.missing([pax, then], found, earlier=True) == [
        "FAILED: no ratio in an answer to 'raw W2p'",
        "FAILED: no then in an answer to 'raw W2'",
    ]
    assert table.missing([then], found, earlier=False) == [
        "left out: raw, 0582e76 being 1: git does not have that commit here"
    ]


STAGE = """
import json, os, pathlib
place = pathlib.Path(os.environ["WDS_BEFORE"])
print(json.dumps({"question": "stage", "ratio": 1.1, "before": (place / "webdataset" / "__init__.py").exists()}))
"""


def test_chosen_scripts_show_their_rows_and_keep_nothing(tmp_path):
    """``table.py NAME`` prints the rows of one script, with the load; a missing figure makes the command fail."""
    bench_with(tmp_path, {"stage": STAGE, "raw": COUNTING, "chain": "raise SystemExit(3)"})
    command = [sys.executable, str(tmp_path / "table.py")]
    settings = {**os.environ, "WDS_BEFORE": str(BENCH.parent / "src")}
    result = subprocess.run([*command, "stage"], capture_output=True, text=True, check=True, env=settings)
    assert "| one more stage against a bare generator | 1.5x | 1.2x | 1.1x | aim reached |" in result.stdout
    assert '"before": true' in result.stderr
    assert "Load averages" in result.stdout
    assert not (tmp_path / "out").exists()
    for name, reason in (("chain", "bench/chain.py failed"), ("raw", "no ratio in an answer to 'raw W1'")):
        failed = subprocess.run([*command, name], capture_output=True, text=True, check=False, env=settings)
        assert failed.returncode == 1
        assert reason in failed.stderr


def test_the_earlier_version_is_taken_from_git(tmp_path, monkeypatch):
    """Scripts are given the sources of an earlier commit, unless others are named, or git does not have it."""
    (tmp_path / "bench").mkdir()
    table = bench_with(tmp_path / "bench", {})
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text("# then", encoding="utf-8")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "src"], ["commit", "-q", "-m", "then"], ["tag", "then"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "src" / "module.py").write_text("# now", encoding="utf-8")
    monkeypatch.delenv("WDS_BEFORE", raising=False)
    with table.earlier_sources():
        assert "WDS_BEFORE" not in os.environ
    table.BEFORE = "then"
    with table.earlier_sources():
        assert Path(os.environ["WDS_BEFORE"], "module.py").read_text(encoding="utf-8") == "# then"
    assert "WDS_BEFORE" not in os.environ
    monkeypatch.setenv("WDS_BEFORE", "named")
    with table.earlier_sources():
        assert os.environ["WDS_BEFORE"] == "named"


def test_plot_is_drawn(tmp_path):
    """The figures are drawn as an SVG file."""
    pytest.importorskip("matplotlib")
    table = load("table")
    path = tmp_path / "bench.svg"
    table.plot({"answers": {"raw W2": {"ratio": 12.0}, "chain W2": {"ratio": 9.0}}}, path)
    assert "<svg" in path.read_text()


def test_each_bar_has_a_label_of_its_own():
    """Rows that vary another are named by it; what is better small is not drawn."""
    table = load("table")
    answers = {row.question: {"ratio": 2.0} for row in table.ROWS if row.figure == "ratio"}
    labels = [label for label, _, _ in table.find_bars(answers)]
    assert len(labels) == len(set(labels)) == 10
    assert "raw iteration W2, small samples without the native core" in labels
    assert not any("litdata" in label or label.startswith("the same") for label in labels)


@pytest.mark.parametrize(("page", "mark"), [("benchmarks", "bench"), ("peers", "peers")])
def test_the_page_has_the_block_that_is_refreshed(page, mark):
    """The pages of figures keep the marks between which the tables are copied."""
    text = (BENCH.parent / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert text.count(f"<!-- {mark} -->") == text.count(f"<!-- /{mark} -->") == 1


def test_crops_are_measured_at_each_size():
    """Decoding in full, Pillow's way, and ours with both that resize."""
    pytest.importorskip("simplejpeg")
    pytest.importorskip("torch")
    lines = ask("image_crops")
    assert [line["question"] for line in lines] == [
        "crops of 375 x 500", "crops of 512 x 512", "crops of 1080 x 1920", "crops of 3000 x 4000",
    ]  # fmt: skip
    assert all(list(line["milliseconds"]) == ["whole", "pillow", "crop", "torch"] for line in lines)
    assert all(min(line["milliseconds"].values()) > 0 for line in lines)


def test_libraries_are_asked_about_speed_and_damage():
    """This library and 1.0.2 (here itself again) read all data, and raise at each damage but that of contents."""
    pytest.importorskip("simplejpeg")
    environment = {**os.environ, "BENCH_ROUNDS": "1", "BENCH_SCALE": "0.002", "WDS_ORACLE_102": sys.executable}
    command = [sys.executable, str(BENCH / "peers_speed.py"), "ours"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    asked = [(line["question"], line["library"]) for line in lines]
    questions = ("peers W1", "peers W2", "peers W3", "peers damage")
    expected = [(question, library) for question in questions for library in ("ours", "1.0.2")]
    assert asked == expected + [("peers train", library) for library in ("ours", "crop", "1.0.2")]
    if importlib.util.find_spec("torch") is None:
        lines = [line for line in lines if line["library"] != "crop"]
    assert all(line["samples_a_cpu_second"] > 0 for line in lines if line["question"] != "peers damage")
    for line in lines:
        if line["question"] == "peers damage":
            errors = {case: [each["error"] for each in line[case]] for case in ("cut", "header", "interleaved")}
            assert [error.partition(":")[0] for error in errors["cut"]] == ["Truncated"]
            assert [error.partition(":")[0] for error in errors["header"]] == ["BadHeader"] * 4
            assert [error.partition(":")[0] for error in errors["interleaved"]] == ["SplitSample"]
            assert line["payload"] == [{"lost": 1, "half": 0, "changed": 1, "error": None}]
    assert "| raises `Truncated` | raises `BadHeader`; 4 of 4 raise |" in result.stdout


@pytest.fixture
def peers(monkeypatch):
    """The modules of bench/ that ask other libraries."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("peers_child", "peers_damage", "peers_report", "peers_speed")
    return type("Peers", (), {name.removeprefix("peers_"): importlib.import_module(name) for name in names})


def test_a_library_that_is_not_here_is_named_and_the_others_are_asked(peers, tmp_path, monkeypatch):
    """Its row says why; so does that of one whose process dies."""
    monkeypatch.setattr(peers.child, "ROOT", tmp_path)
    (tmp_path / ".venvs").mkdir()
    (tmp_path / ".venvs" / "peers.json").write_text(json.dumps({"lance": "ERROR: no such version"}), encoding="utf-8")
    shards = load("shards").write("W2", tmp_path, scale=0.002)
    ways = {name: peers.child.WAYS[name] for name in ("lance", "litdata", "ours")}
    ways["broken"] = peers.child.Way("broken", "ours", "read_litdata")
    answers = peers.speed.in_turns(ways, shards, tmp_path, peers.speed.truth(shards))
    assert answers["lance"] == {"left_out": "ERROR: no such version"}
    assert "make bench-peers" in answers["litdata"]["left_out"]
    assert answers["broken"]["left_out"].startswith("ModuleNotFoundError")
    assert answers["ours"]["samples_a_cpu_second"] > 0


def test_what_came_of_damage_is_judged(peers):
    """Lost, half and changed samples are told apart; a table says the worst of several runs."""
    whole = [[str(number), {"a": number, "b": 0}] for number in range(4)]
    judge, outcome = peers.damage.judge, peers.report.outcome
    assert judge(whole, whole, None) == {"lost": 0, "half": 0, "changed": 0, "error": None}
    cut = judge(whole, [*whole[:2], ["2", {"a": 2}]], None)
    assert cut == {"lost": 2, "half": 1, "changed": 0, "error": None}
    other = judge(whole, [*whole[:3], ["2", {"a": 3, "b": 0}]], None)
    assert other == {"lost": 1, "half": 0, "changed": 1, "error": None}
    raised = judge(whole, whole[:2], "Truncated: the end")
    assert outcome([raised]) == "raises `Truncated`"
    assert outcome([judge(whole, whole, None)]) == "not affected"
    assert outcome([raised, cut, raised]) == "**silent: 2 lost, 1 half**; 2 of 3 raise"
    assert (
        outcome([judge(whole, whole[:1], None), judge(whole, [], "dies (-11)")]) == "**silent: 3 lost**; 0 of 2 raise"
    )
    assert outcome([raised, judge(whole, [], "hangs")]) == "**hangs**; 1 of 2 raise"
    assert outcome(None) == "-"
