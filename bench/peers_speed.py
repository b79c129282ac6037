"""How many samples a second of CPU time do other libraries read, and what do they make of damaged shards?

The same samples for all: W1 (80 KB JPEGs), W2 (small) and W3 (5 MB), raw bytes of all fields, in one process, in order;
what converts them first may do so. CPU seconds are those of all threads and processes of a library; all take turns, and
figures are medians. Before that each one's samples are compared, by checksum, with those that were written. Then each
reads damaged shards (``peers_damage.py``), and some decode, crop, resize and normalise JPEGs of 512 x 512 pixels.

``make bench-peers`` makes the environments and runs this; ``ARGS='litdata lance'`` asks these beside this library and
webdataset 1.0.2. ``peers_speed.py --last`` prints the tables of the last whole run. ``BENCH_SCALE`` (0.5 unless said)
scales the data, ``BENCH_ROUNDS`` the measurements.
"""

import io
import json
import os
import random
import statistics
import sys
import tarfile
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import ROUNDS, rounded, show
from peers_child import TRAININGS, WAYS, Child, GoneError, RefusedError, Way
from peers_damage import examine, read_all
from peers_report import tables
from peers_resume import sweep
from shards import workspace, write, write_tar
from table import load, machine

KEPT = Path(__file__).resolve().parent / "out" / "peers.json"
SCALE = float(os.environ.get("BENCH_SCALE", "0.5"))
WORKS = ("W1", "W2", "W3")
ALWAYS = ("ours", "1.0.2")
PICTURES, SIDE = 800, 512
Answers = dict[str, dict[str, Any]]


def versions(way: Way) -> str:
    """Return the version of a library's distribution."""
    from importlib.metadata import version

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
    from peers import PEERS

    if way.environment == "ours":
        return version("webdataset")
    return "1.0.2" if way.environment == "1.0.2" else PEERS[way.environment][0].partition("==")[2]


def truth(shards: list[str]) -> list[dict[str, int]]:
    """Return the checksums of the fields of all samples, sorted, read with the standard library."""
    samples: dict[str, dict[str, int]] = {}
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                key, _, field = member.name.partition(".")
                content = archive.extractfile(member)
                samples.setdefault(key, {})[field] = zlib.crc32(content.read() if content else b"")
    return [samples[key] for key in sorted(samples)]


def agrees(written: list[dict[str, int]], read: list[Any]) -> bool:
    """Tell whether samples are those that were written; a field that a library decoded is taken as right."""
    return len(written) == len(read) and all(
        set(right) == set(fields) and all(fields[name] in (None, right[name]) for name in right)
        for right, (_, fields) in zip(written, sorted(read, key=lambda sample: sample[0] or ""), strict=True)
    )


def ready(way: Way, shards: list[str], folder: Path, written: list[dict[str, int]] | None) -> Child:
    """Start a library's process and let it open the shards, which it converts if need be and reads once.

    Args:
        way: the way of reading.
        shards: paths.
        folder: where it may write.
        written: what it must read, where that can be compared.

    Raises:
        RefusedError: it could not, or it read something else.
        GoneError: it is not there, died or hangs.
    """
    child = Child(way, folder)
    try:
        own = folder.parent / f"{way.module}-own"
        if not own.exists():
            child.ask("convert", shards=shards, folder=str(own))
        child.ask("open", shards=shards, folder=str(own))
        if written is None:
            child.ask("count")
            return child
        child.ask("check", out=str(folder / "read.jsonl"))
    except Exception:
        child.close()
        raise
    if agrees(written, read_all(folder / "read.jsonl")):
        return child
    child.close()
    raise RefusedError("it read other samples than were written")


