"""Groups consecutive members with one key into samples, and splits member names into key and extension.

Theory. A key's members stand next to each other. In the common case a member's name starts with the present key and a
dot, and its extension was seen before in this shard: one prefix test and one dictionary lookup. Everything else (a
new key, a new extension, metadata, a duplicate) takes the longer way.

Grouping never joins members of two shards, never gives a sample that was cut off, and never normalises a name.
"""

import copy
import re
import sys
from collections.abc import Callable, Container
from typing import Any, Literal

from webdataset.core.errors import DuplicateField, UsageError
from webdataset.tar.member_assembly import Member

META_PREFIX = "__"
META_SUFFIX = "__"
_META = re.compile(r"__[^/]*__($|/)")


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a member's full name at the first dot of its last component.

    ``a/b.c/d.tar.gz`` gives ``("a/b.c/d", "tar.gz")``; a name that belongs to no sample (without a dot, or hidden at
    the top level or in a folder whose own name has a dot) gives (None, None).

    Args:
        path: the name.
    """
    slash = path.rfind("/")
    dot = path.find(".", slash + 1)
    if dot < 0:
        return None, None
    if dot == slash + 1 and (slash < 0 or "." in path[path.rfind("/", 0, slash) + 1 : slash]):
        return None, None
    return path[:dot], path[dot + 1 :]


def last_dot(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a member's name at the last dot of its last component, for keys that hold dots.

    Args:
        path: the name.

    Returns:
        (key, extension), or (None, None) as for :func:`base_plus_ext`.
    """
    slash = path.rfind("/")
    dot = path.rfind(".")
    if dot <= slash + 1:
        return None, None
    return path[:dot], path[dot + 1 :]


def is_meta(path: str, pattern: re.Pattern[str] | str | None = _META) -> bool:
    """Tell whether a name is metadata of the shard: ``__name__`` at the top level, or below such a folder."""
    return pattern is not None and re.match(pattern, path) is not None


Sample = dict[str, Any]

Shard = dict[str, Any]
"""A shard of a list: ``url``, and ``stream`` once it is open; a list may add ``number``, ``share``, ``part``."""
Keys = Callable[[str], tuple[str, str] | tuple[None, None]]
Duplicates = Literal["error", "first", "last", "new"]
POLICIES = ("error", "first", "last", "new")

_UNSTAMPED = frozenset(("__key__",))
# extension to field, by ``lcase``, as groupers have seen them that keep all suffixes; few, so that it stays small
COMMON_FIELDS: dict[bool, dict[str, str]] = {True: {}, False: {}}
_MOST_COMMON = 1000


