"""Predicts what other readers make of shards: what they refuse, and what they read otherwise than this library.

Hugging Face ``datasets`` (``huggingface_profile``), Ray Data, DALI, Energon, and Grain over an index. The rules of
``hf``, ``ray``, ``dali`` and ``grain`` are compared with these projects by ``tests/interop/test_check_profiles.py``;
``docs/checking.md`` says what holds of the others.
"""

import os
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from webdataset.core.errors import UsageError
from webdataset.inspection.header_walk import MemberObserver
from webdataset.inspection.huggingface_profile import HuggingFaceProfile
from webdataset.inspection.tarfile_profile import ReaderProfile, TarfileProfile
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.tar.walker import MemberPosition

if TYPE_CHECKING:
    from webdataset.inspection.findings import ShardResult

_PICKLES: Final = frozenset(["pt", "pth", "pickle", "pkl"])
_MOST_KEYS: Final = 1_000_000
_MOST_FIELDS: Final = 4096
_LONGEST_NAME: Final = 255


class RayProfile(TarfileProfile):
    """Ray Data's ``read_webdataset`` with its default decoder."""

    name = "ray"
    reader = "Ray Data"
    _ARRAYS: Final = frozenset(["jpg", "png", "ppm", "pgm", "pbm", "pnm", "npy"])
    _DECODED: Final = _ARRAYS | frozenset(["txt", "text", "cls", "cls2", "json", "mp"])

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()
        self._key: str | None = None
        self._fields: set[str] = set()
        self._samples = 0
        self._arrays: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the keys, which only the process that reads the shard needs."""
        return {**vars(self), "_seen": set()}

    def take_member(self, name: str, place: MemberPosition) -> None:
        """Group as it does: a key that comes again, and a field that stands twice, are errors."""
        key, field = base_plus_ext(name)
        if key is None or field is None:
            return
        if is_meta(name):
            self._differ("it takes metadata of the shard for a sample", place.offset, name, once="meta")
        if key != self._key:
            if hash(key) in self._seen:
                self._refuse("members of one key do not stand next to each other", place.offset, name)
            if self._key is not None and len(self._seen) < _MOST_KEYS:
                self._seen.add(hash(self._key))
            self._key, self._fields = key, set()
            self._samples += 1
        if field.rpartition(".")[2] in self._ARRAYS and len(self._arrays) < _MOST_FIELDS:
            self._arrays[field] += 1
        if field in self._fields:
            self._refuse("the name stands twice in the sample", place.offset, name)
        self._fields.add(field)
        self._judge_name(name, field, place)

    def _judge_name(self, name: str, field: str, place: MemberPosition) -> None:
        """Find what it does about a member by its name."""
        if field != field.lower():
            self._differ(f"it keeps the capitals of {field!r}", place.offset, name, once=field)
        if any("\udc80" <= each <= "\udcff" for each in name):
            self._refuse("a name is not UTF-8", place.offset, name)
        extension = field.rpartition(".")[2]
        if extension in _PICKLES:
            setting = "RAY_DATA_WEBDATASET_ALLOW_UNSAFE_DESERIALIZATION=1"
            self._refuse(f"it refuses to load .{extension} without {setting}", place.offset, name, once="pickle")
        elif extension in self._DECODED and not place.size and extension not in ("txt", "text"):
            self._refuse("the field has no bytes, and does not decode", place.offset, name)

    def wants_payload(self, place: MemberPosition) -> bool:
        """Return True for fields that its default decoder decodes."""
        return place.name.rpartition(".")[2] in self._DECODED

    def take_payload(self, place: MemberPosition, payload: bytes) -> None:
        """Decode a field with our decoder of the format."""
        from webdataset.inspection.field_checks import check_field, find_field_check  # noqa: PLC0415  numpy and Pillow

        check = find_field_check(place.name.rpartition(".")[2])
        fault = check_field(check, payload) if check is not None else None
        if fault is not None and fault.code.startswith("bad-"):
            self._refuse("the field does not decode", place.offset, place.name)

    def judge_shard(self, check: "ShardResult") -> None:
        """Tell of arrays that not all samples have."""
        for field, count in self._arrays.items():
            if count < self._samples:
                self._refuse(f"{field!r} decodes to arrays, and {self._samples - count} samples lack it", 0)
        super().judge_shard(check)
        self._seen, self._key, self._fields, self._samples = set(), None, set(), 0
        self._arrays.clear()


class EnergonProfile(TarfileProfile):
    """``energon prepare``, which makes the index that Energon reads by."""

    name = "energon"
    reader = "Energon"

    def take_member(self, name: str, place: MemberPosition) -> None:
        """Find what it takes for members of samples."""
        key, field = base_plus_ext(name)
        if is_meta(name) or key is None or field is None:
            return
        if any("\udc80" <= each <= "\udcff" for each in name):
            self._refuse("a name is not UTF-8: prepare fails", place.offset, name)
        if field != field.lower():
            self._differ(f"it keeps the capitals of {field!r}", place.offset, name, once=field)

    def judge_shard(self, check: "ShardResult") -> None:
        """Tell of keys that are not alone, and of compression."""
        super().judge_shard(check)
        counts = check.findings.counts
        for code, message in (
            ("split-sample", "members of one key do not stand next to each other: prepare fails"),
            ("repeated-key", "a key comes again: prepare fails"),
            ("repeated-key-across", "a key stands in several shards: prepare fails"),
            ("empty-shard", "a shard has no samples: prepare fails"),
        ):
            if counts[code]:
                self._refuse(message, _first_offset(check, code))
        if counts["duplicate-field"]:
            self._differ("of a field that stands twice it reads one", _first_offset(check, "duplicate-field"))
        if check.compression is not None:
            self._refuse("it reads by offsets, and the shard is compressed", 0)


class DaliProfile(ReaderProfile):
    """DALI's ``fn.readers.webdataset``, without an index file."""

    name = "dali"
    reader = "DALI"

    def take_member(self, name: str, place: MemberPosition) -> None:
        """Find names that it reads otherwise."""
        key, field = base_plus_ext(name)
        if key is None or field is None or is_meta(name):
            if not name.rpartition("/")[2].startswith("."):
                self._differ(f"without an index it takes {name!r} for a sample", place.offset, name, once="loose")
        elif not field:
            self._differ("it drops fields without a name, and refuses an index that has them", place.offset, name)
        elif any(each.isspace() for each in field):
            self._refuse("an index cannot hold an extension with blanks", place.offset, name)
        elif field != field.lower():
            self._differ(f"it keeps the capitals of {field!r}", place.offset, name, once=field)
        elif len(os.fsencode(name)) > _LONGEST_NAME:
            self._differ(
                "it misreads PAX names of more than 255 bytes without an index", place.offset, name, once="long"
            )

    def judge_shard(self, check: "ShardResult") -> None:
        """Tell of compression, sparse members, damage, and keys that come again."""
        counts = check.findings.counts
        if check.compression is not None:
            self._refuse("it reads tar archives that are not compressed", 0)
        for code, message in (
            ("bad-header", "a corrupted header is an error"),
            ("wrong-file", "it is no tar archive"),
            ("empty-file", "it is no tar archive"),
            ("cut", "a cut archive is an error when it is reached"),
            ("size-conflict", "it takes the size of the header, and reads a corrupted archive"),
        ):
            if counts[code]:
                self._refuse(message, _first_offset(check, code))
        for code, message in (
            ("empty-shard", "it has no samples, and gives an empty one"),
            ("sparse-member", "it reads sparse members as they are stored"),
            ("split-sample", "the parts are samples of their own"),
            ("duplicate-field", "the field that comes again begins a sample"),
            ("joined-archives", "it ends at the first end mark"),
            ("lone-zero-block", "it ends at the block of zeros"),
        ):
            if counts[code]:
                self._differ(message, _first_offset(check, code))


