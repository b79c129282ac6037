"""What does a library do with damaged shards: does it raise an error, or give less or something else without a word?

Sixty samples of a small JPEG and a json field. Tar shards are cut between two members of a sample, as a failed download
leaves them; get one bit flipped in the header of a member (in its name, size, type and checksum, each in a run of its
own) or in a picture's bytes; or hold two samples whose members take turns. What others converted the whole shard to is
cut to three fifths, and gets its bits flipped where its format keeps sizes and offsets, or in between.
"""

import contextlib
import io
import json
import random
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers_child import Child, GoneError, RefusedError, Way
from shards import Sample, write_tar

COUNT, MIDDLE = 60, 30
# In a header of 512 bytes: the last digit of the key, of the size, the type, and the checksum.
HEADER_PLACES = (6, 134, 156, 150)
# Parts of a file of another format that the bytes of its samples take, where bits are flipped.
SHARES = (0.2, 0.35, 0.5, 0.65)
CASES = ("cut", "header", "payload", "interleaved")


def pictures() -> list[tuple[str, Sample]]:
    """Return samples with real JPEGs, as keys and fields."""
    from PIL import Image

    draws = random.Random(5)
    keyed = []
    for number in range(COUNT):
        stream = io.BytesIO()
        Image.frombytes("RGB", (32, 32), draws.randbytes(32 * 32 * 3)).save(stream, "JPEG", quality=90)
        keyed.append((f"{number:07d}", {"jpg": stream.getvalue(), "json": json.dumps({"number": number}).encode()}))
    return keyed


def flip(path: Path, place: int) -> None:
    """Flip the lowest bit of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def write_interleaved(path: Path, keyed: list[tuple[str, Sample]]) -> None:
    """Write a shard in which the members of two samples take turns."""
    (first, one), (second, other) = keyed[MIDDLE], keyed[MIDDLE + 1]
    parts = [(key, {field: sample[field]}) for field in one for key, sample in ((first, one), (second, other))]
    write_tar(path, [*keyed[:MIDDLE], *parts, *keyed[MIDDLE + 2 :]])


def damaged_tars(whole: Path, folder: Path) -> dict[str, list[Path]]:
    """Write the damaged shards and return them by case.

    Args:
        whole: the shard without damage.
        folder: where they go.
    """
    with tarfile.open(whole) as archive:
        picture, text = archive.getmembers()[2 * MIDDLE : 2 * MIDDLE + 2]

    def copy(name: str) -> Path:
        path = folder / name / "damage.tar"
        path.parent.mkdir()
        shutil.copyfile(whole, path)
        return path

    cut, payload, interleaved = copy("cut"), copy("payload"), copy("interleaved")
    with open(cut, "r+b") as file:
        file.truncate(text.offset)
    flip(payload, picture.offset_data + picture.size // 2)
    write_interleaved(interleaved, pictures())
    headers = [copy(f"header-{place}") for place in HEADER_PLACES]
    for path, place in zip(headers, HEADER_PLACES, strict=True):
        flip(path, picture.offset + place)
    return {"cut": [cut], "header": headers, "payload": [payload], "interleaved": [interleaved]}


def damaged_copies(way: Way, own: Path, folder: Path) -> dict[str, list[Path]]:
    """Damage the largest file of copies of a library's own format, and return the copies by case.

    Args:
        way: the way of reading it.
        own: the folder it was converted to.
        folder: where the copies go.
    """

    def copy(name: str, damage: Callable[[Path], None]) -> Path:
        shutil.copytree(own, folder / name)
        damage(
            max((path for path in (folder / name).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        )
        return folder / name

    def cut(path: Path) -> None:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size * 3 // 5)

    def flip_at(share: float) -> Callable[[Path], None]:
        return lambda path: flip(path, int(path.stat().st_size * share))

    found = {"cut": [copy("cut", cut)], "payload": [copy(f"payload{share}", flip_at(share)) for share in SHARES]}
    found["header"] = [copy(f"header{place}", partial(flip, place=place)) for place in way.places]
    return found


def read_all(out: Path) -> list[tuple[str | None, dict[str, int | None]]]:
    """Return the keys and checksums that a child has written, line by line."""
    with contextlib.suppress(FileNotFoundError):
        return [(key, fields) for key, fields in map(json.loads, out.read_text(encoding="utf-8").splitlines())]
    return []


def judge(whole: list[Any], found: list[Any], error: str | None) -> dict[str, Any]:
    """Compare what came of a damaged shard with what comes of the whole one.

    Args:
        whole: keys and checksums.
        found: the same of the damaged one.
        error: what the library raised, or None.

    Returns:
        ``lost``: samples that did not come whole; ``half``: samples that came with fewer fields; ``changed``: samples
        with other bytes, another key, or twice; ``error``.
    """

    def form(sample: Any) -> str:
        return json.dumps(sample, sort_keys=True)

    complete = len(whole[0][1])
    expected, came = Counter(map(form, whole)), Counter(map(form, found))
    extra = [json.loads(text) for text in (came - expected).elements()]
    half = sum(len(fields) < complete for _, fields in extra)
    return {"lost": (expected - came).total(), "half": half, "changed": len(extra) - half, "error": error}


class Examination:
    """One way of reading, and its folder.

    Args:
        way: the way.
        folder: where it writes.
    """

    def __init__(self, way: Way, folder: Path) -> None:
        self.way, self.folder, self.runs = way, folder, 0
        self.child = Child(way, folder)

    def read(self, shard: Path, own: Path) -> tuple[list[Any], str | None]:
        """Open and read; return what came, and the error."""
        self.runs += 1
        out = self.folder / f"{self.runs}.jsonl"
        try:
            self.child.ask("open", shards=[str(shard)], folder=str(own))
            self.child.ask("check", out=str(out))
        except RefusedError as error:
            return read_all(out), str(error)
        except GoneError as error:
            self.child = Child(self.way, self.folder)
            return read_all(out), str(error)
        return read_all(out), None

    def answers(self, shard: Path) -> dict[str, list[dict[str, Any]]]:
        """Read the whole shard and the damaged ones; return the judgements by case.

        Raises:
            RefusedError: not even the whole one could be read.
        """
        own, places = self.folder / "own", self.folder / "damaged"
        places.mkdir()
        if self.child.ask("convert", shards=[str(shard)], folder=str(own)):
            cases = {
                case: [(shard, path) for path in paths] for case, paths in damaged_copies(self.way, own, places).items()
            }
        else:
            damaged = damaged_tars(shard, places)
            cases = {case: [(path, path.parent / "own") for path in paths] for case, paths in damaged.items()}
        whole, error = self.read(shard, own)
        if error is not None or len(whole) != COUNT:
            raise RefusedError(error or f"{len(whole)} samples of a whole shard")
        return {case: [judge(whole, *self.read(*pair)) for pair in pairs] for case, pairs in cases.items()}


def examine(way: Way, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Ask one way about all damage.

    Args:
        way: the way.
        folder: an empty one, where everything is written.
    """
    folder.mkdir(parents=True)
    shard = folder / "whole.tar"
    write_tar(shard, pictures())
    examination = Examination(way, folder)
    try:
        return examination.answers(shard)
    finally:
        examination.child.close()
