"""Makes samples of files: of folders, of tables whose columns are fields, and of recipes that name each member.

* A folder: each file is a member, named by its path in the folder; files of one key are a sample.
* A table (CSV, TSV, JSON lines): each row is a sample. A column is a field of its name; ``@jpg`` holds the name of the
  file that becomes the field ``jpg``, a path, url or ``text:...``; ``__key__`` is the key, without which rows are
  numbered.
* A recipe: each line is a member: its name, blanks, and where its bytes come from: a path or url, ``text:...`` or
  ``pipe:command``, as ``tarp create`` has them.

Members get the mode, owner and time that the library's writers give, so that the same input gives the same bytes.
Files are read one at a time.
"""

import csv
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from webdataset.core.errors import FormatError, SampleError, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.core.trust import trust_level
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.samples.raw_samples import RawMember, RawSample
from webdataset.shards.urls import SHARD_ENDINGS, check_document_url, join_url, parent_folder
from webdataset.storage.local_listing import walk_folder
from webdataset.storage.open_url import local_path, open_url
from webdataset.storage.streams import stream_identity
from webdataset.tar.builder import EPOCH, MemberStyle, make_header_maker

Kind = Literal["folder", "csv", "tsv", "jsonl", "recipe"]
_ENDINGS: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_KEY = "__key__"
_MOST_CELL = 256 << 20
_SHOWN = 5
# files of one key: by so many numbers, or names, they look like samples of their own
_FEWEST_NUMBERS, _MANY_NAMES = 3, 12
_limit_lock = threading.Lock()
_make_header = make_header_maker(MemberStyle(mtime=EPOCH))


def choose_kind(source: str) -> Kind:
    """Return what a source is: a folder, a table by its ending, else a recipe.

    Args:
        source: a path or url.
    """
    if "://" not in source and Path(source).is_dir():
        return "folder"
    return _ENDINGS.get(os.path.splitext(source.split("?", maxsplit=1)[0])[1].lower(), "recipe")  # noqa: PTH122  also of urls


def create_samples(source: str, kind: Kind | None = None, *, base: str | None = None) -> Iterator[RawSample]:
    """Yield the samples that a source describes.

    Args:
        source: a folder; or a table or recipe: a path, a url or ``-``.
        kind: what it is; None chooses by :func:`choose_kind`.
        base: what names of files in a table or recipe are relative to; by default the folder of a table, and the
            working directory for a recipe.

    Raises:
        SourceError: a file cannot be read.
        FormatError: a line of a table or recipe that makes no sense; the message has its number.
        SampleError: a name that no sample can have, or a key that comes twice in a row.
    """
    kind = kind or choose_kind(source)
    if kind == "folder":
        return _watch_dots(_group(_list_folder(source), source), source)
    if kind == "recipe":
        return _group(_read_recipe(source, "" if base is None else base), source)
    return _read_rows(source, kind, parent_folder(source) if base is None else base)


def _watch_dots(samples: Iterable[RawSample], folder: str) -> Iterator[RawSample]:
    """Yield samples; warn at the first one whose files look like samples of their own (``cat.1.jpg``, ...)."""
    warned = False
    for sample in samples:
        if not warned and has_numbered_fields(sample.fields):
            warned = True
            name, first, second = sample.key.rpartition("/")[2], *sample.fields[:2]
            warn_user(
                f"{folder}: {len(sample.fields)} files ({name}.{first}, {name}.{second} …) become fields of one "
                f"sample, {sample.key!r}, since a key ends at the first dot of a file's name. If each is a sample, "
                f"rename them without that dot ({name}_{first}), or give them names by a recipe (wds create --help)"
            )
        yield sample


def has_numbered_fields(fields: Sequence[str]) -> bool:
    """Tell whether the fields of a sample look like several samples: each begins with a number or name of its own.

    Args:
        fields: names as ``000.jpg``. A document (``json``, ``0.jpg``, ``1.jpg``) has a field without a number.
    """
    numbers = {field.partition(".")[0] for field in fields if "." in field}
    if len(numbers) < _FEWEST_NUMBERS or any("." not in field for field in fields):
        return False
    extensions = {field.partition(".")[2] for field in fields}
    complete = len(fields) == len(numbers) * len(extensions)
    return complete and (len(numbers) >= _MANY_NAMES or all(number.isdecimal() for number in numbers))


def make_member(name: str, payload: bytes) -> RawMember:
    """Return a member as the library's writers make it.

    Args:
        name: its full name.
        payload: its bytes.
    """
    return RawMember(name, _make_header(name, len(payload)), payload)


