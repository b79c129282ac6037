"""What does one state cost, and what does resuming far on in a long list of shards?

``state after 64``: microseconds of one ``state_dict()`` after each 64 samples of 24 streams, medians, raw and with a
shuffle. With ``WDS_BEFORE=FOLDER``, the ``src`` of another version (from ``git archive``), both take turns, each in
processes of its own; ``ratio`` is ours to that.

``resume at 90 %``: CPU seconds from a state at 90 % of 100 000 shards to two samples of each of 24 streams, for shards
in braces and in a list; ``alone`` is with ``WDS_SHARED_BYTES=0``, where each stream goes through the list by itself.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show

SHARDS, SAMPLES, BATCH, STREAMS = 48, max(int(750 * SCALE), 40), 64, 24
MANY = max(int(100_000 * SCALE), 2_400)
PLACE = MANY * 9 // 10 // STREAMS * STREAMS
BUFFERS = {"raw": 0, "shuffled": 1000}
WARM_UP = 20  # states that are not counted


def write_shards(folder: Path) -> None:
    """Write shards of samples of 2 KB."""
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"{shard:02d}.tar")) as sink:
            for number in range(SAMPLES):
                sink.write({"__key__": f"{shard:02d}-{number:05d}", "bin": bytes(2000), "cls": number % 10})


def time_states(folder: Path) -> dict[str, float]:
    """Return the median microseconds of one state, raw and shuffled."""
    found = {}
    for name, buffer in BUFFERS.items():
        dataset = wds.WebDataset(str(folder / f"{{00..{SHARDS - 1:02d}}}.tar"), shardshuffle=False)
        run: Any = iter((dataset.shuffle(buffer) if buffer else dataset).elastic(STREAMS))
        taken = []
        while list(itertools.islice(run, BATCH)):
            began = time.perf_counter_ns()
            run.state_dict()
            taken.append(time.perf_counter_ns() - began)
        found[name] = statistics.median(taken[WARM_UP:]) / 1000
    return found


def ask(folder: Path, source: str | None) -> dict[str, float]:
    """Time states in a process of its own, under this version or that of another source folder."""
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*([source] if source else []), str(Path(__file__).parent)]),
    }
    command = [sys.executable, "-W", "ignore", __file__, "--in", str(folder)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def measure_states(folder: Path) -> None:
    """Print what a state costs, beside that of another version."""
    write_shards(folder)
    was = os.environ.get("WDS_BEFORE")
    now, before = [], []
    for _ in range(ROUNDS):
        now.append(ask(folder, None))
        before += [ask(folder, was)] if was else []
    for name in BUFFERS:
        ours = statistics.median(each[name] for each in now)
        theirs = statistics.median(each[name] for each in before) if before else None
        figures = {"state_us": rounded(ours)}
        if theirs is not None:
            figures |= {"before_us": rounded(theirs), "ratio": rounded(ours / theirs)}
        show(f"state after 64 {name}", **figures)


def make_state(dataset: Any, urls: list[str]) -> dict[str, Any]:
    """Return a state of a dataset whose streams stand far on in its list of shards."""
    from webdataset.flow.elastic_state import SUM_KEY, build_state
    from webdataset.samples.sample_reader import hash_url

    run = iter(dataset)
    list(itertools.islice(run, STREAMS))
    state = run.state_dict()
    run.close()
    for number, stream_state in state["memories"].items():
        place, shard = stream_state[4][0]
        place[0] = PLACE // STREAMS
        shard[0] = hash_url(urls[place[0] * STREAMS + int(number)])
    header = {name: part for name, part in state.items() if name not in ("received", "memories", SUM_KEY)}
    return build_state(header, state["memories"])


def time_resume(urls: str | list[str], state: dict[str, Any]) -> float:
    """Return the CPU seconds from a state to two samples of each stream."""
    began = time.process_time()
    run = wds.WebDataset(urls, shardshuffle=False, seed=1).elastic(STREAMS).elastic_run(None, state)
    list(itertools.islice(run, 2 * STREAMS))
    taken = time.process_time() - began
    run.close()
    return taken


def measure_resume(folder: Path) -> None:
    """Print what resuming costs far on in a long list."""
    pattern = str(folder / f"{{000000..{MANY - 1:06d}}}.tar")
    urls = list(wds.expand_urls(pattern))
    with wds.TarWriter(str(folder / "one.tar")) as sink:
        for number in range(3):
            sink.write({"__key__": str(number), "txt": "x"})
    for number in (*range(STREAMS), *range(PLACE - STREAMS, PLACE + 3 * STREAMS)):
        os.link(folder / "one.tar", urls[number])
    for name, given in (("braces", pattern), ("list", urls)):
        state = make_state(wds.WebDataset(given, shardshuffle=False, seed=1).elastic(STREAMS), urls)
        taken: dict[str, list[float]] = {"": [], "0": []}
        for _ in range(ROUNDS):
            for setting, times in taken.items():
                os.environ.pop("WDS_SHARED_BYTES", None)
                if setting:
                    os.environ["WDS_SHARED_BYTES"] = setting
                times.append(time_resume(given, state))
        os.environ.pop("WDS_SHARED_BYTES", None)
        together, alone = map(statistics.median, taken.values())
        show(f"resume at 90 % {name}", cpu_s=rounded(together), alone=rounded(alone))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in"]:
        print(json.dumps(time_states(Path(sys.argv[2]))))
    else:
        chosen = sys.argv[1:] or ["states", "resume"]
        with tempfile.TemporaryDirectory() as place:
            if "states" in chosen:
                measure_states(Path(place))
        with tempfile.TemporaryDirectory() as place:
            if "resume" in chosen:
                measure_resume(Path(place))
