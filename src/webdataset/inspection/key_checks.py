"""Checks names, keys and fields of samples: odd names, parts of samples, keys that come again, fields that are lacking.

Keys are kept as hashes of 64 bits. Those of the present shard stand in a dictionary; those of the shards before in
sorted arrays of twelve bytes a key, merged as they grow. Both are bounded: beyond ``most_keys`` the further keys are
not kept, and the report says so. Two different keys of one hash would be told as one; among ten million keys the
chance of that is one in a hundred thousand.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webdataset.inspection.findings import FindingList
from webdataset.samples.grouping import Sample
from webdataset.tar.walker import MemberPosition

if TYPE_CHECKING:
    import numpy as np

# what any of the patterns below finds, as one
ODD_NAME: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
    r"|^[/ ]|^[A-Za-z]:[/\\]|(?:^|/)\.\.(?:/|$)|[ ](?:/|$)|/[ ]"
)
# between names, "|/" stands: a name that starts with a slash or a dot gives "|//" or "|/."
_RARE: Final = re.compile(r"[\\ :]|\.\.|//|/\.")
_PARENT: Final = re.compile(r"(?:^|/)\.\.(?:/|$)")
_ABSOLUTE: Final = re.compile(r"^/|^[A-Za-z]:[/\\]")
_STRANGE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069]|^ |[ ](?:/|$)|/[ ]")
_BATCH: Final = 4096
_MOST_FIELD_SETS: Final = 256
_MOST_ORDERS: Final = 4096
_OTHERS: Final = ("",)
_USUAL: Final = 0.5
_MASK: Final = (1 << 64) - 1

Fields = tuple[str, ...]


class KnownKeys:
    """The keys of the shards so far.

    Args:
        most_keys: how many are kept.

    Attributes:
        full: whether some were not kept.
    """

    def __init__(self, most_keys: int) -> None:
        self.most_keys = most_keys
        self.full = False
        self._levels: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many keys are kept."""
        return self._count

    def find(self, hashes: "list[int]") -> list[tuple[int, int]]:
        """Return which of some keys are known: place in the list, and the number of the shard that has it.

        Args:
            hashes: of the keys.
        """
        if not self._levels:
            return []
        import numpy as np  # noqa: PLC0415  only where there are several shards

        wanted = np.array(hashes, np.uint64)
        found = []
        for known, shards in self._levels:
            places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            same = np.flatnonzero(known[places] == wanted)
            found += [(int(place), int(shards[places[place]])) for place in same]
        return found

    def add(self, hashes: "Sequence[int]", shard: int) -> None:
        """Keep the keys of a shard.

        Args:
            hashes: of its keys.
            shard: its number.
        """
        room = self.most_keys - self._count
        if len(hashes) > room:
            self.full = True
            hashes = hashes[:room]
        if not hashes:
            return
        import numpy as np  # noqa: PLC0415  as above

        keys = np.sort(np.array(hashes, np.uint64))
        self._count += len(keys)
        level = keys, np.full(len(keys), shard, np.uint32)
        while self._levels and len(self._levels[-1][0]) <= 2 * len(level[0]):
            older = self._levels.pop()
            joined = np.concatenate([older[0], level[0]])
            order = np.argsort(joined, kind="stable")
            level = joined[order], np.concatenate([older[1], level[1]])[order]
        self._levels.append(level)


class KeyBatch(NamedTuple):
    """Keys of one shard, to be compared with those of the shards before.

    Args:
        keys: of samples, in their order.
        offsets: where each starts.
        kept: places in ``keys`` of those that came for the first time, and are kept.
    """

    keys: list[str]
    offsets: list[int]
    kept: list[int]


class KeyComparison:
    """Compares the keys of one shard with those of the shards before.

    Args:
        findings: takes what is found.
        known: the keys of the shards before.
        urls: of the shards so far, by their numbers; the last one is this shard's.

    Attributes:
        findings: as above.
    """

    def __init__(self, findings: FindingList, known: KnownKeys, urls: list[str]) -> None:
        self.findings = findings
        self._known = known
        self._urls = urls
        self._kept = array("Q")

    def take(self, batch: KeyBatch) -> None:
        """Take the next keys.

        Args:
            batch: of the shard.
        """
        keys, offsets, kept = batch
        hashes = [hash(key) & _MASK for key in keys]
        self._kept.extend([hashes[place] for place in kept])
        for place, shard in self._known.find(hashes):
            message = f"the key {keys[place]!r} stands in {self._urls[shard]}, too"
            self.findings.add("repeated-key-across", message, key=keys[place], offset=offsets[place])

    def finish(self) -> None:
        """Take note that the shard has ended: keep its keys for the shards after it."""
        self._known.add(self._kept, len(self._urls) - 1)