class RepeatedKeys:
    """Takes note of keys that come again, apart from each other: two samples have them then.

    Attributes:
        count: of samples with the key of an earlier one.
        first: their keys, at most five.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        self._seen: set[int] = set()

    def watch(self, samples: Iterable[RawSample]) -> Iterator[RawSample]:
        """Yield samples.

        Args:
            samples: as they stand.
        """
        for sample in samples:
            # one number a key, whatever its length
            mark = hash(sample.key)
            if mark in self._seen:
                self.count += 1
                if len(self.first) < _SHOWN:
                    self.first.append(sample.key)
            self._seen.add(mark)
            yield sample


def _group(members: Iterable[tuple[str, str]], source: str) -> Iterator[RawSample]:
    """Read members, of one sample at a time."""
    groups = groupby(members, key=lambda named: _split_name(named[0], source)[0])
    for number, (key, group) in enumerate(groups):
        fields: list[str] = []
        read: list[RawMember] = []
        for name, place in group:
            field = _split_name(name, source)[1].lower()
            if field in fields:
                raise SampleError(f"the field {field!r} stands twice in the sample", key=key, url=source)
            fields.append(field)
            read.append(make_member(name, _read_place(place)))
        yield RawSample(key, tuple(read), tuple(fields), source, number)


def _split_name(name: str, source: str) -> tuple[str, str]:
    key, extension = base_plus_ext(name)
    if key is None or extension is None or is_meta(name) or not extension:
        raise SampleError(f"{name!r} belongs to no sample: names of members are KEY.FIELD", url=source)
    return key, extension


def _read_place(place: str) -> bytes:
    if place.startswith("text:"):
        return place[5:].encode("utf-8", "surrogateescape")
    with open_url(place) as stream:
        before = stream_identity(stream)
        content: bytes = stream.read()
    _refuse_changes(place, before, len(content))
    return content


def _refuse_changes(place: str, before: tuple[int | None, str | None], size: int) -> None:
    """Raise where a local file was written to while it was read: its bytes are neither the old ones nor the new ones.

    Raises:
        SourceError: it was.
    """
    path = local_path(place)
    if path is None or before[1] is None:
        return
    try:
        now = os.stat(path)  # noqa: PTH116  bytes of names stay
    except OSError:  # removed meanwhile: it was read whole
        return
    if (now.st_size, str(now.st_mtime_ns)) != before or now.st_size not in (0, size):
        raise SourceError("the file changed while it was read: run the command again when nothing writes it", url=place)


def _list_folder(folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of each file, the files of one key together, sorted; those without an ending are left out."""
    found = []
    for place, files in walk_folder(folder):
        for file in files:
            path = os.path.join(place, file)  # noqa: PTH118  bytes of names stay
            name = os.path.relpath(path, folder).replace(os.sep, "/")
            if base_plus_ext(name)[0] is not None and not file.startswith("."):
                found.append((name, path))
    found.sort(key=lambda named: _split_name(named[0], folder))
    # an absolute path is no url, whatever stands in the names
    return ((name, os.path.abspath(path)) for name, path in found)  # noqa: PTH100  symbolic links stay


def _locate(place: str, base: str | None, source: str) -> str:
    """Return where a document says that bytes are; one from the network may not name files and commands here.

    Raises:
        UnsafeSpec: it does.
    """
    return place if place.startswith("text:") else check_document_url(join_url(base, place), source)


def _locate_cell(place: str, base: str | None, source: str, line: int) -> str:
    """Return where a cell of a table says that bytes are: a file or url, and a command only under full trust.

    Raises:
        FormatError: the cell names a command or the standard input.
        UnsafeSpec: as :func:`_locate`.
    """
    found = _locate(place, base, source)
    # a table is data, often of other people's making; a recipe is a program that the user wrote
    if (found == "-" or found[:5].lower() == "pipe:") and trust_level() != "full":
        raise FormatError(
            f"line {line} names {redact(place)[:200]!r}: cells of tables name files and urls, no command or '-'. "
            "Write a recipe (NAME pipe:COMMAND), or set WDS_TRUST=full if you trust the table",
            url=source,
        )
    return found


def _read_recipe(source: str, base: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_read_lines(source), 1):
        if not line.strip():
            continue
        name, *rest = line.split(None, 1)
        if not rest:
            raise FormatError(f"line {number} of the recipe has no source: write NAME SOURCE", url=source)
        yield name, _locate(rest[0].rstrip("\r\n"), base, source)