class Grouper:
    """Groups the members of one shard at a time.

    Args:
        keys: splits a name into key and extension.
        lcase: lower-case the extension.
        suffixes: keep only these full extensions; None keeps all.
        duplicates: the same key and extension again within one sample: ``error``, keep the ``first`` or the ``last``,
            or start a ``new`` sample.

    Attributes:
        offsets: where each sample of the last ``add`` or ``close`` starts.
        fault: what stopped the last ``add`` short, or None.
        taken: members that the last ``add`` took, the faulty one included.
        stamped: names in every sample of the present shard that are no fields.
    """

    def __init__(
        self,
        *,
        keys: Keys = base_plus_ext,
        lcase: bool = True,
        suffixes: Container[str] | None = None,
        duplicates: str = "error",
    ) -> None:
        if duplicates not in POLICIES:
            raise UsageError(f"duplicates={duplicates!r} is not one of {', '.join(POLICIES)}")
        if not callable(keys):
            raise UsageError(f"keys={keys!r:.60}: it is a function of a member's name that returns (key, extension)")
        if suffixes is not None and not hasattr(suffixes, "__contains__"):
            raise UsageError(
                f"suffixes={suffixes!r:.60}: it is a list of the extensions to keep, such as ['jpg', 'json']"
            )
        # one that remembers is copied
        self._keys = copy.copy(keys) if hasattr(keys, "restart") else keys
        self._lcase = lcase
        self._suffixes = suffixes
        self._duplicates = duplicates
        # extensions for the short way: kept, and never metadata
        self._fields: dict[str, str] = {}
        self._seen = self._fields.get
        self._common = COMMON_FIELDS[bool(lcase)] if suffixes is None else {}
        self._plain = keys is base_plus_ext
        self._marked_bad = False
        # a field that is not among those for the short way
        self._odd = False
        self._every: frozenset[str] = frozenset()
        self._counted = 0
        self.offsets: list[int] = []
        self.fault: DuplicateField | None = None
        self.taken = 0
        self._restart: Callable[[], object] | None = getattr(self._keys, "restart", None)
        self.open({})

    def open(self, stamp: Sample) -> None:
        """Begin a shard; every sample of it carries ``stamp``, such as ``__url__``."""
        if self._restart is not None:
            self._restart()
        self._stamp = stamp
        self.stamped = frozenset(("__key__", *stamp)) if stamp else _UNSTAMPED
        self._raised: Exception | None = None
        self._sample: Sample | None = None
        self._key: str | None = None
        self._prefix = "\0"
        self._start = 0

    @property
    def is_plain(self) -> bool:
        """Whether names are split at the first dot, and no name of the stamp is one of a sample's own."""
        return self._plain and "__key__" not in self._stamp

    @property
    def odd_samples(self) -> bool:
        """Whether a sample may be marked as bad, and has to be looked at before it is given."""
        return self._marked_bad

    @property
    def template(self) -> tuple[Sample, dict[str, str], dict[str, str]]:
        """What each sample of this shard begins with, and the fields of the extensions seen so far, here and before."""
        return {"__key__": None, **self._stamp}, self._fields, self._common

    @property
    def progress(self) -> tuple[Sample | None, str | None, int]:
        """The sample in progress, its key, and where it starts."""
        return self._sample, self._key, self._start

    @progress.setter
    def progress(self, progress: tuple[Sample | None, str | None, int]) -> None:
        self._sample, key, self._start = progress
        if self._sample is None:
            self._key, self._prefix = None, "\0"
        elif key is not None and key is not self._key:
            self._key, self._prefix = key, key + "."

    @property
    def key(self) -> str | None:
        """Key of the sample in progress, or None."""
        return self._key if self._sample is not None else None

    def add(self, members: list[Member], first: int = 0) -> list[Sample]:  # noqa: C901  hot path
        """Group members, from index ``first`` on; return the samples that are complete: all but the one in progress.

        Stops at a duplicate under ``error``; then ``fault`` says so, and ``add(members, taken)`` continues after it.
        What a rule for names raises comes after the samples before: from the next call, or from :meth:`close`.
        """
        if self._raised is not None:
            raise self._raised
        done: list[Sample] = []
        self.offsets = []
        self.fault = None
        sample, prefix, seen = self._sample, self._prefix, self._seen
        skip = len(prefix)
        for name, payload, offset in members[first:] if first else members:
            if name.startswith(prefix):
                field = seen(name[skip:])
                if field is not None and sample is not None and field not in sample:
                    sample[field] = payload
                    continue
            # a new key with an extension seen before: what _longer does, without the calls
            elif self._plain:
                slash = name.rfind("/")
                dot = name.find(".", slash + 1)
                field = seen(name[dot + 1 :])
                if field is not None and dot > slash + 1 and name[0] != "_":
                    if sample is not None and not (self._marked_bad and sample.get("__bad__")):
                        done.append(sample)
                        self.offsets.append(self._start)
                    self._key = key = name[:dot]
                    self._start = offset
                    self._sample = sample = {"__key__": key, **self._stamp, field: payload}
                    self._prefix = prefix = key + "."
                    skip = dot + 1
                    continue
            self._sample = sample
            try:
                taken = self._longer(name, payload, offset, done)
            except Exception as error:  # raised by the next call, after what is complete
                if not done:
                    raise
                self._raised = error
                break
            if not taken:
                self.taken = members.index((name, payload, offset), first) + 1
                break
            sample, prefix = self._sample, self._prefix
            skip = len(prefix)
        self._sample = sample
        return done

    def _longer(self, name: str, payload: object, offset: int, done: list[Sample]) -> bool:
        """Take a member that needs more than a lookup; return False at a duplicate that is an error."""
        if name.startswith("__") and is_meta(name):
            return True
        key, ext = self._keys(name)
        if key is None or ext is None:
            return True
        field = self._field(ext)
        # metadata of ours: no member may replace it
        if field == "__key__" or field in self._stamp:
            return self._refuse(
                key,
                field,
                offset,
                f"a member may not be called {key}.{field}: that name is the sample's own; "
                "leave it out or rename it with select_files or rename_files",
            )
        if key == self._key and self._sample is not None:
            repeated = field in self._sample
            if field is not None and (not repeated or self._duplicates == "last"):
                self._sample[field] = payload
            if not repeated or self._duplicates in ("first", "last"):
                return True
            if self._duplicates == "error":
                return self._refuse(key, field, offset)
        self._flush(done)
        self._sample = {"__key__": key, **self._stamp}
        self._key = key
        self._prefix = key + "." if self._plain else "\0"
        self._start = offset
        if field is not None:
            self._sample[field] = payload
        return True

    def _field(self, ext: str) -> str | None:
        """Return the field that an extension names, or None where it is filtered out; remember it for the short way."""
        field = ext.lower() if self._lcase else ext
        if self._suffixes is not None and field not in self._suffixes:
            return None
        self._marked_bad |= field == "__bad__"
        if not field.startswith("__") and len(self._fields) < 1 << 16:
            if len(self._common) < _MOST_COMMON:
                # one string for all shards and threads; where Python has no global lock, interned ones are not counted
                field = self._common[ext] = sys.intern(field)
            self._fields[ext] = field
        else:
            self._odd = True
        return field

    def every_field(self) -> tuple[frozenset[str], int] | None:
        """Return all fields so far, and the length of a sample that has all of them; None where some are not known."""
        if self._odd:
            return None
        if len(self._fields) != self._counted:
            self._every, self._counted = frozenset(self._fields.values()), len(self._fields)
        return self._every, len(self._every) + len(self.stamped)

    def _refuse(self, key: str, field: str | None, offset: int, message: str = "") -> bool:
        self.fault = DuplicateField(
            message
            or f"duplicate file name in tar file: {key}.{field} stands twice in one sample; rewrite the shard, or "
            "pass duplicates='first', 'last' or 'new'",
            key=key, field=field, offset=offset, url=self._stamp.get("__url__"),
        )  # fmt: skip
        return False

    def _flush(self, done: list[Sample]) -> None:
        sample = self._sample
        if sample is None or (self._marked_bad and sample.get("__bad__")):
            return
        done.append(sample)
        self.offsets.append(self._start)

    def split(self, name: str) -> tuple[str, str] | None:
        """Return key and field of a member, or None where it belongs to no sample; nothing is remembered."""
        if is_meta(name):
            return None
        keys = copy.copy(self._keys) if hasattr(self._keys, "restart") else self._keys
        key, ext = keys(name)
        if key is None or ext is None:
            return None
        field = ext.lower() if self._lcase else ext
        return None if self._suffixes is not None and field not in self._suffixes else (key, field)

    def get_content(self, name: str, key: str) -> object:
        """Return what the sample in progress has of a member, or None; None, too, where its key is not ``key``."""
        place = self.split(name)
        if place is None or self._sample is None or not place[0] == self._key == key or place[1].startswith("__"):
            return None
        return self._sample.get(place[1])

    def announce(self, name: str, done: list[Sample]) -> None:
        """Note which member comes next: a sample that it does not belong to is complete, and added to ``done``."""
        if self._sample is None or name.startswith((self._prefix, "__")):
            return
        key, ext = self._keys(name)
        if key is None or ext is None or key == self._key:
            return
        field = self._field(ext)
        # a member that will be refused ends no sample
        if field != "__key__" and field not in self._stamp:
            self._flush(done)
            self._sample = self._key = None
            self._prefix = "\0"

    def close(self) -> list[Sample]:
        """End the shard and return its last sample, if there is one; or raise what a rule for names raised."""
        if self._raised is not None:
            raise self._raised
        done: list[Sample] = []
        self.offsets = []
        self._flush(done)
        stamped = self.stamped
        self.open({})
        # the last sample has been given, and not been looked at
        self.stamped = stamped
        return done

    def abandon(self) -> str | None:
        """End the shard without its last sample, which an error interrupted; return that sample's key."""
        key = self.key
        self.open({})
        return key


def valid_sample(sample: object) -> bool:
    """Tell whether this is a sample: a dict with something in it and no true ``__bad__``."""
    return isinstance(sample, dict) and len(sample) > 0 and not sample.get("__bad__", False)
