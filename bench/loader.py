"""How near to a bare loop over the decoder do loaders come, with one process and with two workers?

The work is 512 x 512 JPEGs (about 100 KB) in tar shards, to batches of 32 ``uint8[32, 512, 512, 3]`` and classes. The
``bare`` loop decodes the same bytes from memory with the same decoder, one after the other, and makes no batches.
``bare_reading`` reads each payload from its shard first, at an offset that it knows; ``bare_two`` is the bare loop in
two threads without a word between them, which is what two cores of this machine can give. Upstream is its DataLoader
with two workers, as its documentation writes it. Candidates take turns, epoch by epoch, with workers that stay. Medians
of wall time and of CPU time (of all processes); ``speed`` is bare time divided by the candidate's, ``speed_least`` the
same of each one's best epoch, which a busy machine disturbs less.

``loader.py`` runs all; ``loader.py --serve`` is one library in its own process.
"""

import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
SCALE = float(os.environ.get("BENCH_SCALE", "1"))
ORACLE = os.environ.get("WDS_ORACLE_TORCH") or os.environ.get("WDS_ORACLE_111")
BATCH = 32
BARE = ("bare", "bare_reading", "bare_two")


def shards(folder):
    """Write 8 shards of JPEGs, once; return their paths."""
    import numpy as np
    from PIL import Image

    import webdataset as wds

    each = max(8, int(320 * SCALE))  # two workers take a second or more: beginning an epoch is not what is measured
    paths = [str(folder / f"{each}-{number}.tar") for number in range(8)]
    generator = np.random.default_rng(0)
    for path in paths:
        if os.path.exists(path):
            continue
        with wds.TarWriter(path, encoder=False) as writer:
            for number in range(each):
                coarse = Image.fromarray(generator.integers(0, 255, (32, 32, 3), dtype=np.uint8))
                pixels = np.asarray(coarse.resize((512, 512), Image.Resampling.BICUBIC)).astype(np.int16)
                pixels = (pixels + generator.integers(-12, 12, pixels.shape)).clip(0, 255).astype(np.uint8)
                stream = io.BytesIO()
                Image.fromarray(pixels).save(stream, "JPEG", quality=85)
                writer.write({"__key__": f"{number:05d}", "jpg": stream.getvalue(), "cls": str(number).encode()})
    return paths


def cpu():
    """Return CPU seconds of this process and all its children, living and reaped."""
    times = os.times()
    total = sum(times[:4])
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def decoded(payloads):
    """Decode JPEGs one after the other; return how many."""
    import simplejpeg

    count = 0
    for payload in payloads:
        simplejpeg.decode_jpeg(payload, "RGB")
        count += 1
    return count