class GrainProfile(ReaderProfile):
    """Grain over ``wds.IndexedDataset``: random access by an index of the shard."""

    name = "grain"
    reader = "Grain over wds.IndexedDataset"

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Take nothing: an index has the samples that the stream has, hard links included."""

    def judge_shard(self, check: "ShardResult") -> None:
        """Tell what keeps an index from being made."""
        if check.compression is not None:
            self._refuse("a compressed shard has no random access: decompress it", 0)
        for code in (
            "bad-header", "bad-extension", "limit", "cut", "no-end-mark", "wrong-file", "empty-file", "duplicate-field",
            "split-sample",
        ):  # fmt: skip
            if check.findings.counts[code]:
                self._refuse(f"no index can be made of the shard ({code})", _first_offset(check, code))


def _first_offset(check: "ShardResult", code: str) -> int | None:
    return next((finding.offset for finding in check.findings.kept if finding.code == code), None)


class ProfileSet(MemberObserver):
    """Several profiles as one observer.

    Args:
        names: of the profiles.

    Raises:
        UsageError: an unknown one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known: dict[str, Any] = {
            "hf": HuggingFaceProfile,
            "dali": DaliProfile,
            "energon": EnergonProfile,
            "ray": RayProfile,
            "grain": GrainProfile,
        }
        wanted = [names] if isinstance(names, str) else list(dict.fromkeys(names))
        for name in wanted:
            if name not in known:
                raise UsageError(f"profile {name!r} is not one of {', '.join(known)}")
        self.profiles: list[ReaderProfile] = [known[name]() for name in wanted]

    def waits_for_first(self) -> bool:
        """Tell whether a profile has not seen the first shard, which decides what it expects of the others."""
        return any(profile.first for profile in self.profiles)

    def take_links(self, targets: dict[int, str]) -> None:
        """Pass on which members are hard links."""
        for profile in self.profiles:
            profile.take_links(targets)

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Pass on the next members."""
        for profile in self.profiles:
            profile.take_members(members)

    def wants_payload(self, place: MemberPosition) -> bool:
        """Tell whether a profile wants a member's bytes."""
        return any(profile.wants_payload(place) for profile in self.profiles)

    def take_payload(self, place: MemberPosition, payload: bytes) -> None:
        """Pass on the bytes of a member."""
        for profile in self.profiles:
            if profile.wants_payload(place):
                profile.take_payload(place, payload)

    def end_shard(self, check: "ShardResult") -> None:
        """Tell what the readers make of a shard.

        Args:
            check: of the shard, which has ended.
        """
        for profile in self.profiles:
            profile.end_shard(check)
