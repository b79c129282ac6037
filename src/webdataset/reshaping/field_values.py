"""Turns rows of named values, as tables and record files hold them, into samples.

The type of a value chooses the extension of its field, so that ``decode()`` gives the value back: bytes an extension
that their content shows, ``str`` txt, ``int`` cls, ``float`` and ``bool`` json, lists and dicts json (mp where bytes
are in them), arrays npy; None is no field. A column whose name ends with an extension that can hold the value keeps
its name; others get the extension added: ``caption`` becomes ``caption.txt``.
"""

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Final, NamedTuple

from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS
from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from webdataset.core.errors import SampleError, UsageError, WebDatasetError
from webdataset.reshaping.creation import make_member
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.raw_samples import RawMember, RawSample

TEXTS: Final = frozenset(
    ("txt", "text", "transcript", "html", "htm", "xml", "csv", "tsv", "md", "srt", "vtt", "yaml", "yml", "svg")
)
JSONS: Final = frozenset(("json", "jsn"))
NUMBERS: Final = frozenset(("cls", "cls2", "index", "inx", "id"))
IMAGES: Final = frozenset((*IMAGE_EXTENSIONS, *AUTO_IMAGE_EXTENSIONS))
SOUNDS: Final = frozenset(AUDIO_EXTENSIONS.split())
VIDEOS: Final = frozenset(VIDEO_EXTENSIONS.split())
_OTHERS = (
    "bin npy npz pth pkl pickle pyd mp msg msgpack cbor ten tb tenbin safetensors pdf zip gz bz2 xz zst jsonl ndjson"
)
# Pillow's other extensions are words too: a column called "rgb" or "image" is no SGI file
_PICTURES: Final = "jpg jpeg jpe png gif webp tif tiff bmp avif heic heif jxl jp2 ppm pgm pbm pnm"
_BYTES: Final = TEXTS | JSONS | NUMBERS | frozenset(_PICTURES.split()) | SOUNDS | VIDEOS | frozenset(_OTHERS.split())
_STARTS: Final = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "webp"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"(?:II\*\0|MM\0\*)"), "tiff"),
    (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"ID3[\x02-\x04]|\xff[\xfb\xf3\xf2\xfa]"), "mp3"),
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"....ftyp(?:avif|avis)", re.DOTALL), "avif"),
    (re.compile(rb"....ftyp(?:heic|heix|mif1)", re.DOTALL), "heic"),
    (re.compile(rb"....ftypM4A", re.DOTALL), "m4a"),
    (re.compile(rb"....ftyp", re.DOTALL), "mp4"),
    (re.compile(rb"\x1aE\xdf\xa3"), "mkv"),
    (re.compile(rb"%PDF-"), "pdf"),
    (re.compile(rb"\x93NUMPY"), "npy"),
)
_SLOT = re.compile(r"\{([^{}]+)\}")
_RESERVED = re.compile(r"__.*__")
_MOST_KEYS = 1_000_000


class Content(bytes):
    """Bytes of a file, with the extension that is added where the column's name has none.

    Attributes:
        extension: such as ``txt``.
        field: the name of its field, where the table says it.
    """

    extension: str = "bin"
    field: str | None = None

    @classmethod
    def make(cls, content: bytes, extension: str) -> "Content":
        """Return bytes with an extension.

        Args:
            content: the bytes.
            extension: what is added to the column's name.
        """
        made = cls(content)
        made.extension = extension
        return made


class PackedValue(NamedTuple):
    """A list or dict that is msgpack, since its column can hold bytes, whether there are any in it or not.

    Args:
        value: the list or dict.
    """

    value: object


def guess_extension(content: bytes) -> str | None:
    """Return the extension that the first bytes of a file show, or None.

    Args:
        content: the file.
    """
    return next((extension for start, extension in _STARTS if start.match(content)), None)


def last_extension(name: str) -> str:
    """Return what follows the last dot of a name (the whole name where it has none), in lower case.

    Args:
        name: of a column or field.
    """
    return name.rpartition(".")[2].lower()


def encode_value(column: str, value: object, name: str | None = None) -> tuple[str, bytes] | None:
    """Return the field that holds a value: its name and bytes; None where the value is None.

    Args:
        column: the name of the column.
        value: bytes, str, a number, a list or dict of these, a :class:`PackedValue`, or a numpy array.
        name: the name of the field, where it is known; its extension can hold the value.

    Raises:
        SampleError: no extension can hold the value, or not the one that the column's name ends with.
    """
    if value is None:
        return None
    if isinstance(value, WebDatasetError):
        raise value
    extensions, added, encode = _find_encoding(value)
    known = last_extension(name or column)
    try:
        if name is not None and isinstance(value, str):
            return name, value.encode()
        if name is not None or known in extensions:
            return name or column, _encode_as(known, value, encode)
        content = encode(value)
    except WebDatasetError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SampleError(f"the column {column!r} holds a value that no field can hold: {error}") from error
    if isinstance(value, bytes) and not isinstance(value, Content):
        added = guess_extension(value) or added
    return f"{column}.{added}", content


