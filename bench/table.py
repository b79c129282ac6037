"""Ask every question and print one table: what is wanted, what is reached; draw it in ``docs/bench.svg``.

``table.py`` runs the questions (a few minutes); ``table.py --last`` shows those of the last run again. The figures
are kept in ``bench/out/last.json``; ``scripts/refresh_bench.py`` copies the table into docs/benchmarks.md.
"""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
KEPT = HERE / "out" / "last.json"
PLOT = HERE.parent / "docs" / "bench.svg"
SCRIPTS = (
    "raw", "limit", "chain", "elastic_reading", "writing", "importing", "stage", "first_sample", "opening",
    "random_access", "storage", "loader",
)  # fmt: skip


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
        if self.figure.endswith("_ms"):
            return f"{number:.3g} ms"
        if self.figure in ("memory_bytes", "pickle_bytes"):
            return f"{number:,.0f} bytes"
        if self.figure.startswith(("share", "cpu_of")) or self.question.startswith("limit") or self.figure == "size":
            return f"{number:.0%}"
        return f"{number:.3g}x"

    def verdict(self, number: float) -> str:
        """Say whether a figure reaches what is wanted."""
        if self.least is None or self.aim is None:
            return ""
        sign = -1 if self.smaller else 1
        if sign * number >= sign * self.aim:
            return "aim reached"
        return "pass" if sign * number >= sign * self.least else "MISS"


ROWS = (
    Row("raw iteration W2, small samples", "raw W2", "ratio", 40, 60),
    Row("the same without the native core", "raw W2 pure", "ratio", 14, 16),
    Row("raw iteration W2 as 1.0.2 writes it (PAX)", "raw W2p", "ratio", None, None),
    Row("raw iteration W1, 80 KB JPEGs", "raw W1", "ratio", 8, 10),
    Row("raw iteration W3, 5 MB members", "raw W3", "ratio", 2.5, 2.8),
    Row("raw iteration W4, gzip", "raw W4", "ratio", 28, 36),
    Row("share of the readinto limit W1", "limit W1", "ratio", 0.40, 0.55),
    Row("share of the readinto limit W3", "limit W3", "ratio", 0.85, 0.95),
    Row("share of reading into new bytes W1", "limit W1", "share_of_bytes", None, None),
    Row("share of reading into new bytes W3", "limit W3", "share_of_bytes", None, None),
    Row("W2 shuffle + decode + to_tuple + batched(64)", "chain W2", "ratio", 20, 30),
    Row("the same without the native core", "chain W2 pure", "ratio", 10, 12),
    *(
        Row(f"elastic, 24 streams over {shards} shards, plain reading being 1", f"elastic {shards}", "ratio", *asked)
        for shards, asked in {
            3: (1.25, 1.2, True),
            6: (1.3, 1.2, True),
            25: (1.6, 1.2, True),
            30: (1.5, 1.2, True),
            48: (1.5, 1.2, True),
        }.items()
    ),
    Row("both with the native core, 25 shards", "elastic 25", "native_ratio", 1.6, 1.2, smaller=True),
    Row(
        "bytes read over 25 shards, those of the shards being 1",
        "elastic 25",
        "bytes",
        1.05,
        1,
        smaller=True,
    ),
    Row("writing W2", "write W2", "ratio", 10, 18),
    Row("writing W1", "write W1", "ratio", 3, 4.5),
    Row("size of a W2 shard against 1.0.2's", "write W2", "size", 0.52, 0.52, smaller=True),
    Row("import webdataset", "import", "ours_ms", 100, 50, smaller=True),
    Row("import and look up WebDataset", "import with names", "ours_ms", None, None, smaller=True),
    Row("one more stage against a bare generator", "stage", "ratio", 1.5, 1.2, smaller=True),
    Row("time to the first sample W2", "first sample W2", "ratio", None, None),
    Row(
        "a shard of ten samples, a bare open and read being 1",
        "opening small shards",
        "to_bare",
        7,
        5,
        smaller=True,
    ),
    Row("a shard of ten samples", "opening small shards", "ratio", None, None),
    Row("a dataset of a million shards is made in", "opening a million", "made_ms", 50, 10, smaller=True),
    Row("its first sample, in order", "opening a million", "first_ms", 5, 5, smaller=True),
    Row("its first sample, elastic", "opening a million", "elastic_first_ms", 5, 5, smaller=True),
    Row("its first state", "opening a million", "state_ms", None, None),
    Row("its memory", "opening a million", "memory_bytes", 20_000_000, 1_000_000, smaller=True),
    Row("its list of shards as a pickle", "opening a million", "pickle_bytes", 1024, 1024, smaller=True),
    Row("samples by number at random W2, share of bare reads", "access W2 random", "share_of_reads", None, None),
    Row("bytes over HTTP against a curl pipe, wall time", "http", "ratio", 1, 1.5),
    Row("its CPU, as a part of the curl pipe's", "http", "cpu_of_curl", 1 / 3, 1 / 4, smaller=True),
    Row("50 ms, 60 MB/s a connection: share of five", "slow http", "share_of_limit", 0.85, 0.92),
    Row("the same over S3 (SeaweedFS)", "slow s3", "share_of_limit", 0.85, 0.92),
    Row("samples by number at random W1, share of bare reads", "access W1 random", "share_of_reads", None, None),
    Row("JPEG 512 to batches in one process, a bare decoding loop being 1", "loader JPEG 512", "ratio", 0.88, 0.95),
    Row("the same with two threads, wall time", "loader JPEG 512", "two_threads", 1.6, 1.8),
    Row("the same with two processes, wall time", "loader JPEG 512", "two_processes", 1.6, 1.8),
    Row("two processes against its DataLoader, wall time", "loader JPEG 512", "against_upstream", 1.8, 2.3),
)


