"""Sorts and shuffles samples with bounded memory.

Theory. Samples are gathered until they would exceed the memory limit, sorted, and spilled to a temporary file (a
*run*). At the end the runs are merged: each is read front to back, one sample of each at a time (Knuth, The Art of
Computer Programming, vol. 3, 5.4). More than :data:`FAN_IN` runs are merged in several passes. Sorting is stable: equal
samples stay in the order in which they came, for runs are merged in their order. What fits into memory is never
spilled.

A shuffle sorts by numbers drawn from a seeded generator, one a sample: every order has the same probability, and the
order depends on the seed and the order of the input alone, not on the memory limit.

Memory: the limit, and while runs are merged one sample of each and a buffer of each file. Disk: the bytes of all
samples, twice while several passes merge.
"""

import heapq
import json
import random
import struct
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from webdataset.core.errors import SampleError, SourceError, UsageError
from webdataset.samples.raw_samples import RawMember, RawSample

FAN_IN: Final = 64
MEMORY_BYTES: Final = 1 << 30
_SAMPLE_OVERHEAD = 1000
_LENGTHS = struct.Struct("<QQ")

SortKey = Any
Entry = tuple[SortKey, RawSample]


def make_sort_key(value: Any) -> SortKey:
    """Return what orders a value among values of other kinds: None first, then numbers, then texts, then lists.

    Args:
        value: as an expression gives it.

    Raises:
        TypeError: a value without an order.
    """
    if value is None:
        return [0]
    if isinstance(value, int | float):
        if value != value:  # noqa: PLR0124  not a number
            raise TypeError("NaN has no order")
        return [1, value]
    if isinstance(value, str):
        return [2, value]
    if isinstance(value, list | tuple):
        return [3, [make_sort_key(each) for each in value]]
    raise TypeError(f"{type(value).__name__} has no order: sort by a number, a text or a list of them")


def sort_samples(
    samples: Iterable[RawSample],
    key: Callable[[RawSample], Any],
    *,
    reverse: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    folder: str | None = None,
) -> Iterator[RawSample]:
    """Yield samples in order; equal ones stay in the order in which they came.

    Args:
        samples: as they stand.
        key: what to sort by: None, a number, a text or a list of them.
        reverse: the greatest first.
        memory_bytes: about how much may be gathered.
        folder: of temporary files; the system's by default.

    Raises:
        SampleError: a key without an order.
        SourceError: temporary files cannot be written.
        UsageError: a limit that is no number of bytes.
    """
    if memory_bytes <= 0:
        raise UsageError(f"memory_bytes={memory_bytes!r} is a number of bytes above 0")

    def entries() -> Iterator[Entry]:
        for sample in samples:
            try:
                yield make_sort_key(key(sample)), sample
            except TypeError as error:
                raise SampleError(str(error), key=sample.key, url=sample.url) from None

    return _sort_entries(entries(), reverse=reverse, memory_bytes=memory_bytes, folder=folder)


def shuffle_samples(
    samples: Iterable[RawSample], seed: int, *, memory_bytes: int = MEMORY_BYTES, folder: str | None = None
) -> Iterator[RawSample]:
    """Yield samples in random order.

    Args:
        samples: as they stand.
        seed: the same seed and input give the same order.
        memory_bytes: about how much may be gathered.
        folder: of temporary files; the system's by default.

    Raises:
        SourceError: temporary files cannot be written.
        UsageError: a limit that is no number of bytes.
    """
    draw = random.Random(seed)  # noqa: S311  shuffling, not cryptography
    return sort_samples(samples, lambda _: draw.getrandbits(64), memory_bytes=memory_bytes, folder=folder)


def _weigh_sample(sample: RawSample) -> int:
    return sample.size_bytes + _SAMPLE_OVERHEAD


def _entry_key(entry: Entry) -> SortKey:
    return entry[0]


def _sort_entries(
    entries: Iterable[Entry], *, reverse: bool, memory_bytes: int, folder: str | None
) -> Iterator[RawSample]:
    gathered: list[Entry] = []
    weight = 0
    with _make_scratch(folder) as scratch:
        runs: list[Path] = []
        number = 0
        for entry in entries:
            weight += _weigh_sample(entry[1])
            if weight > memory_bytes and gathered:
                runs.append(_spill(_in_order(gathered, reverse=reverse), Path(scratch, f"{number}.run")))
                number += 1
                gathered, weight = [], _weigh_sample(entry[1])
            gathered.append(entry)
        if not runs:
            yield from (sample for _, sample in _in_order(gathered, reverse=reverse))
            return
        runs.append(_spill(_in_order(gathered, reverse=reverse), Path(scratch, f"{number}.run")))
        del gathered
        while len(runs) > FAN_IN:
            merged = []
            for first in range(0, len(runs), FAN_IN):
                number += 1
                some = runs[first : first + FAN_IN]
                merged.append(_spill(_merge(some, reverse=reverse), Path(scratch, f"{number}.run")))
                for run in some:
                    run.unlink()
            runs = merged
        yield from (sample for _, sample in _merge(runs, reverse=reverse))


def _in_order(entries: list[Entry], *, reverse: bool) -> Iterator[Entry]:
    """Sort entries, and yield each while the list shrinks."""
    entries.sort(key=_entry_key, reverse=reverse)
    entries.reverse()
    while entries:
        yield entries.pop()


def _spill(entries: Iterable[Entry], path: Path) -> Path:
    try:
        with path.open("wb", buffering=1 << 18) as file:
            for entry in entries:
                _write_entry(file, entry)
    except OSError as error:
        raise _make_error(error, str(path.parent)) from error
    return path


def _make_error(error: OSError, folder: str) -> SourceError:
    return SourceError(
        f"a temporary file cannot be written: {error.strerror or error}; name a folder with space for all samples "
        "(--temporary), or gather more before the disk is used (--memory)",
        url=folder,
    )


def _make_scratch(folder: str | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="wds-sort-", dir=folder)
    except OSError as error:
        raise _make_error(error, folder or tempfile.gettempdir()) from error


def _merge(runs: list[Path], *, reverse: bool) -> Iterator[Entry]:
    readers = [_read_run(run) for run in runs]
    try:
        yield from heapq.merge(*readers, key=_entry_key, reverse=reverse)
    finally:
        for reader in readers:
            reader.close()


def _write_entry(file: BinaryIO, entry: Entry) -> None:
    key, sample = entry
    outline = {
        "sort": key,
        "key": sample.key,
        "url": sample.url,
        "offset": sample.offset,
        "fields": sample.fields,
        "members": [(member.name, len(member.header), len(member.payload)) for member in sample.members],
    }
    head = json.dumps(outline).encode("ascii")
    size = sum(len(member.header) + len(member.payload) for member in sample.members)
    file.write(_LENGTHS.pack(len(head), size))
    file.write(head)
    for member in sample.members:
        file.write(member.header)
        file.write(member.payload)


def _read_run(path: Path) -> Generator[Entry, None, None]:
    """Yield the entries of a run; the file is open while this generator is."""
    with path.open("rb", buffering=1 << 18) as file:
        while lengths := file.read(_LENGTHS.size):
            head_size, _ = _LENGTHS.unpack(lengths)
            outline = json.loads(file.read(head_size))
            members = tuple(
                RawMember(name, file.read(header), file.read(payload)) for name, header, payload in outline["members"]
            )
            fields = tuple(outline["fields"])
            yield outline["sort"], RawSample(outline["key"], members, fields, outline["url"], outline["offset"])
