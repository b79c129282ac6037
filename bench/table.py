"""Ask every question and print one table: what is wanted, what is reached; draw it in ``docs/bench.svg``.

``table.py`` runs the scripts of ``ROWS_OF`` (a few minutes each); ``table.py NAME ...`` those alone, and prints their
rows; ``table.py --last`` shows the last whole run again. With ``BENCH_RUNS=3`` each script runs three times, and each
figure is the median. A script prints one JSON line a question (``harness.show``); a line may say ``left_out`` with a
reason instead, such as a library that is not installed here. The figures are kept in ``bench/out/last.json``;
``scripts/refresh_bench.py`` copies the table into docs/benchmarks.md. Rows that say 0582e76 compare with that commit of
this project, whose sources git has to have.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
KEPT = HERE / "out" / "last.json"
PLOT = HERE.parent / "docs" / "bench.svg"
BEFORE = "0582e76"
RUNS = int(os.environ.get("BENCH_RUNS", "1"))
UNITS = {"_ms": "ms", "_us": "µs", "_s": "s", "_bytes": "bytes"}


class Row(NamedTuple):
    """One measured thing that has a wanted value.

    Args:
        title: what is measured.
        question: the line of the answers it is taken from.
        figure: the figure of that line.
        least: what must be reached.
        aim: what we work towards.
        smaller: True where small figures are good.
    """

    title: str
    question: str
    figure: str
    least: float | None
    aim: float | None
    smaller: bool = False

    def shown(self, number: float | None) -> str:
        """Write a figure in this row's unit."""
        if number is None:
            return "-"
        if self.figure.startswith(("share", "cpu_of")) or self.question.startswith("limit") or self.figure == "size":
            return f"{number:.0%}"
        for ending, unit in UNITS.items():
            if self.figure.endswith(ending):
                return f"{number:,.0f} {unit}" if unit == "bytes" else f"{float(f'{number:.3g}'):g} {unit}"
        return f"{number:.3g}x"

    def verdict(self, number: float) -> str:
        """Say whether a figure reaches what is wanted."""
        if self.least is None or self.aim is None:
            return ""
        sign = -1 if self.smaller else 1
        if sign * number >= sign * self.aim:
            return "aim reached"
        return "pass" if sign * number >= sign * self.least else "MISS"


