"""Functions for ``map_shards`` that worker processes import by name, and shards for them."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import webdataset as wds

FACTOR = 3


def make_shards(folder: Path, counts: Sequence[int]) -> list[str]:
    """Write shards of so many samples each, numbered through; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    names: list[str] = []
    for shard, count in enumerate(counts):
        names.append(str(folder / f"{shard:03d}.tar"))
        with wds.TarWriter(names[-1]) as writer:
            for _ in range(count):
                writer.write({"__key__": f"{number:05d}", "txt": f"{number}", "bin": b"%d" % number * (number % 40)})
                number += 1
    return names


def read_outputs(folder: str | Path) -> dict[str, Any]:
    """Return the bytes of all outputs and quarantines of a job, and what its receipts say of the samples."""
    import json

    found: dict[str, Any] = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.name.endswith((".tar", ".jsonl", ".quarantined", ".tar.gz")):
            found["/".join(part for part in path.relative_to(folder).parts if len(part) != 32)] = path.read_bytes()
        elif path.name.endswith(".receipt.json"):
            receipt = json.loads(path.read_bytes())
            found[name] = receipt["counts"], receipt["output"]["blake2b"], receipt["what"]["fn"]
    return found


def keep(sample: dict[str, Any]) -> Any:
    """Return the sample as it is."""
    return sample


def vary(sample: dict[str, Any]) -> Any:
    """Drop some, double some, change some, keep the rest; with random numbers of the sample's own."""
    number = int(sample["txt"])
    if number % 7 == 0:
        return None
    if number % 5 == 0:
        return [{"txt": str(number * FACTOR)}, {"txt": "second"}]
    if number % 3 == 0:
        return {**sample, "rnd": b"%d" % wds.sample_rng(sample["__key__"], 4).randrange(1 << 30)}
    return sample


def vary_slowly(sample: dict[str, Any]) -> Any:
    """Do as ``vary``, with some time for a kill, and an error now and then."""
    time.sleep(0.004)
    if int(sample["txt"]) % 23 == 11:
        raise ValueError(f"no {sample['txt']}")
    return vary(sample)


def fail_some(sample: dict[str, Any]) -> Any:
    """Raise for every tenth sample."""
    if int(sample["txt"]) % 10 == 3:
        raise ValueError("a sample of three")
    return sample


def crash_at_13(sample: dict[str, Any]) -> Any:
    """End the process by a fault at one sample, raise at another."""
    if sample["txt"] == b"13":
        os.kill(os.getpid(), signal.SIGSEGV)
    return fail_some(sample)


def leave_at_13(sample: dict[str, Any]) -> Any:
    """End the process in three ways at three samples."""
    number = int(sample["txt"])
    if number == 13:
        os._exit(5)
    if number == 14:
        raise SystemExit(6)
    return sample


def interrupt(sample: dict[str, Any]) -> Any:
    """Raise what a terminal's Ctrl-C raises."""
    raise KeyboardInterrupt


def draw_unseeded(sample: dict[str, Any]) -> Any:
    """Give something else each time."""
    time.sleep(0.05)
    return {**sample, "rnd": b"%d" % random.SystemRandom().randrange(1 << 60)}


def tag(sample: dict[str, Any], *, mark: str, times: int = 1) -> Any:
    """Add a parameter to each sample."""
    return {**sample, "tag": mark * times}


@wds.stream_function
def pair_up(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Join each two samples, and number them."""
    samples = iter(samples)
    for number, first in enumerate(samples):
        second = next(samples, {"txt": b"none"})
        yield {"__key__": f"{first['__key__']}-{number}", "a.txt": first["txt"], "b.txt": second["txt"]}


class Scaler:
    """Notes in a folder when it is set up and torn down."""

    def __init__(self, *, factor: int, folder: str) -> None:
        self.factor, self.folder = factor, Path(folder)
        self.ready = False

    def setup(self) -> None:
        """Load what is needed, once a process."""
        self.ready = True
        self._note("setup")

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Scale a sample."""
        assert self.ready
        return {"txt": str(int(sample["txt"]) * self.factor)}

    def teardown(self) -> None:
        """Let go."""
        self._note("teardown")

    def _note(self, word: str) -> None:
        (self.folder / f"{word}-{os.getpid()}-{time.monotonic_ns()}").touch()


def extract_class(label: dict[str, Any]) -> Any:
    """Return the class of a label, as the seed's example does."""
    return label["class"]


@wds.stream_function
def augment_wds(samples: Iterator[dict[str, Any]], *, maxcount: int = 999999999) -> Iterator[dict[str, Any]]:
    """Decode, change and encode images, as the seed's example does."""
    import numpy as np

    decoded = wds.to_tuple("__key__", "jpg;png", "json")(wds.decode("rgb")(samples))
    for key, image, label in islice(decoded, 0, maxcount):
        image = image - np.amin(image)
        image = image / np.amax(image)
        yield {"__key__": key, "png": image, "cls": extract_class(label)}
