"""Predicts what Hugging Face ``datasets`` makes of shards: ``load_dataset("webdataset", data_files=...)``.

Its rules (5.2, compared by ``tests/interop/test_check_profiles.py``): members hidden by a dot or ``__`` are left out;
members of one key in a row are a sample; a field that stands twice is an error. The first five samples of the *first*
shard decide the features: they must have the same fields, and values whose types Arrow can merge. Texts, numbers,
JSON, arrays, msgpack and CBOR of every sample are decoded, and must fit the features: what is missing becomes None,
what is new is dropped.

Types are told by words: ``null bool int float str bytes``, ``nan`` for numbers that are not finite, ``{field: type}``
for objects, ``[type]`` for lists.
"""

import json
import math
from typing import TYPE_CHECKING, Any, Final

from webdataset.codecs.compression import decompress
from webdataset.core import settings
from webdataset.inspection.tarfile_profile import TarfileProfile
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.tar.walker import MemberPosition

if TYPE_CHECKING:
    import numpy as np

    from webdataset.inspection.findings import ShardResult

_FIRST: Final = 5
_COMPRESSION: Final = frozenset(["gz", "bz2", "xz", "zst"])
_TEXTS: Final = frozenset(["txt", "text", "transcript"])
_NUMBERS: Final = frozenset(["cls", "cls2", "index", "inx", "id"])
_JSON: Final = frozenset(["json", "jsn"])
_TENSORS: Final = frozenset(["ten", "tb"])
_OTHERS: Final = frozenset(["mp", "msg", "npy", "npz", "cbor"])
_DECODED: Final = _TEXTS | _NUMBERS | _JSON | _OTHERS | _TENSORS
_INT64: Final = 1 << 63
_ARRAYS: Final = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()  # noqa: SIM905
)
_TIMES: Final = tuple(f"64[{unit}]" for unit in ("s", "ms", "us", "ns"))


class _Conflict(Exception):
    """Types that Arrow does not merge."""