# The rows of each script, in the order of the table.
ROWS_OF: dict[str, tuple[Row, ...]] = {
    "raw": (
        Row("raw iteration W2, small samples", "raw W2", "ratio", 40, 60),
        Row("the same without the native core", "raw W2 pure", "ratio", 14, 16),
        Row("raw iteration W2 as 1.0.2 writes it (PAX)", "raw W2p", "ratio", None, None),
        Row("raw iteration W1, 80 KB JPEGs", "raw W1", "ratio", 8, 10),
        Row("raw iteration W3, 5 MB members", "raw W3", "ratio", 2.5, 2.8),
        Row("raw iteration W4, gzip", "raw W4", "ratio", 28, 36),
    ),
    "raw_litdata": (
        Row("views of mapped shards W1, litdata's being 1", "raw W1 litdata", "ratio_mapped", 1, 0.8, smaller=True),
        Row("bytes W1, litdata's views being 1", "raw W1 litdata", "ratio", None, None, smaller=True),
        Row("bytes W1, copies of litdata's views being 1", "raw W1 litdata", "ratio_copied", None, None, smaller=True),
    ),
    "limit": (
        Row("share of the readinto limit W1", "limit W1", "ratio", 0.40, 0.55),
        Row("share of the readinto limit W3", "limit W3", "ratio", 0.85, 0.95),
        Row("share of reading into new bytes W1", "limit W1", "share_of_bytes", None, None),
        Row("share of reading into new bytes W3", "limit W3", "share_of_bytes", None, None),
    ),
    "chain": (
        Row("W2 shuffle + decode + to_tuple + batched(64)", "chain W2", "ratio", 20, 30),
        Row("the same without the native core", "chain W2 pure", "ratio", 10, 12),
    ),
    "elastic_reading": (
        *(
            Row(f"elastic, 24 streams over {n} shards, plain being 1", f"elastic {n}", "ratio", least, 1.2, True)
            for n, least in {3: 1.25, 6: 1.3, 25: 1.6, 30: 1.5, 48: 1.5}.items()
        ),
        Row("both with the native core, 25 shards", "elastic 25", "native_ratio", 1.6, 1.2, smaller=True),
        Row("bytes read over 25 shards, those of the shards being 1", "elastic 25", "bytes", 1.05, 1, smaller=True),
    ),
    "elastic_bytes": (
        *(
            Row(f"the same over HTTP, {n} shards, indexes, 4 workers", f"elastic bytes {n}", "indexed_4", 1.2, 1, True)
            for n in (3, 25)
        ),
    ),
    "states": (
        Row("a state after a batch of 64, 0582e76 being 1", "state after 64 raw", "ratio", 1 / 2, 1 / 4, True),
        Row("the same after a shuffle, 0582e76 being 1", "state after 64 shuffled", "ratio", 1 / 2, 1 / 4, True),
        Row("resuming at 90 % of 100 000 shards", "resume at 90 % list", "cpu_s", None, None, True),
    ),
    "writing": (
        Row("writing W2", "write W2", "ratio", 10, 18),
        Row("writing W1", "write W1", "ratio", 3, 4.5),
        Row("size of a W2 shard against 1.0.2's", "write W2", "size", 0.52, 0.52, smaller=True),
    ),
    "importing": (
        Row("import webdataset", "import", "ours_ms", 100, 50, smaller=True),
        Row("import and look up WebDataset", "import with names", "ours_ms", None, None, smaller=True),
    ),
    "stage": (Row("one more stage against a bare generator", "stage", "ratio", 1.5, 1.2, smaller=True),),
    "first_sample": (Row("time to the first sample W2", "first sample W2", "ratio", None, None),),
    "opening": (
        Row("a shard of ten samples, a bare open and read being 1", "opening small shards", "to_bare", 7, 5, True),
        Row("a shard of ten samples", "opening small shards", "ratio", None, None),
        Row("a dataset of a million shards is made in", "opening a million", "made_ms", 50, 10, smaller=True),
        Row("its first sample, in order", "opening a million", "first_ms", 5, 5, smaller=True),
        Row("its first sample, elastic", "opening a million", "elastic_first_ms", 5, 5, smaller=True),
        Row("its first state", "opening a million", "state_ms", None, None),
        Row("its memory", "opening a million", "memory_bytes", 20_000_000, 1_000_000, smaller=True),
        Row("its list of shards as a pickle", "opening a million", "pickle_bytes", 1024, 1024, smaller=True),
    ),
    "random_access": (
        Row("samples by number at random W2, share of bare reads", "access W2 random", "share_of_reads", None, None),
        Row("samples by number at random W1, share of bare reads", "access W1 random", "share_of_reads", None, None),
    ),
    "indexes": (
        Row("an index of 1 M samples is built, 0582e76 being 1", "index build", "ratio", 0.5, 0.5, True),
        Row("it is opened in", "index open", "ours_ms", 1000, 1000, smaller=True),
        Row("a lookup in it, 0582e76 being 1", "index lookup", "ratio", 0.5, 0.5, smaller=True),
        Row("its `len`", "index len", "ours_ms", 1, 1, smaller=True),
    ),
    "storage": (
        Row("bytes over HTTP against a curl pipe, wall time", "http", "ratio", 1, 1.5),
        Row("its CPU, as a part of the curl pipe's", "http", "cpu_of_curl", 1 / 3, 1 / 4, smaller=True),
        Row("50 ms, 60 MB/s a connection: share of five", "slow http", "share_of_limit", 0.85, 0.92),
        Row("the same over S3 (SeaweedFS)", "slow s3", "share_of_limit", 0.85, 0.92),
        Row("its CPU a GB, one stream of obstore being 1", "slow line cpu", "to_obstore", 1.3, 1, smaller=True),
    ),
    "http_samples": (
        Row("samples over HTTP W1, bare readinto being 1", "http per sample", "to_bare", 1.7, 1.3, smaller=True),
    ),
    "loader": (
        Row("JPEG 512 to batches in one process, a bare decoding loop being 1", "loader JPEG 512", "ratio", 0.88, 0.95),
        Row("the same with two threads, wall time", "loader JPEG 512", "two_threads", 1.6, 1.8),
        Row("the same with two processes, wall time", "loader JPEG 512", "two_processes", 1.6, 1.8),
        Row("two processes against its DataLoader, wall time", "loader JPEG 512", "against_upstream", 1.8, 2.3),
    ),
    "loader_cost": (
        *(
            Row(f"`Loader` over `.batched`, {what}, {how}, 0582e76 being 1", f"loader cost W2 {kind}", figure, *wanted)
            for kind, what in {"raw": "undecoded", "dict": "decoded"}.items()
            for how, figure in {
                "no workers": "ratio_none",
                "two threads": "ratio_threads",
                "two processes": "ratio_processes",
            }.items()
            for wanted in ((1 / 3, 1 / 6, True),)
        ),
        Row("consumer's CPU a batch of 64, torch's DataLoader being 1", "loader consumer", "ratio", 1.1, 0.6, True),
        Row("80 KB of bytes through processes, bare reading being 1", "loader bytes", "ratio", 2.5, 2, smaller=True),
        Row("the same as views of mapped shards", "loader bytes", "ratio_mapped", 2.5, 1.5, smaller=True),
        Row("mapped shards W1, bare reading being 1", "loader bytes", "plain_mapped", None, None, smaller=True),
    ),
    "free_threading": (
        Row("two threads of a free-threaded Python, W2, one being 1", "free threading raw", "faster", 1.7, 1.85),
        Row("the same, batches of 256 in place of 64", "free threading raw 256", "faster", 1.7, 1.85),
        Row("the same, decoded, batches of 64", "free threading decoded", "faster", 1.7, 1.85),
        Row("the same, decoded, batches of 256", "free threading decoded 256", "faster", 1.7, 1.85),
    ),
}  # fmt: skip
ROWS = tuple(row for rows in ROWS_OF.values() for row in rows)


