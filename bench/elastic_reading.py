"""What does elastic reading cost beside plain reading, where streams share shards?

36 000 samples of 2 KB and a class, in 3, 6, 25, 30 and 48 shards, are read raw by ``WebDataset(urls)`` and by
``.elastic(streams=24)``, in turns in one process; with and without the native core (each in a process of its own), and
with ``WDS_SHARED_BYTES=0``, where each stream reads a shared shard by itself. CPU time a sample, medians; ``bytes`` are
those that the process read (``/proc/self/io``) divided by those of the shards.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import ROUNDS, SCALE, show

SAMPLES = int(36_000 * SCALE)
SHARDS = (3, 6, 25, 30, 48)
VARIANTS = {
    "native core": {},
    "pure Python": {"WDS_NATIVE": "0"},
    "native core, not shared": {"WDS_SHARED_BYTES": "0"},
}


def write_shards(folder: Path) -> dict[int, str]:
    """Write the same samples into several numbers of shards; return urls by number."""
    import webdataset as wds

    found = {}
    for shards in SHARDS:
        for shard in range(shards):
            with wds.TarWriter(str(folder / f"{shards}-{shard:02d}.tar")) as sink:
                for number in range(SAMPLES // shards):
                    sink.write({"__key__": f"{shard}-{number:05d}", "bin": bytes(2000), "cls": number % 10})
        found[shards] = str(folder / f"{shards}-{{00..{shards - 1:02d}}}.tar")
    return found


def read(dataset: Iterable[object]) -> tuple[float, int]:
    """Return the microseconds of CPU time a sample, and the bytes that were read."""
    before, start, count = count_bytes(), time.process_time(), 0
    for _ in dataset:
        count += 1
    return (time.process_time() - start) / count * 1e6, count_bytes() - before


def count_bytes() -> int:
    """Return how many bytes this process has read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def measure(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each number of shards."""
    import webdataset as wds

    rows = []
    for shards in SHARDS:
        urls = str(folder / f"{shards}-{{00..{shards - 1:02d}}}.tar")
        size = sum(path.stat().st_size for path in folder.glob(f"{shards}-*.tar"))
        plain = wds.WebDataset(urls, shardshuffle=False)
        elastic = wds.WebDataset(urls, shardshuffle=False).elastic(streams=24)
        turns = [(read(plain), read(elastic)) for _ in range(ROUNDS)]
        one, other = (statistics.median(turn[side][0] for turn in turns) for side in (0, 1))
        rows.append(
            {
                "shards": shards,
                "plain_us": round(one, 2),
                "elastic_us": round(other, 2),
                "ratio": round(other / one, 2),
                "bytes": round(turns[-1][1][1] / size, 2),
            }
        )
    return rows


def main() -> None:
    """Measure each variant in a process of its own."""
    if sys.argv[1:2] == ["--in"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    found = {}
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name))
        for variant, settings in VARIANTS.items():
            command = [sys.executable, __file__, "--in", name]
            done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
            found[variant] = json.loads(done.stdout)
    for native, pure, alone in zip(*found.values(), strict=True):
        show(
            f"elastic {pure['shards']}",
            plain_us=pure["plain_us"],
            elastic_us=pure["elastic_us"],
            ratio=pure["ratio"],
            native_plain_us=native["plain_us"],
            native_elastic_us=native["elastic_us"],
            native_ratio=native["ratio"],
            native_ratio_not_shared=alone["ratio"],
            bytes=pure["bytes"],
            bytes_not_shared=alone["bytes"],
            load=round(os.getloadavg()[0], 1),
        )


if __name__ == "__main__":
    main()
