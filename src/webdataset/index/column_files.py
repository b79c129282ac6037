"""Writes columns files beside shards: each shard is read once, front to back.

A Parquet file of another program is never replaced. Each file is complete under its name, or not there.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Unpack

from webdataset.core.errors import AlreadyExists, BadIndex, SampleError, SourceError, StaleIndex, UsageError
from webdataset.index.build import choose_reading, shard_urls
from webdataset.index.column_selection import load_columns
from webdataset.index.entries import ShardIndex
from webdataset.index.formats.columns import OTHER_SUFFIX, SUFFIX, dumps, load_parquet
from webdataset.index.formats.table import is_usual
from webdataset.index.publish import IndexWhileReading, publish_file
from webdataset.inspection.column_filter import check_value, parse_columns
from webdataset.inspection.expression import Expression
from webdataset.samples.grouping import Sample
from webdataset.samples.sample_reader import Reading, ReadingOptions, hash_url, read_samples
from webdataset.samples.sample_selection import list_payloads
from webdataset.samples.shard_identity import ShardIdentity
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.local_listing import is_there
from webdataset.storage.open_url import local_path
from webdataset.storage.streams import stream_identity


class ColumnsFile(NamedTuple):
    """A columns file that was written.

    Args:
        path: of the file.
        url: of the shard.
        samples: rows.
        unclear: samples of which a column could not be made: they are always read.
        size_bytes: of the file.
    """

    path: str
    url: str
    samples: int
    unclear: int
    size_bytes: int


def write_columns(
    shards: object,
    columns: str | Iterable[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    threads: int = 4,
    reading: Reading | None = None,
    **rules: Unpack[ReadingOptions],
) -> list[ColumnsFile]:
    """Write a columns file for each shard, by which ``where=`` reads only the samples that may match.

    Args:
        shards: as ``WebDataset`` takes them.
        columns: expressions whose values are kept, such as ``"json.width, json.lang"`` or ``["len(txt)"]``.
        folder: where to put the files, named after the shards; it is made where it is not there. None is beside each
            shard, which must be local.
        threads: shards that are read at the same time.
        reading: the rules of reading.
        **rules: fields of :class:`~webdataset.samples.sample_reader.Reading` in its place, such as ``storage_options``.

    Returns:
        The files, in the order of the shards.

    Raises:
        UsageError: columns that are no expressions, no place for a file, or rules that choose or rename members.
        MissingExtra: pyarrow is not installed.
        NotRepresentable: a shard is compressed, or has links or several archives in it.
        WebDatasetError: a shard cannot be read, or a file not be written.
    """
    load_parquet()
    texts = [columns] if isinstance(columns, str) else list(columns)
    names = [name for text in texts for name in parse_columns(text)]
    if not names:
        raise UsageError("a columns file needs at least one column, such as json.width")
    chosen = choose_reading("write_columns", reading, dict(rules))
    if not is_usual(chosen):
        raise UsageError("a columns file is about all samples as they are read by default: leave out select_files, "
                         "rename_files, suffixes, keys, lcase, duplicates and split_samples")  # fmt: skip
    urls = [os.fsdecode(url) for url in shard_urls(shards, chosen.storage_options)]
    targets = [_find_target(url, folder, chosen) for url in urls]
    if len(set(targets)) < len(targets):
        raise UsageError("two of the shards would have one columns file: give each a folder of its own")
    if folder is not None:
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103  a path of any kind
        except OSError as error:
            raise SourceError(f"cannot make the folder: {error.strerror or error}", url=os.fsdecode(folder)) from error
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="columns") as pool:
        return list(pool.map(partial(_write_one, columns=names, reading=chosen), urls, targets))


def _find_target(url: str, folder: str | os.PathLike[str] | None, reading: Reading) -> str:
    """Return the path of a shard's columns file: another one where a Parquet file of another program lies.

    Raises:
        UsageError: the shard is not local, and no folder is given.
        AlreadyExists: both names belong to other programs.
    """
    path = local_path(url, level=reading.trust)
    if folder is not None:
        path = os.path.join(os.fspath(folder), os.path.basename(path or url.partition("?")[0]))  # noqa: PTH118, PTH119
    if path is None:
        raise UsageError("a columns file cannot be written beside a remote shard: pass folder=, and upload the files",
                         url=url)  # fmt: skip
    names = [path.removesuffix(".tar") + suffix for suffix in (SUFFIX, OTHER_SUFFIX)]
    target = next((name for name in names if not is_there(name) or _is_ours(name)), None)
    if target is None:
        raise AlreadyExists("a file of another program has the name that the columns file would get", url=names[-1])
    return target


def _is_ours(path: str) -> bool:
    try:
        return load_columns(path, Reading()) is not None
    except BadIndex:
        return False


def _write_one(url: str, target: str, *, columns: list[str], reading: Reading) -> ColumnsFile:
    """Read a shard, and write its columns file."""
    indexes: list[ShardIndex] = []
    watching = replace(reading, observer=IndexWhileReading(then=indexes.append))
    expressions = [Expression(name) for name in columns]
    values: dict[str, list[object]] = {name: [] for name in columns}
    keys: list[str] = []
    unclear: list[bool] = []
    validator = None
    for shard in open_shards([{"url": url}], level=reading.trust, storage_options=reading.storage_options):
        validator = ShardIdentity.of(*stream_identity(shard["stream"])).validator
        for sample in read_samples([shard], watching):
            keys.append(sample["__key__"])
            row = list(_evaluate(expressions, sample))
            unclear.append(None in (given for given, _ in row))
            for name, (given, value) in zip(columns, row, strict=True):
                values[name].append(value if given else None)
    if len(indexes) != 1 or [entry.key for entry in indexes[0].entries] != keys:
        raise StaleIndex("the shard changed while its columns file was made: make it again", url=url)
    # the time of a local file's last change is another for each copy of it
    known = None if local_path(url, level=reading.trust) is not None else validator
    content = dumps(indexes[0], values, unclear, url=hash_url(url), validator=known)
    publish_file(target, content)
    return ColumnsFile(target, url, len(keys), sum(unclear), len(content))


def _evaluate(expressions: list[Expression], sample: Sample) -> Iterator[tuple[bool | None, object]]:
    """Yield the value of each column, after True; None twice where it cannot be made."""
    payloads = list_payloads(sample)
    for expression in expressions:
        try:
            value = expression.evaluate(payloads, key=sample["__key__"], shard=sample["__url__"])
        except SampleError:
            yield None, None
        else:
            yield True, check_value(value, expression.normal)