def _read_lines(source: str) -> Iterator[str]:
    # editors and spreadsheets of Windows write a mark of three bytes in front, which is no part of the first name
    encoding = "utf-8-sig"
    with open_url(source) as stream:
        rest = b""
        while piece := stream.read(1 << 16):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode(encoding, "surrogateescape") + "\n"
                encoding = "utf-8"
        if rest:
            yield rest.decode(encoding, "surrogateescape")


def _read_rows(source: str, kind: Kind, base: str | None) -> Iterator[RawSample]:
    rows = _parse_json_rows(source) if kind == "jsonl" else _parse_table_rows(source, "," if kind == "csv" else "\t")
    last: str | None = None
    for number, (line, row) in enumerate(rows):
        given = row.get(_KEY, f"{number:09}")
        if not isinstance(given, str | int | float) or isinstance(given, bool):
            raise FormatError(f"line {line}: a {_KEY} is a text or a number, not {json.dumps(given)[:100]}", url=source)
        key = str(given)
        if key == last:
            raise SampleError(f"the key comes twice in a row, in line {line}", key=key, url=source)
        last = key
        members: dict[str, RawMember] = {}
        for column, value in row.items():
            field = column.removeprefix("@")
            if column == _KEY or value is None or (value == "" and column != field):
                continue
            name = f"{key}.{field}"
            if _split_name(name, source) != (key, field) or field.lower() in members:
                raise SampleError(f"{field!r} in line {line} cannot be a field of the key {key!r}", url=source)
            payload = _read_place(_locate_cell(str(value), base, source, line)) if column != field else _encode(value)
            members[field.lower()] = make_member(name, payload)
        if not members:
            raise FormatError(f"line {line} has no field", url=source)
        yield RawSample(key, tuple(members.values()), tuple(members), source, number)


def _encode(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: JSON holds it as an escape
        return json.dumps(value).encode()


def _parse_json_rows(source: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(_read_lines(source), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_make_object)
        except ValueError as error:
            raise FormatError(f"line {number} is no JSON: {error}", url=source) from error
        if not isinstance(row, dict):
            raise FormatError(f"line {number} is no JSON object", url=source)
        # the line itself may hold bytes that are no UTF-8, which pass as they are
        if "\\ud" in line.lower() and (column := _find_half_pair(row)) is not None:
            raise FormatError(
                f"line {number} has one half of a surrogate pair (\\ud800 to \\udfff) in the column "
                f"{column!a}, which no text can hold: write the character whole, or leave the line out",
                url=source,
            )
        yield number, row


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; Python would take the last of two values of one name, and lose the first.

    Raises:
        ValueError: a name comes twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!a} stands twice")
    return found


def _find_half_pair(row: Mapping[str, object]) -> str | None:
    """Return the column of a row whose name or text holds one half of a surrogate pair."""
    for column, value in row.items():
        for text in (column, value if isinstance(value, str) else ""):
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                return column
    return None


def _parse_table_rows(source: str, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(_read_lines(source), delimiter=delimiter, strict=True)
    try:
        header = _read_row(reader)
        if not header:
            raise FormatError("the table is empty: its first line names the fields", url=source)
        if len(set(header)) < len(header) or "" in header:
            raise FormatError(f"the first line names a column twice, or not at all: {header}", url=source)
        while (row := _read_row(reader)) is not None:
            if not row:
                continue
            if len(row) != len(header):
                raise FormatError(
                    f"line {reader.line_num} has {len(row)} columns, the first line has {len(header)}", url=source
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise FormatError(f"line {reader.line_num}: {error}", url=source) from error


def _read_row(reader: "Iterator[list[str]]") -> list[str] | None:
    """Return the next row of a table, whose cells may be as large as fields; None at its end."""
    with _limit_lock:
        # one number for the whole process, of whose other readers nothing is known
        before = csv.field_size_limit(_MOST_CELL)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(before)


def check_sources(sources: Iterable[str]) -> None:
    """Refuse standard input twice, and shards.

    Args:
        sources: as typed.

    Raises:
        UsageError: standard input is named twice, or a source is a shard by its name.
    """
    given = list(sources)
    if given.count("-") > 1:
        raise UsageError("standard input can be read only once: give '-' one time")
    named = (source for source in given if source.lower().endswith(SHARD_ENDINGS))
    shard = next((source for source in named if choose_kind(source) != "folder"), None)
    if shard is not None:
        raise UsageError(
            "shards are made of folders, tables and recipes, and this is a shard: 'wds cat', 'wds split' and 'wds "
            "reshard' make shards of shards",
            url=shard,
        )