class KeyCheck:
    """Takes the samples of one shard.

    Args:
        findings: takes what is found.
        most_keys: how many keys of this shard are kept.
        compare: takes batches of keys, where there are other shards.

    Attributes:
        samples: number of samples so far.
        fields: number of samples that have each field.
        forgot: some keys were not kept.
    """

    def __init__(
        self, findings: FindingList, most_keys: int, compare: Callable[[KeyBatch], object] | None = None
    ) -> None:
        self.samples = 0
        self.fields: Counter[str] = Counter()
        self.forgot = False
        self._findings = findings
        self._compare = compare
        self._most = most_keys
        self._seen: dict[int, int] = {}
        self._sets: dict[Fields, int] = {}
        self._groups: dict[Fields, int] = {}
        self._counts: list[int] = []
        self._first: list[tuple[str, int]] = []
        self._batch = KeyBatch([], [], [])

    def add(self, samples: list[Sample], offsets: list[int], *, parts_known: str | None = None) -> None:
        """Take samples that are complete.

        Args:
            samples: with ``__key__`` first, then their fields.
            offsets: where each starts.
            parts_known: a key whose parts have been told of already.
        """
        seen, sets = self._seen, self._sets
        keys, places, kept = self._batch
        comparing = self._compare is not None
        for sample, offset in zip(samples, offsets, strict=True):
            names = tuple(sample)[1:]
            number = sets.get(names)
            if number is None:
                number = self._number(names, sample["__key__"], offset)
            self._counts[number] += 1
            key = sample["__key__"]
            digest = hash(key) & _MASK
            before = seen.get(digest)
            if before is None:
                if len(seen) < self._most:
                    seen[digest] = number
                    if comparing:
                        kept.append(len(keys))
                else:
                    self.forgot = True
            elif key != parts_known:
                self._repeat(key, offset, names, before)
            if comparing:
                keys.append(key)
                places.append(offset)
        self.samples += len(samples)
        if len(keys) >= _BATCH:
            self._send_batch()

    def _number(self, names: Fields, key: str, offset: int) -> int:
        """Return the number of a set of fields; the last one stands for all that are too many."""
        ordered = tuple(sorted(names))
        if ordered not in self._groups:
            if len(self._groups) >= _MOST_FIELD_SETS:
                ordered = _OTHERS
            if ordered not in self._groups:
                self._groups[ordered] = len(self._counts)
                self._counts.append(0)
                self._first.append((key, offset))
        number = self._groups[ordered]
        if len(self._sets) < _MOST_ORDERS:
            self._sets[names] = number
        return number

    def _repeat(self, key: str, offset: int, names: Fields, before: int) -> None:
        earlier = next((fields for fields, number in self._groups.items() if number == before), ())
        if set(earlier) == set(names):
            self._findings.add(
                "repeated-key", f"the key {key!r} comes again with the same fields", key=key, offset=offset
            )
            return
        self._findings.add(
            "split-sample",
            f"the key {key!r} comes again: its fields {', '.join(names)} stand apart from {', '.join(earlier)}",
            key=key, offset=offset,
        )  # fmt: skip

    def _send_batch(self) -> None:
        batch, self._batch = self._batch, KeyBatch([], [], [])
        if self._compare is not None and batch.keys:
            self._compare(batch)

    def finish(self) -> None:
        """Take note that the shard has ended: tell of samples without fields that most have."""
        self._send_batch()
        self._groups.pop(_OTHERS, None)
        for names, number in self._groups.items():
            for name in names:
                self.fields[name] += self._counts[number]
        usual = [name for name, count in self.fields.items() if count > self.samples * _USUAL]
        for names, number in self._groups.items():
            missing = [name for name in usual if name not in names]
            if missing:
                key, offset = self._first[number]
                self._findings.add(
                    "ragged-sample",
                    f"{self._counts[number]} of {self.samples} samples lack {', '.join(missing)}; the first is {key!r}",
                    key=key, offset=offset, field=missing[0],
                )  # fmt: skip


def judge_name(name: str) -> Iterator[tuple[str, str]]:
    """Yield code and message of what is odd about a name.

    Args:
        name: of a member.
    """
    if _ABSOLUTE.search(name):
        yield "absolute-name", "its name is absolute"
    if _PARENT.search(name):
        yield "parent-name", "its name leads out of its folder"
    if any("\udc80" <= each <= "\udcff" for each in name):
        yield "bad-name", "its name is not UTF-8"
    if _STRANGE.search(name):
        yield "odd-name", f"its name is {name!r}"


def are_plain(places: list[MemberPosition], extensions: Container[str]) -> bool:
    """Tell whether names and sizes of members are surely such that nothing is to be said about them.

    Args:
        places: of the members; not empty.
        extensions: those about which nothing is to be said.
    """
    names = [place[0] for place in places]
    joined = "|/".join(("", *names))
    if not joined.isascii() or not joined.isprintable() or _RARE.search(joined) is not None:
        return False
    dots = {name[name.find(".", name.rfind("/") + 1) :] for name in names}
    return all(dot[0] == "." and dot[1:] in extensions for dot in dots) and all(place[3] for place in places)