def payloads_at(path, places):
    """Yield what lies at some places of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for size, offset in places:
            yield os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


class Candidates:
    """What can be measured in one process; each keeps its workers."""

    def __init__(self, urls):
        self.urls = urls
        self.made = {}

    def dataset(self):
        """Return decoded pictures and classes."""
        import webdataset as wds

        return wds.WebDataset(self.urls, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls")

    def loader(self, **options):
        """Return a loader of ours."""
        import webdataset as wds

        return wds.Loader(self.dataset().elastic(streams=8), BATCH, **options)

    def upstream(self):
        """Return a torch DataLoader with two workers over batches."""
        import torch

        options: dict[str, Any] = {"batch_size": None, "num_workers": 2, "persistent_workers": True}
        return torch.utils.data.DataLoader(self.dataset().batched(BATCH), **options)

    def payloads(self):
        """Return all JPEGs, kept in memory."""
        if "payloads" not in self.made:
            import webdataset as wds

            self.made["payloads"] = [sample["jpg"] for sample in wds.WebDataset(self.urls, shardshuffle=False)]
        return self.made["payloads"]

    def bare(self):
        """Decode in a loop."""
        return decoded(self.payloads())

    def bare_two(self):
        """Decode in two loops at once."""
        payloads = self.payloads()
        halves = [threading.Thread(target=decoded, args=(payloads[half::2],)) for half in range(2)]
        for half in halves:
            half.start()
        for half in halves:
            half.join()
        return len(payloads)

    def bare_reading(self):
        """Read and decode in a loop."""
        if "places" not in self.made:
            places = self.made["places"] = []
            for url in self.urls:
                with tarfile.open(url) as shard:
                    places.append((url, [(m.size, m.offset_data) for m in shard if m.name.endswith(".jpg")]))
        return sum(decoded(payloads_at(url, places)) for url, places in self.made["places"])

    def run(self, name):
        """Run one epoch of a candidate; return the number of samples."""
        if name in BARE:
            return getattr(self, name)()
        if name not in self.made:
            makers = {
                "none": self.loader,
                "threads": lambda: self.loader(workers=2),
                "processes": lambda: self.loader(workers=2, mode="processes"),
                "upstream": self.upstream,
            }
            self.made[name] = makers[name]()
        return sum(len(batch[1]) for batch in self.made[name])


def serve():
    """Answer jobs."""
    candidates = None
    for line in sys.stdin:
        job = json.loads(line)
        candidates = candidates or Candidates(job["urls"])
        before, began = cpu(), time.perf_counter()
        count = candidates.run(job["name"])
        wall = time.perf_counter() - began
        print(json.dumps({"wall": wall / count, "cpu": (cpu() - before) / count, "count": count}), flush=True)


class Served:
    """A library in its own process."""

    def __init__(self, python):
        command = [python, __file__, "--serve"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.child.stdin is None or self.child.stdout is None:
            raise RuntimeError("the worker has no pipes")
        self.orders, self.says = self.child.stdin, self.child.stdout

    def ask(self, name, urls):
        """Run one epoch there."""
        self.orders.write(json.dumps({"name": name, "urls": urls}) + "\n")
        self.orders.flush()
        return json.loads(self.says.readline())


def measure():
    """Print and return the answer."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / "webdataset-bench-jpeg"
    folder.mkdir(exist_ok=True)
    urls = shards(folder)
    ours = Served(sys.executable)
    parties = [(ours, name) for name in (*BARE, "none", "threads", "processes")]
    if ORACLE:
        parties.append((Served(ORACLE), "upstream"))
    taken: dict[str, list[dict[str, Any]]] = {name: [] for _, name in parties}
    counts = {party.ask(name, urls)["count"] for party, name in parties}
    if len(counts) > 1:
        raise RuntimeError(f"the candidates disagree about the number of samples: {counts}")
    for _ in range(ROUNDS):
        random.shuffle(parties)
        for party, name in parties:
            taken[name].append(party.ask(name, urls))
    for party in {id(party): party for party, _ in parties}.values():
        party.orders.close()
        party.child.wait()
    line: dict[str, Any] = {"question": "loader JPEG 512", "load": [round(load, 1) for load in os.getloadavg()]}
    for clock in ("wall", "cpu"):
        median = {name: statistics.median(each[clock] for each in answers) for name, answers in taken.items()}
        line[f"{clock}_us"] = {name: round(seconds * 1e6) for name, seconds in median.items()}
        line[f"{clock}_speed"] = {name: round(median["bare"] / seconds, 2) for name, seconds in median.items()}
        least = {name: min(each[clock] for each in answers) for name, answers in taken.items()}
        line[f"{clock}_speed_least"] = {name: round(least["bare"] / seconds, 2) for name, seconds in least.items()}
    walls = line["wall_us"]
    line["share_of_reading"] = round(line["cpu_us"]["bare_reading"] / line["cpu_us"]["none"], 2)
    line["share_of_two"] = {name: round(walls["bare_two"] / walls[name], 2) for name in ("threads", "processes")}
    line["ratio"] = line["cpu_speed"]["none"]
    line |= {f"two_{name}": line["wall_speed"][name] for name in ("threads", "processes")}
    if "upstream" in walls:
        line["against_upstream"] = round(walls["upstream"] / walls["processes"], 2)
    else:
        line["left_out"] = "its DataLoader: WDS_ORACLE_TORCH names no Python with torch and a published version"
    print(json.dumps(line), flush=True)
    return line


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else measure()