def in_turns(ways: Mapping[str, Way], shards: list[str], folder: Path, written: Any) -> Answers:
    """Let all ways read the same shards in turns; return the figures of each, or why it has none."""
    answers: Answers = {}
    children: dict[str, Child] = {}
    taken: dict[str, list[dict[str, float]]] = {}
    try:
        for name, way in ways.items():
            place = folder / name
            place.mkdir()
            try:
                children[name] = ready(way, shards, place, written)
            except (RefusedError, GoneError) as error:
                answers[name] = {"left_out": str(error)}
        for _ in range(ROUNDS):
            for name in [name for name in children if name not in answers]:
                try:
                    taken.setdefault(name, []).append(children[name].ask("count"))
                except (RefusedError, GoneError) as error:
                    answers[name] = {"left_out": str(error)}
    finally:
        for child in children.values():
            child.close()
        sweep(folder)
    for name in ways.keys() - answers:
        samples = taken[name][0]["samples"]
        used, wall = (statistics.median(each[what] for each in taken[name]) for what in ("cpu", "wall"))
        answers[name] = {"cpu_us": rounded(used / samples * 1e6), "wall_us": rounded(wall / samples * 1e6)}
        answers[name]["samples_a_cpu_second"] = rounded(samples / used)
    return {name: answers[name] for name in ways}


def measure(works: tuple[str, ...], ways: Mapping[str, Way]) -> dict[str, Answers]:
    """Measure raw reading of each workload and return the answers by workload."""
    found = {}
    raw = {name: way for name, way in ways.items() if way.raw}
    for work in works:
        with workspace() as folder:
            (folder / "shards").mkdir()
            shards = write(work, folder / "shards", scale=SCALE)
            found[work] = in_turns(raw, shards, folder, truth(shards))
        for name, answer in found[work].items():
            show(f"peers {work}", library=name, **answer)
    return found


def write_pictures(folder: Path) -> list[str]:
    """Write two shards of JPEGs of 512 x 512 pixels and about 90 KB, and their classes."""
    from PIL import Image

    draws = random.Random(7)
    encoded = []
    for _ in range(40):
        small = Image.frombytes("RGB", (64, 64), draws.randbytes(64 * 64 * 3)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        )
        noise = Image.effect_noise((SIDE, SIDE), 24).convert("RGB")
        stream = io.BytesIO()
        Image.blend(small, noise, 0.25).save(stream, "JPEG", quality=90)
        encoded.append(stream.getvalue())
    count = max(8, int(PICTURES * SCALE))
    keyed = [(f"{n:07d}", {"jpg": encoded[n % len(encoded)], "cls": str(n % 10).encode()}) for n in range(count)]
    paths = [folder / "pictures-0.tar", folder / "pictures-1.tar"]
    for number, path in enumerate(paths):
        write_tar(path, keyed[number * count // 2 : (number + 1) * count // 2])
    return [str(path) for path in paths]


def train(ways: Mapping[str, Way]) -> Answers:
    """Measure decoding, cropping, resizing and normalising, and return the answers."""
    chosen = {name: way for name, way in TRAININGS.items() if name in ways or name == "crop"}
    with workspace() as folder:
        found = in_turns(chosen, write_pictures(folder), folder, None)
    for name, answer in found.items():
        show("peers train", library=name, **answer)
    return found


def damage(ways: Mapping[str, Way]) -> Answers:
    """Ask all about damaged shards, those with a format of their own in one way, and return the answers."""
    found: Answers = {}
    for name, way in ways.items():
        if way.places and way.reader != "plain":
            continue
        with workspace() as folder:
            try:
                found[name] = examine(way, folder / "one")
            except (RefusedError, GoneError, OSError, ValueError) as error:
                found[name] = {"left_out": str(error)}
            sweep(folder)
        show("peers damage", library=name, **found[name])
    return found


def main() -> None:
    """Measure, or take the last figures, and print the tables."""
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    if unknown := [name for name in names if name not in WAYS]:
        sys.exit(f"unknown: {' '.join(unknown)}; there are {' '.join(WAYS)}")
    ways = {name: way for name, way in WAYS.items() if not names or name in names or name in ALWAYS}
    if "--last" in sys.argv:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
    else:
        before = load()
        kept = {"raw": measure(WORKS, ways), "damage": damage(ways), "train": train(ways), "scale": SCALE}
        kept["versions"] = {name: versions(way) for name, way in ways.items()}
        kept |= {"date": datetime.now(UTC).date().isoformat(), "machine": machine(), "load": [before, load()]}
        if not names:
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(tables(kept))


if __name__ == "__main__":
    main()