def ask(name: str) -> dict[str, dict[str, Any]]:
    """Run one script and return its lines by question, shown on stderr as they come.

    Args:
        name: its name in this folder, without ``.py``.

    Raises:
        RuntimeError: it failed.
    """
    lines = {}
    with subprocess.Popen([sys.executable, str(HERE / f"{name}.py")], stdout=subprocess.PIPE, text=True) as child:
        for text in child.stdout or ():
            print(text, end="", file=sys.stderr, flush=True)
            line = json.loads(text)
            lines[line["question"]] = line
    if child.returncode:
        raise RuntimeError(f"bench/{name}.py failed with status {child.returncode}")
    return lines


def combine(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one line of several of the same question: the median of each number, else what the first says."""
    found: dict[str, list[Any]] = {}
    for line in lines:
        for figure, value in line.items():
            found.setdefault(figure, []).append(value)
    return {
        figure: statistics.median(values) if all(type(value) in (int, float) for value in values) else values[0]
        for figure, values in found.items()
    }


def answers(names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run scripts, each ``RUNS`` times, and return their lines by question, and notes about what is left out.

    Args:
        names: the scripts.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    notes = []
    for name in names:
        try:
            for _ in range(RUNS):
                for question, line in ask(name).items():
                    found.setdefault(question, []).append(line)
        except (RuntimeError, ValueError) as error:
            notes.append(f"FAILED: {error}")
    lines = {question: combine(each) for question, each in found.items()}
    notes += [f"left out: {question}: {line['left_out']}" for question, line in lines.items() if "left_out" in line]
    return lines, notes


def missing(rows: Iterable[Row], found: Mapping[str, Mapping[str, Any]], *, earlier: bool) -> list[str]:
    """Return a note for each row whose question was left unanswered without a reason.

    Args:
        rows: of the scripts that ran.
        found: their lines by question.
        earlier: whether there was an earlier version to compare with.
    """
    notes = []
    for row in rows:
        line = found.get(row.question, {})
        if row.figure in line or "left_out" in line:
            continue
        unknown = line and BEFORE in row.title and not earlier
        notes.append(
            f"left out: {row.title}: git does not have that commit here"
            if unknown
            else f"FAILED: no {row.figure} in an answer to {row.question!r}"
        )
    return notes


@contextmanager
def earlier_sources() -> Iterator[None]:
    """Let ``WDS_BEFORE`` name the sources of ``BEFORE``, where git has them and it names no others."""
    with tempfile.TemporaryDirectory(prefix="wds-before-") as folder:
        packed = Path(folder, "src.tar")
        command = ["git", "-C", str(HERE.parent), "archive", "-o", str(packed), BEFORE, "src"]
        if "WDS_BEFORE" in os.environ or subprocess.run(command, check=False, capture_output=True).returncode:
            yield
            return
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        os.environ["WDS_BEFORE"] = str(Path(folder, "src"))
        try:
            yield
        finally:
            del os.environ["WDS_BEFORE"]


def load() -> str:
    """Return the load averages of this machine over 1, 5 and 15 minutes."""
    return " ".join(f"{number:.2f}" for number in os.getloadavg())


def machine() -> str:
    """Describe this machine in a few words, without its name."""
    model = platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = text.count("processor\t")
    return f"{cores} cores of {model}, Python {platform.python_version()}"


def table(kept: Mapping[str, Any], rows: Iterable[Row] = ROWS) -> str:
    """Return the figures as a Markdown table with date, machine and load."""
    lines = ["| CPU time, ours against webdataset 1.0.2 | at least | aim | reached | |", "|---|---|---|---|---|"]
    for row in rows:
        answer = kept["answers"].get(row.question)
        number = None if answer is None else answer.get(row.figure)
        if number is not None:
            cells = (row.title, row.shown(row.least), row.shown(row.aim), row.shown(number), row.verdict(number))
            lines.append("| " + " | ".join(cells) + " |")
    measured = f"Measured {kept['date']} on {kept['machine']}; medians, both libraries in turns."
    if kept.get("runs", 1) > 1:
        measured += f" Medians of {kept['runs']} runs."
    if "load" in kept:
        measured += f" Load averages (1, 5, 15 minutes): {kept['load'][0]} before, {kept['load'][1]} after."
    return "\n".join([*lines, "", measured])


def find_bars(answers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Row, float]]:
    """Yield (label, row, ratio) of the figures that compare with webdataset 1.0.2, each label once.

    Args:
        answers: by question.
    """
    subject = ""
    for row in ROWS:
        again = row.title.startswith("the same")
        subject = subject if again else row.title
        drawn = row.figure == "ratio" and row.question.split()[0] in ("raw", "chain", "write") and not row.smaller
        if drawn and row.figure in answers.get(row.question, ()):
            label = subject + row.title.removeprefix("the same") if again else row.title
            yield label, row, answers[row.question]["ratio"]


def plot(kept: dict[str, Any], path: Path) -> None:
    """Draw the speed ratios as bars with their wanted values."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "webdataset", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    bars = list(find_bars(kept["answers"]))[::-1]
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(bars) + 1))
    ratios = [ratio for _, _, ratio in bars]
    # by places, since bars of one label would lie on each other
    axes.barh(range(len(bars)), ratios, color="#4477aa")
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    for place, (_, row, ratio) in enumerate(bars):
        axes.text(max(ratio, row.least or 0.0), place, f" {ratio:.3g}x", va="center")
        if row.least is not None:
            axes.plot([row.least] * 2, [place - 0.4, place + 0.4], color="#cc3311")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times faster than webdataset 1.0.2 (CPU time; red: at least)")
    axes.set_xlim(0, max(ratios) * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def measure(names: Iterable[str]) -> dict[str, Any]:
    """Run scripts and return what is kept of them.

    Args:
        names: the scripts.
    """
    names, before = list(names), load()
    print(f"load averages (1, 5, 15 minutes): {before}", file=sys.stderr)
    with earlier_sources():
        found, notes = answers(names)
        notes += missing([row for name in names for row in ROWS_OF[name]], found, earlier="WDS_BEFORE" in os.environ)
    return {
        "answers": found,
        "notes": notes,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "load": [before, load()],
        "runs": RUNS,
    }


def main() -> None:
    """Measure (or take the last figures), print the table; with ``--strict``, fail where one misses.

    The figures of a whole run are kept and drawn, those of chosen scripts are only shown. Fails where a script failed.
    """
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    rows = tuple(row for name in names for row in ROWS_OF[name]) or ROWS
    if names:
        kept = measure(names)
    elif "--last" in sys.argv:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
    else:
        kept = measure(ROWS_OF)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = table(kept, rows)
    print(text)
    for note in kept.get("notes", ()):
        print(note, file=sys.stderr)
    if not names:
        plot(kept, PLOT)
    if "--last" not in sys.argv and any(note.startswith("FAILED") for note in kept["notes"]):
        sys.exit("some scripts failed")
    sys.exit("some figures miss what is wanted" if "--strict" in sys.argv and "MISS" in text else 0)


if __name__ == "__main__":
    main()