def _encode_as(known: str, value: object, encode: Callable[..., bytes]) -> bytes:
    from webdataset.codecs.json_codec import json_loads, json_value_dumps  # noqa: PLC0415  after --help

    if known in JSONS and isinstance(value, str):
        # a text under such a name is JSON already
        json_loads(value.encode())
        return value.encode()
    if known in JSONS and not isinstance(value, bytes):
        return json_value_dumps(value)
    return _encode_array(value) if known == "npy" and not isinstance(value, bytes) else encode(value)


def _find_encoding(value: object) -> tuple[frozenset[str], str, Callable[..., bytes]]:
    """Return the extensions that can hold a value, that which is added to other names, and what encodes it."""
    from webdataset.codecs.json_codec import json_value_dumps  # noqa: PLC0415  after --help

    added = value.extension if isinstance(value, Content) else "bin"
    encodings: tuple[tuple[bool, tuple[frozenset[str], str, Callable[..., bytes]]], ...] = (
        (isinstance(value, bytes), (_BYTES, added, bytes)),
        (isinstance(value, str), (TEXTS | JSONS, "txt", lambda text: text.encode("utf-8"))),
        (isinstance(value, bool | float), (JSONS, "json", json_value_dumps)),
        (isinstance(value, int), (NUMBERS | JSONS | {"count", "class"}, "cls", lambda number: b"%d" % number)),
        (
            isinstance(value, PackedValue) or _has_bytes(value),
            (frozenset(("mp", "msg", "msgpack")), "mp", _encode_msgpack),
        ),
        (isinstance(value, list | dict | tuple), (JSONS, "json", json_value_dumps)),
        (hasattr(value, "dtype"), (frozenset(("npy",)), "npy", _encode_array)),
    )
    found = next((encoding for is_such, encoding in encodings if is_such), None)
    if found is None:
        raise TypeError(f"{type(value).__name__} has no extension")
    return found


def _has_bytes(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list | tuple) and any(map(_has_bytes, value)))


def _encode_msgpack(value: object) -> bytes:
    from webdataset.codecs.msgpack_cbor import msgpack_dumps  # noqa: PLC0415  an extra

    return msgpack_dumps(value.value if isinstance(value, PackedValue) else value)


def _encode_array(value: object) -> bytes:
    from webdataset.codecs.numpy_arrays import npy_dumps  # noqa: PLC0415  for arrays alone

    return npy_dumps(value)


class Row(NamedTuple):
    """A row of a table, or a record.

    Args:
        url: where it stands.
        place: how messages name it: ``row 7``, ``the record at offset 16``.
        values: column to value; or the error because of which there are none.
        names: column to the name of its field, where the table says it.
    """

    url: str
    place: str
    values: Mapping[str, object] | WebDatasetError
    names: Mapping[str, str] = {}


Failed = Callable[[str, WebDatasetError], None]


