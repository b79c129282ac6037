"""Plans a job: which inputs there are, in which version, what the outputs are called, and which samples each one gets.

Outputs are made of whole inputs (1:1), or of equal ranges of all samples (N:M), whose number comes from indexes beside
the inputs, or from counting them. Counts are kept in the manifest, by the version of the input, so that each input is
counted once. Identities and counts are asked for by several threads.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from webdataset.cluster.shard_jobs import InputPart, InputShard, OutputShard
from webdataset.cluster.stored_files import (
    StoredIdentity,
    digest_record,
    file_name,
    format_record,
    identify_object,
    read_record,
    write_small_file,
)
from webdataset.core.errors import NoShards, UsageError, WebDatasetError
from webdataset.index import sample_counts
from webdataset.reshaping.raw_writer import name_numbered
from webdataset.samples.sample_reader import Reading
from webdataset.shards.expand import expand_braces, expand_urls
from webdataset.writing.compression import choose_compression

_THREADS = 16
_ENDING = re.compile(r"\.(?:tar(?:\.(?:gz|bz2|xz|zst))?|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_FIELDS = re.compile(r"\{(?:name|stem)\}")
T = TypeVar("T")
U = TypeVar("U")


def list_inputs(inputs: object, storage_options: object = None) -> list[str]:
    """Return the urls of a job's inputs.

    Args:
        inputs: as for ``WebDataset``: a text with braces or wildcards, a path, or a list.
        storage_options: what stores are listed with.

    Raises:
        NoShards: there are none.
        UsageError: open files, or one shard twice.
    """
    urls = [
        str(url) if not hasattr(url, "read") else "-" for url in expand_urls(inputs, storage_options=storage_options)
    ]
    if not urls:
        raise NoShards("there are no inputs")
    if "-" in urls:
        raise UsageError("a job reads shards that can be read again: standard input and open files cannot")
    if len(set(urls)) < len(urls):
        twice = next(url for place, url in enumerate(urls) if url in urls[:place])
        raise UsageError("an input is named twice: every shard is read once", url=twice)
    return urls


def name_outputs(outputs: object, inputs: Sequence[str], count: int | None = None) -> list[str]:
    """Return the names of a job's outputs.

    Args:
        outputs: a list; a pattern with ``%06d``, with braces (``out-{000..099}.tar``), with ``{name}`` or ``{stem}``
            of the input (``small/{stem}.tar``); or a folder, which ends with ``/``.
        inputs: names of the inputs.
        count: how many outputs; None is one for each input.

    Raises:
        UsageError: another number of names, or names that cannot be made.
    """
    wanted = len(inputs) if count is None else count
    if isinstance(outputs, str):
        names = _expand_pattern(outputs, inputs, wanted, by_input=count is None)
    else:
        names = [str(url) for url in expand_urls(outputs)]
    if len(names) != wanted:
        raise UsageError(f"there are {len(names)} names for {wanted} outputs: pass one name each, or a pattern")
    return names


def _expand_pattern(pattern: str, inputs: Sequence[str], count: int, *, by_input: bool) -> list[str]:
    if pattern.endswith("/"):
        pattern += "{name}" if by_input else "%06d.tar"
    if _FIELDS.search(pattern):
        if not by_input:
            raise UsageError("outputs that are not made of one input each have no {name} or {stem}: write %06d")
        return [
            _FIELDS.sub(lambda found: name if found[0] == "{name}" else _ENDING.sub("", name), pattern)  # noqa: B023  called at once
            for name in map(file_name, inputs)
        ]
    if name_numbered(pattern, 0) is not None:
        return [name_numbered(pattern, number) or pattern for number in range(count)]
    return expand_braces(pattern)


def common_compression(outputs: Sequence[str], compress: bool | str | None) -> str | None:  # noqa: FBT001  as TarWriter
    """Return the compression of all outputs.

    Args:
        outputs: names of them.
        compress: as for ``TarWriter``; None goes by the names.

    Raises:
        UsageError: the names say different things.
    """
    kinds = {choose_compression(compress, url) for url in outputs}
    if len(kinds) > 1:
        raise UsageError("the outputs end with different compressions: give them one ending, or pass compress=")
    return next(iter(kinds), None)


def identify_inputs(urls: Sequence[str], storage_options: object = None) -> list[InputShard]:
    """Return the inputs with the versions that are stored now.

    Args:
        urls: of the inputs.
        storage_options: what they are opened with.

    Raises:
        NotFound: one is not there.
        SourceError: a store refuses, or does not answer.
    """
    found = map_threads(lambda url: identify_object(url, storage_options), urls)
    return [InputShard(url, identity) for url, identity in zip(urls, found, strict=True)]


def map_threads(function: Callable[[T], U], values: Iterable[T]) -> list[U]:
    """Return what a function that waits gives for values, in their order, several at a time.

    Args:
        function: called in threads.
        values: what it is called with.
    """
    kept = list(values)
    if len(kept) < 2:
        return [function(value) for value in kept]
    with ThreadPoolExecutor(min(_THREADS, len(kept))) as executor:
        return list(executor.map(function, kept))


def plan_whole(outputs: Sequence[str]) -> dict[int, OutputShard]:
    """Return outputs that are made of one input each, in order."""
    return {number: OutputShard(url, (InputPart(number),)) for number, url in enumerate(outputs)}


def plan_ranges(outputs: Sequence[str], counts: Sequence[int]) -> dict[int, OutputShard]:
    """Return outputs that are made of equal ranges of all samples: output j of M gets [jT/M, (j+1)T/M) of T.

    Args:
        outputs: names of them.
        counts: samples of each input.
    """
    total, several = sum(counts), len(outputs)
    borders = [0]
    for count in counts:
        borders.append(borders[-1] + count)
    planned = {}
    first = 0
    for number, url in enumerate(outputs):
        start, stop = total * number // several, total * (number + 1) // several
        while first < len(counts) and borders[first + 1] <= start:
            first += 1
        parts = []
        shard = first
        while shard < len(counts) and borders[shard] < stop:
            low, high = max(start, borders[shard]), min(stop, borders[shard + 1])
            if low < high:
                parts.append(InputPart(shard, low - borders[shard], high - borders[shard]))
            shard += 1
        planned[number] = OutputShard(url, tuple(parts))
    return planned


def count_inputs(shards: Sequence[InputShard], folder: str, storage_options: object = None) -> list[InputShard]:
    """Return inputs with their counts.

    Args:
        shards: the inputs.
        folder: where counts are kept.
        storage_options: what the inputs are opened with.

    Raises:
        SourceError: one cannot be read.
        TarError: one is damaged.
    """
    # indexes and sizes.json beside the shards; a task compares the end of each shard with them
    with contextlib.suppress(WebDatasetError):
        known = sample_counts([shard.url for shard in shards], reading=Reading(storage_options=storage_options))
        return [shard._replace(samples=known[shard.url]) for shard in shards]
    return map_threads(lambda shard: _count_input(shard, folder, storage_options), shards)


def _count_input(shard: InputShard, folder: str, storage_options: object) -> InputShard:
    from webdataset.cluster.task_files import InputReader  # noqa: PLC0415  for jobs that count

    place = f"{folder}/{digest_record([shard.url, shard.identity.to_json()])}.json"
    kept = read_record(place) if shard.identity.is_known else None
    if kept is not None and isinstance(kept.get("count"), int):
        return shard._replace(samples=kept["count"], blake2b=kept.get("blake2b"))
    reader = InputReader(shard, InputPart(0), storage_options)
    try:
        count = sum(1 for _ in reader)
        digest = reader.finish()
    finally:
        reader.close()
    if shard.identity.is_known:
        write_small_file(place, format_record({"count": count, "blake2b": digest}))
    return shard._replace(samples=count, blake2b=digest)


def choose_numbers(count: int, task: tuple[int, int] | None) -> list[int]:
    """Return the outputs of a task: j with j mod n = i.

    Args:
        count: how many outputs there are.
        task: (i, n), or None for all.

    Raises:
        UsageError: i is not in [0, n).
    """
    if task is None:
        return list(range(count))
    place, several = task
    if several < 1 or not 0 <= place < several:
        raise UsageError(f"task {place} of {several} makes no sense: the tasks of n are 0 to n - 1")
    return list(range(place, count, several))


def identify_needed(
    shards: Mapping[int, OutputShard], numbers: Sequence[int], urls: Sequence[str], storage_options: object
) -> dict[int, InputShard]:
    """Return the inputs, those that some outputs need with the versions that are stored now.

    Args:
        shards: number to output.
        numbers: of the outputs.
        urls: of all inputs.
        storage_options: what they are opened with.

    Raises:
        NotFound: one is not there.
        SourceError: a store refuses, or does not answer.
    """
    needed = sorted({part.number for number in numbers for part in shards[number].parts})
    found = {number: InputShard(url, StoredIdentity()) for number, url in enumerate(urls)}
    found.update(zip(needed, identify_inputs([urls[number] for number in needed], storage_options), strict=True))
    return found