def find_type(value: Any) -> Any:
    """Return the type that Arrow finds for a value.

    Args:
        value: a decoded field.

    Raises:
        _Conflict: it finds none.
    """
    if isinstance(value, dict):
        for name in value:
            _find_text_type(str(name))
        return {str(name): find_type(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        merged: Any = "null"
        for each in value:
            merged = merge_types(merged, find_type(each), numbers=True)
        return [merged]
    return _find_plain_type(value) if getattr(value, "dtype", None) is None else _find_array_type(value)


def _find_plain_type(value: object) -> str:
    """Return the type of a value without others in it. Raises _Conflict: Arrow holds no such value."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return _find_text_type(value)
    if isinstance(value, float):
        return "float" if math.isfinite(value) else "nan"
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise _Conflict(f"{value} does not fit 64 bits")
    return type(value).__name__


def _find_text_type(value: str) -> str:
    """Return the type of a text. Raises _Conflict: half of a pair of surrogates is in it, as JSON may have it."""
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _Conflict(f"the text {value[:50]!r} cannot be UTF-8")
    return "str"


def _find_array_type(array: "np.ndarray") -> object:
    """Return the type of an array. Raises _Conflict: Arrow has none for its elements."""
    # a single number has no byte order to Arrow
    dtype = array.dtype if array.ndim else array.dtype.newbyteorder("=")
    found: object = str(dtype)
    if found not in _ARRAYS and dtype.kind not in "SU" and not str(dtype).endswith(_TIMES):
        raise _Conflict(f"Arrow holds no arrays of {str(dtype)[:80]}")
    for _ in range(array.ndim):
        found = [found]
    return found


def merge_types(one: Any, other: Any, *, numbers: bool = False) -> Any:
    """Return the type that holds values of two types.

    Args:
        one: a type.
        other: a type.
        numbers: whole numbers and fractions go together, as they do within one list.

    Raises:
        _Conflict: there is none.
    """
    one, other = ("float" if each == "nan" else each for each in (one, other))
    if other in (one, "null"):
        return one
    if one == "null":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            name: merge_types(one.get(name, "null"), other.get(name, "null"), numbers=numbers) for name in one | other
        }
    if isinstance(one, list) and isinstance(other, list):
        return [merge_types(one[0], other[0], numbers=numbers)]
    if numbers and {str(one), str(other)} == {"int", "float"}:
        return "float"
    raise _Conflict(f"{show_type(one)} and {show_type(other)}")


def show_type(kind: Any) -> str:
    """Return a type in words.

    Args:
        kind: a type.
    """
    return "an object" if isinstance(kind, dict) else "a list" if isinstance(kind, list) else str(kind)


def find_loss(feature: Any, found: Any) -> str | None:
    """Return what is lost of a later value when it is fitted to a feature, or None.

    Args:
        feature: the type that the first samples gave.
        found: the type of the value.

    Raises:
        _Conflict: it does not fit.
    """
    if found == "nan" and feature == "int":
        raise _Conflict("a number that is not finite where the first samples have int")
    found = "float" if found == "nan" else found
    if found in ("null", feature):
        return None
    if feature == "bool" and found not in ("int", "float"):
        return f"{show_type(found)} becomes true or false"
    if isinstance(feature, dict) and isinstance(found, dict):
        new = [name for name in found if name not in feature]
        lost = f"{', '.join(map(repr, new))} is dropped" if new else None
        return next((each for name in feature if (each := find_loss(feature[name], found.get(name, "null")))), lost)
    if isinstance(feature, list) and isinstance(found, list):
        return find_loss(feature[0], found[0])
    if isinstance(feature, (dict, list)) or feature == "null":
        raise _Conflict(f"{show_type(found)} where the first samples have {show_type(feature)}")
    if feature == "str":
        return f"{show_type(found)} becomes text"
    if isinstance(found, (dict, list)) or found in ("str", "bytes"):
        raise _Conflict(f"{show_type(found)} where the first samples have {feature}")
    return "a fraction becomes a whole number" if (feature, found) == ("int", "float") else None


class HuggingFaceProfile(TarfileProfile):
    """``datasets.load_dataset("webdataset")``."""

    name = "hf"
    reader = "Hugging Face datasets"

    def __init__(self) -> None:
        super().__init__()
        self._features: dict[str, Any] | None = None
        self._given_up = False
        self._examples: list[dict[str, Any]] = []
        self._types: dict[int, Any] = {}
        self._key: str | None = None
        self._fields: dict[str, MemberPosition] = {}

    def take_member(self, name: str, place: MemberPosition) -> None:
        """Group as it does."""
        key, field = base_plus_ext(name)
        if name.rpartition("/")[2].startswith((".", "__")):
            if key is not None and field is not None and not is_meta(name):
                self._differ("it leaves hidden files out", place.offset, name, once="hidden")
            return
        if key is None or field is None:
            return
        if is_meta(name):
            self._differ("it takes metadata of the shard for a sample", place.offset, name, once="meta")
        if any("\udc80" <= each <= "\udcff" for each in name):
            self._refuse("a name is not UTF-8", place.offset, name)
        if field != field.lower():
            self._differ(f"it keeps the capitals of {field!r}", place.offset, name, once=field)
        if key != self._key:
            self._finish_example()
            self._key, self._fields = key, {}
        if field in self._fields:
            self._refuse("the field stands twice in the sample", place.offset, name)
        self._fields[field] = place
        if not place.size and _split(name)[0] in _DECODED - _TEXTS - _TENSORS:
            self._refuse("the field has no bytes, and does not decode", place.offset, name)

    def wants_payload(self, place: MemberPosition) -> bool:
        """Return True for fields that it decodes or decompresses."""
        extension, layers = _split(place.name)
        return bool(layers) or extension in _DECODED

    def take_payload(self, place: MemberPosition, payload: bytes) -> None:
        """Decode a field, and remember the type of its value."""
        extension, layers = _split(place.name)
        try:
            for kind in layers[:1]:
                payload = decompress(payload, kind, settings.MAX_FIELD_BYTES.get())
            self._types[place.offset] = find_type(_decode(extension, payload)) if extension in _DECODED else "bytes"
        except ImportError:
            return
        except _Conflict as conflict:
            self._types[place.offset] = conflict
        except Exception as error:  # noqa: BLE001  whatever a decoder raises is what it refuses
            self._refuse(f"the field does not decode ({type(error).__name__})", place.offset, place.name)

    def _finish_example(self) -> None:
        """Take the sample in progress."""
        fields, self._fields = self._fields, {}
        if self._key is None or self._given_up:
            return
        types = {field: self._types.pop(place.offset, "null") for field, place in fields.items()}
        for field, place in fields.items():
            if types[field] == "null" and not self.wants_payload(place):
                types[field] = "bytes"
        first = next(iter(fields.values()))
        if self._features is None:
            self._examples.append({"types": types, "place": first})
            if len(self._examples) == _FIRST:
                self._choose_features()
            return
        self._fit(types, fields)

    def _choose_features(self) -> None:
        """Find the features of the first samples."""
        features: dict[str, Any] = {}
        for example in self._examples:
            place = example["place"]
            if example["types"].keys() != self._examples[0]["types"].keys():
                self._give_up("the first five samples have different fields", place)
                return
            try:
                for field, found in example["types"].items():
                    if isinstance(found, _Conflict):
                        raise found
                    features[field] = merge_types(features.get(field, "null"), found)
            except _Conflict as conflict:
                self._give_up(f"values of the first five samples have types that do not go together: {conflict}", place)
                return
        self._features = features

    def _give_up(self, message: str, place: MemberPosition) -> None:
        self._given_up = True
        self._refuse(message, place.offset, place.name)

    def _fit(self, types: dict[str, Any], fields: dict[str, MemberPosition]) -> None:
        """Compare a later sample with the features."""
        for field, found in types.items():
            place = fields[field]
            if self._features is None:
                return
            if field not in self._features:
                self._differ(
                    f"it drops the field {field!r}, which the first samples lack",
                    place.offset,
                    place.name,
                    once=f"new {field}",
                )
                continue
            try:
                if isinstance(found, _Conflict):
                    raise found
                lost = find_loss(self._features[field], found)
            except _Conflict as conflict:
                self._refuse(f"a value does not fit the first samples: {conflict}", place.offset, place.name)
                continue
            if lost is not None:
                self._differ(f"of {field!r} {lost}", place.offset, place.name, once=f"loss {field}")

    def judge_shard(self, check: "ShardResult") -> None:
        """Take the last sample, and tell of shards without samples."""
        self._finish_example()
        self._key = None
        self._types.clear()
        if self._features is None and not self._given_up and self.first:
            if self._examples:
                self._choose_features()
            else:
                self._refuse("the first shard has no samples to find the features of", 0)
                self._given_up = True
        super().judge_shard(check)
        if check.compression == "zst":
            self._predictions = []
            self._refuse("tarfile does not read zst before Python 3.14", 0)


def _split(name: str) -> tuple[str, list[str]]:
    """Return the extension that says how a field is decoded, and the compression on top of it."""
    parts = name.rpartition("/")[2].lower().split(".")
    layers = [parts.pop()] if len(parts) > 1 and parts[-1] in _COMPRESSION else []
    return parts[-1], layers


def _decode(extension: str, payload: bytes) -> Any:
    if extension in _TEXTS:
        return payload.decode("utf-8")
    if extension in _NUMBERS:
        return int(payload)
    if extension in _JSON:
        return json.loads(payload)
    from webdataset.codecs.handlers import decoder_for  # noqa: PLC0415  needs numpy

    decode = decoder_for(extension, "safe")
    return None if decode is None else decode(payload)