@dataclass
class RowConverter:
    """Makes samples of rows.

    Args:
        key: a column, or a text with ``{column}`` in it; None for the column ``__key__``, else rows are numbered.
        columns: patterns of the columns that stay (``*`` and ``?``); empty for all.
        rename: new name of a column to its old name.
        failed: called with the place of a row that cannot be a sample, and why; None lets the error pass.

    Attributes:
        count: rows so far.
        left_out: columns ``__url__`` and the like that were left out, since readers give such names to samples.
    """

    key: str | None = None
    columns: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    failed: Failed | None = None
    count: int = 0
    left_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._news = {old: new for new, old in self.rename.items()}
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def wants(self, column: str) -> bool:
        """Tell whether a column is needed, for its field or for the key.

        Args:
            column: its name.
        """
        slots = () if self.key is None else (*_SLOT.findall(self.key), self.key)
        return column in ("__key__", *slots) or self._stays(column)

    def _stays(self, column: str) -> bool:
        return not self.columns or any(fnmatchcase(column, pattern) for pattern in self.columns)

    def check_columns(self, columns: Iterable[str], url: str) -> None:
        """Refuse names that the table does not have, and columns that no field can be called after.

        Args:
            columns: of the table.
            url: the table.

        Raises:
            UsageError: an option names a column that is not there.
            SampleError: a name that cannot be a field's, or two that are one.
        """
        there = list(columns)
        seen: dict[str, str] = {}
        for name in there:
            if there.count(name) > 1:
                raise SampleError(f"the table has two columns {name!r}: rename one of them first", url=url)
            new = self._news.get(name, name)
            if not self._stays(name) or _RESERVED.fullmatch(new):
                continue
            if base_plus_ext(f"k.{new}") != ("k", new) or new[:1] in ("", ".") or _has_controls(new):
                raise SampleError(
                    f"the column {name!r} cannot be a field: give it another name with --rename NEW={name}", url=url
                )
            if new.lower() in seen:
                raise SampleError(
                    f"the columns {seen[new.lower()]!r} and {name!r} would be one field, for readers lower the case: "
                    f"--rename NEW={name}",
                    url=url,
                )
            seen[new.lower()] = name
        slots = [] if self.key is None else _SLOT.findall(self.key) or [self.key]
        for option, names in (("--rename", self._news), ("--key", slots)):
            missing = next((name for name in names if name not in there), None)
            if missing is not None:
                shown = ", ".join(there[:20]) or "none"
                raise UsageError(f"{option} names the column {missing!r}, which is not there: {shown}", url=url)
        if there and not any(map(self._stays, there)):
            raise UsageError(f"--columns names no column of the table: {', '.join(there[:20])}", url=url)

    def convert(self, rows: Iterable[Row]) -> Iterator[RawSample]:
        """Yield the samples of rows.

        Args:
            rows: in their order.

        Raises:
            SampleError: a row that cannot be a sample, where there is no ``failed``.
            FormatError: a row that could not be read, likewise.
        """
        for row in rows:
            number, self.count = self.count, self.count + 1
            try:
                if isinstance(row.values, WebDatasetError):
                    raise row.values
                sample = self._make_sample(row, row.values, number)
            except WebDatasetError as error:
                if row.place not in error.message:
                    error.message = f"{row.place}: {error.message}"
                error.locate(url=row.url)
                if self.failed is None:
                    raise
                self.failed(row.place, error)
                continue
            yield sample

    def _make_sample(self, row: Row, values: Mapping[str, object], number: int) -> RawSample:
        key = self._make_key(values, number)
        members: dict[str, RawMember] = {}
        for column, value in values.items():
            if column == "__key__" or not self._stays(column):
                continue
            new = self._news.get(column, column)
            if _RESERVED.fullmatch(new):
                self.left_out.add(column)
                continue
            name = None if column in self._news else row.names.get(column, getattr(value, "field", None))
            found = encode_value(new, value, name)
            if found is None:
                continue
            extension, content = found
            if base_plus_ext(f"{key}.{extension}") != (key, extension) or _RESERVED.fullmatch(extension):
                raise SampleError(f"{extension!r} cannot be a field of the key {key!r}")
            if extension.lower() in members:
                raise SampleError(f"two columns would be the field {extension!r}: rename one with --rename NEW=OLD")
            members[extension.lower()] = make_member(f"{key}.{extension}", content)
        if not members:
            raise SampleError("it has no value at all, and a sample without a field cannot be written")
        return RawSample(key, tuple(members.values()), tuple(members), row.url, number)

    def _make_key(self, values: Mapping[str, object], number: int) -> str:
        if self.key is None and values.get("__key__") is None:
            if "__key__" in values:
                raise SampleError("its __key__ is null: name another column with --key")
            return f"{number:09}"
        template = self.key or "__key__"
        key = _SLOT.sub(lambda slot: _say(values, slot[1]), template) if "{" in template else _say(values, template)
        name = key.rpartition("/")[2]
        if base_plus_ext(f"{key}.x") != (key, "x") or not name or _has_controls(key) or _RESERVED.match(key):
            raise SampleError(
                f"{key[:200]!r} cannot be a key: a key has no dot in its last part and no control characters; "
                "choose another --key, or leave it out where there is no column __key__, and rows are numbered"
            )
        digest = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        if digest in self._keys:
            raise SampleError(f"the key {key[:200]!r} comes twice: choose a --key that is unique")
        self._keys[digest] = None
        if len(self._keys) > _MOST_KEYS:
            self._keys.popitem(last=False)
        return key


def _has_controls(name: str) -> bool:
    return any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)


def _say(values: Mapping[str, object], column: str) -> str:
    value = values.get(column)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or not isinstance(value, str | int):
        raise SampleError(
            f"the column {column!r} gives no key: it is {'null' if value is None else 'no text or integer'}"
        )
    return str(value)
