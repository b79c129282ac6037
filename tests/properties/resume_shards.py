"""The shards that the resume fuzz reads: about 6 000 small samples each, written once to a folder and kept there.

Each shelf has another shape: few shards, as many as streams, uneven ones, hundreds, compressed, damaged, documents,
records. What a shelf holds never changes, so that a seed tells the same story on every machine.
"""

import gzip
import io
import json
import os
import random
import tarfile
import tempfile
from pathlib import Path

import webdataset as wds
from webdataset.testing.documents import Picture, Spec, siblings

VERSION = 4
ROOT = Path(os.environ.get("RESUME_FUZZ_SHARDS") or Path(tempfile.gettempdir()) / f"wds-resume-fuzz-{os.getuid()}")
UNEVEN = [0, 613, 7, 401, 128, 129, 255, 1, 512, 90, 333, 0, 260, 47, 700, 19, 388, 256, 64, 301, 477, 5, 299, 410, 450]
LENGTHS = {
    "one": [6000],
    "few": [2100, 2000, 1950],
    "sparse": [1250, 1100, 1300, 1210, 1190],
    "even": [255] * 24,
    "uneven": UNEVEN,
    "many": [20 + number % 3 for number in range(300)],
    "gz": [770, 740, 760, 800, 790, 720, 755, 745],
    "long": [605] * 10,
    "damaged": [430] * 16,
    "records": [1010, 1000, 990, 1020, 1005, 1015],
    "documents": [13] * 120,
}


def body(number, index):
    """Return a payload: short, now and then long, so that weights differ."""
    place = number * 1009 + index
    size = 2000 if place % 97 == 0 else place % 41
    return f"{number}.{index};".encode() + b"x" * size


def shelf(name):
    """Return the urls of a shelf's shards, in order.

    Args:
        name: one of ``LENGTHS``.
    """
    folder = ROOT / f"{name}-{VERSION}"
    if not folder.exists():
        ROOT.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=ROOT))
        _write(part, name)
        try:
            part.rename(folder)
        except OSError:  # another process was quicker
            if not folder.exists():
                raise
    return sorted(str(path) for path in folder.iterdir())


def broken():
    """Return the urls of the damaged shards, and in between two that there are not."""
    urls = shelf("damaged")
    nowhere = str(ROOT / "nowhere.tar")
    return [*urls[:5], nowhere, *urls[5:], nowhere]


def repeated(kind, count, dataset, **options):
    """Return a mix of one dataset, several times.

    Args:
        kind: of the mix.
        count: how many times.
        dataset: the same object each time.
        **options: of the mix.
    """
    return kind([dataset] * count, **options)


def chosen(most):
    """Return a source that draws shards of several shelves anew in each pass.

    Args:
        most: shards of the first.
    """
    return {
        "datasets": [
            {"name": "a", "shards": shelf("even"), "choose": most},
            {"name": "b", "shards": shelf("long"), "resample": 7},
            {"name": "c", "shards": shelf("sparse")[:2]},
        ]
    }


def counts(name):
    """Return how many samples each shard of a shelf holds, by url."""
    return dict(zip(shelf(name), LENGTHS[name], strict=True))


def _write(folder, name):
    for number, length in enumerate(LENGTHS[name]):
        path = folder / f"{number:03}.tar"
        if name == "documents":
            _documents(path, number, length)
        elif name == "records":
            with wds.RecordWriter(str(folder / f"{number:03}.msgpack")) as sink:
                for sample in _samples(number, length):
                    sink.write(sample)
        else:
            with wds.TarWriter(str(path)) as sink:
                for sample in _samples(number, length):
                    if name == "long":  # names that need a header more
                        sample["__key__"] = f"ordner/{'n' * (sample['cls'][0] % 3 * 60)}ä/{sample['__key__']}"
                    sink.write(sample)
        if name == "gz":
            path.with_suffix(".tar.gz").write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
            path.unlink()
        if name == "damaged":
            path.write_bytes(_damaged(number, path.read_bytes()))


def _samples(number, length):
    for index in range(length):
        yield {"__key__": f"{number:03}-{index:04}", "txt": body(number, index), "cls": b"%d" % ((number + index) % 10)}


def _damaged(number, archive):
    """Return an archive with one kind of damage in every fourth shard: a cut, a broken header, nothing, noise.

    Others have a field twice in some samples.
    """
    if number % 4 == 2:
        return _doubled(number)
    if number % 4 != 3:
        return archive
    kind, noise = number // 4, random.Random(number).randbytes(600)
    if kind == 0:
        return archive[: len(archive) * 6 // 10 + 100]
    if kind == 1:
        place = len(archive) // 3 // 512 * 512
        return archive[:place] + noise + archive[place + len(noise) :]
    return b"" if kind == 2 else noise * 20


def _doubled(number):
    """Return an archive of which one sample in forty has a field twice."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in _samples(number, LENGTHS["damaged"][number]):
            index = int(sample["__key__"][-4:])
            for field in ("txt", "cls", "txt") if index % 40 == 13 else ("txt", "cls"):
                member = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                member.size = len(sample[field])
                archive.addfile(member, io.BytesIO(sample[field]))
    return stream.getvalue()


def _documents(path, number, length):
    """Write documents whose members stand in any order among those of two neighbours."""
    chosen = random.Random(number)
    waiting, ready = [], []
    for index in range(length):
        names = [f"{number:03}-{index:02}-{place}.jpg" for place in range(chosen.randrange(4))]
        pictures = [Picture(name, 0, f"{name} bytes".encode()) for name in names]
        waiting.append(siblings(Spec(f"{number:03}-{index:02}", ["a text", "another"], pictures)))
        if len(waiting) == 2 or index == length - 1:
            members = [member for document in waiting for member in document]
            chosen.shuffle(members)
            ready += members
            waiting.clear()
    with wds.TarWriter(str(path)) as sink:
        for name, payload in ready:
            key, _, field = name.partition(".")
            sink.write({"__key__": key, field: payload})


def rows(number, length):
    """Return samples as a list of a kind that gives a fresh sample each time.

    Args:
        number: tells lists apart.
        length: how many.
    """
    return Rows(number, length)


class Rows(list):
    """Samples that are made when they are asked for: nobody sees what was changed in place."""

    def __init__(self, number, length):
        super().__init__(range(length))
        self.number = number

    def __getitem__(self, index):
        return self._made(super().__getitem__(index))

    def __iter__(self):
        return map(self._made, super().__iter__())

    def _made(self, index):
        return {"__key__": f"r{self.number}-{index:04}", "txt": body(self.number, index), "cls": b"%d" % (index % 10)}

    def __repr__(self):
        return f"rows({self.number}, {len(self)})"


class Counting:
    """An iterable that is no sequence, and is a source without arguments too.

    Args:
        number: tells sources apart.
        length: samples in a pass.
    """

    def __init__(self, number, length):
        self.rows = Rows(number, length)

    def __iter__(self):
        return iter(self.rows)


def counted(number, length):
    """Return a function without arguments that gives samples.

    Args:
        number: tells sources apart.
        length: samples in a pass.
    """

    def source():
        yield from Rows(number, length)

    return source


def known(key):
    """Return what is known about a key, for ``associate``."""
    return {"about": json.dumps(key[-2:])}