def answers() -> dict[str, dict[str, Any]]:
    """Run every question's script and return its lines by question."""
    lines = {}
    for name in SCRIPTS:
        command = [sys.executable, str(HERE / f"{name}.py")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for text in child.stdout or ():
                print(text, end="", file=sys.stderr, flush=True)
                line = json.loads(text)
                lines[line["question"]] = line
        if child.returncode:
            raise SystemExit(f"bench/{name}.py failed")
    return lines


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


def table(kept: dict[str, Any]) -> str:
    """Return the figures as a Markdown table with date and machine."""
    lines = ["| CPU time, ours against webdataset 1.0.2 | at least | aim | reached | |", "|---|---|---|---|---|"]
    for row in ROWS:
        answer = kept["answers"].get(row.question)
        number = None if answer is None else answer.get(row.figure)
        if number is not None:
            cells = (row.title, row.shown(row.least), row.shown(row.aim), row.shown(number), row.verdict(number))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Measured {kept['date']} on {kept['machine']}; medians, both libraries in turns."])


def plot(kept: dict[str, Any], path: Path) -> None:
    """Draw the speed ratios as bars with their wanted values."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "webdataset", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    rows = [row for row in ROWS if row.figure == "ratio" and row.question.split()[0] in ("raw", "chain", "write")]
    rows = [row for row in rows if row.question in kept["answers"]][::-1]
    ratios = [kept["answers"][row.question]["ratio"] for row in rows]
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(rows) + 1))
    axes.barh([row.title for row in rows], ratios, color="#4477aa")
    for place, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        axes.text(ratio, place, f" {ratio:.3g}x", va="center")
        if row.least is not None:
            axes.plot([row.least] * 2, [place - 0.4, place + 0.4], color="#cc3311")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times faster than webdataset 1.0.2 (CPU time; red: at least)")
    axes.set_xlim(0, max(ratios) * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    """Measure (or take the last figures), print the table, draw the plot; with ``--strict``, fail where one misses."""
    if "--last" not in sys.argv:
        kept = {"answers": answers(), "date": datetime.now(UTC).date().isoformat(), "machine": machine()}
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    text = table(kept)
    print(text)
    plot(kept, PLOT)
    sys.exit("some figures miss what is wanted" if "--strict" in sys.argv and "MISS" in text else 0)


if __name__ == "__main__":
    main()
