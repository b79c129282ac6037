"""Joins documents with images in members of other keys: ``D.json`` with ``D-0.jpg``, ``D-1.jpg``.

Theory. Samples arrive one by one. A sample that holds a document's JSON requests some names after its key; a sample
that holds images only may be requested. Either may arrive first. Each therefore waits until it is decided: a document
until it has all it requests, an image until a document requests it. What waits is decided at the latest when the
shard ends; where documents are *adjacent*, it is decided as soon as a sample arrives whose key does not begin with
the document's key (for an image: with the shortest key that its document may have). So what waits is one document and
its neighbourhood. Whether something continues to wait depends only on what waits: feeding the waiting samples again
makes the same state, and this is how a run is resumed.

Groups leave in the order in which they are decided. The collector never joins two shards, and never takes an image
that no document names, unless it is told to.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from webdataset.core.errors import SampleError, WebDatasetError
from webdataset.samples.documents.document import member_stem, parent_key, parent_keys

Sample = Mapping[str, Any]


class WaitingSample(NamedTuple):
    """A sample that waits; ``number`` came before it, and ``address`` is None unless the run is tracked."""

    number: int
    address: object
    sample: Sample


class SiblingRequest(NamedTuple):
    """What a document wants.

    Args:
        names: for each image the names after the document's key under which it may stand; any will do.
        all: it wants all that stands after its key.
        whole: it takes a sibling with all its fields, under any names.
        about: what the caller knows about the document.
    """

    names: list[tuple[str, ...]]
    all: bool = False
    whole: bool = False
    about: Any = None


class DocumentGroup:
    """A document and its siblings, or a sample that belongs to none.

    Args:
        items: in the order in which they were joined; the first holds the JSON, or is the sample.
        wants: what the document wanted; None for other samples.
        siblings: name after the document's key to (field, value).
        error: what is wrong with it, or None.
        early: it was decided because more samples waited than may.
    """

    __slots__ = ("all", "early", "error", "items", "names", "open", "prefix", "siblings", "wants")

    def __init__(self, item: WaitingSample, wants: SiblingRequest | None = None, prefix: str = "") -> None:
        self.items = [item]
        self.wants = wants
        self.prefix = prefix
        self.siblings: dict[str, tuple[str, object]] = {}
        self.error: WebDatasetError | None = None
        self.early = False
        self.all = wants is not None and wants.all
        wanted = wants.names if wants is not None else ()
        self.open = set(range(len(wanted)))
        self.names: dict[str, list[int]] = {}
        for number, names in enumerate(wanted):
            for name in names:
                self.names.setdefault(name, []).append(number)

    @property
    def waits(self) -> bool:
        """Whether it may want more."""
        return bool(self.open) or self.all

    @property
    def addresses(self) -> list[object]:
        """The addresses of its items."""
        return [item.address for item in self.items]

    def takes(self, stems: list[str]) -> bool:
        """Tell whether it wants any of a sample's members."""
        if self.all:
            return True
        names, skip = self.names, len(self.prefix)
        for stem in stems:  # noqa: SIM110  a generator would cost twice as much
            if stem[skip:] in names:
                return True
        return False

    def join(self, item: WaitingSample) -> None:
        """Take a sibling."""
        self.items.append(item)
        skip, names = len(self.prefix), self.names
        whole = self.wants is not None and self.wants.whole
        key = item.sample["__key__"]
        for field, value in item.sample.items():
            if field[:2] == "__":
                continue
            rest = (member_stem(key, field) if "." in field else key)[skip:]
            if rest in names:
                self.open.difference_update(names[rest])
            if whole:
                self.siblings[f"{key[skip:]}.{field}"] = (field, value)
            elif rest in self.siblings or rest not in names:
                self.error = self.error or SampleError(
                    f"member {key}.{field} "
                    + ("is one of two of this name" if rest in self.siblings else "is not named in the JSON"),
                    field=f"{key}.{field}",
                )
            else:
                self.siblings[rest] = (field, value)


class SiblingCollector:
    """Joins documents with their siblings.

    Args:
        describe: a sample to what it wants, or None where it is no document; may raise a ``WebDatasetError``.
        candidate: tells whether a sample that is no document may be a sibling.
        separator: stands between a document's key and the name of an image.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait; beyond it the oldest is decided.

    Attributes:
        ready: groups that are decided.
    """

    def __init__(
        self,
        describe: Callable[[Sample], SiblingRequest | None],
        candidate: Callable[[Sample], bool],
        *,
        separator: str = "-",
        adjacent: bool = True,
        lookahead: float = float("inf"),
    ) -> None:
        self.ready: deque[DocumentGroup] = deque()
        self._describe, self._candidate = describe, candidate
        self._separator, self._adjacent, self._lookahead = separator, adjacent, lookahead
        self._url: object = None
        self._number = 0
        self._count = 0
        # by key
        self._documents: dict[str, DocumentGroup] = {}
        # by shortest parent, by number
        self._loose: dict[str, dict[int, WaitingSample]] = {}
        self._stems: dict[str, WaitingSample] = {}

    def feed(self, address: object, sample: Sample) -> None:
        """Take a sample, and its address in a tracked run; what it decides is in ``ready``."""
        item = WaitingSample(self._number, address, sample)
        self._number += 1
        if not (sample.__class__ is dict or isinstance(sample, Mapping)) or not isinstance(sample.get("__key__"), str):
            self.ready.append(DocumentGroup(item))
            return
        key, url = sample["__key__"], sample.get("__url__")
        if url != self._url:
            self.finish()
            self._url = url
        elif self._count and self._adjacent:
            self._leave(key)
        self._take(key, item)
        while self._count > self._lookahead:
            self._decide([self._oldest()], early=True)

    def _take(self, key: str, item: WaitingSample) -> None:
        try:
            wants = self._describe(item.sample)
        except WebDatasetError as error:
            group = DocumentGroup(item)
            group.error = error
            self.ready.append(group)
            return
        if wants is not None:
            self._open(key, DocumentGroup(item, wants, key + self._separator))
        elif self._separator in key and self._candidate(item.sample):
            self._place(key, item)
        else:
            self.ready.append(DocumentGroup(item))

    def finish(self) -> None:
        """Decide all that waits: the shard has ended."""
        if self._count:
            self._decide([group[0] for group in self._waiting()])

    def _oldest(self) -> tuple[int, object]:
        """Return (number, group or loose item) of what has waited longest; all dicts are in the order of numbers."""
        firsts: list[tuple[int, object]] = [next(iter(items.items())) for items in self._loose.values()]
        firsts += [(group.items[0].number, group) for group in islice(self._documents.values(), 1)]
        return min(firsts, key=lambda pair: pair[0])

    def pending_samples(self) -> list[WaitingSample]:
        """Return the samples that wait, in the order in which they came."""
        return sorted((item for group in self._waiting() for item in group[1]), key=lambda item: item.number)

    def _waiting(self) -> list[tuple[tuple[int, object], list[WaitingSample]]]:
        """Return ((number, group or loose item), items) of all that waits."""
        documents = [((group.items[0].number, group), group.items) for group in self._documents.values()]
        loose = [((item.number, item), [item]) for items in self._loose.values() for item in items.values()]
        return [*documents, *loose]

    def _decide(self, chosen: list[tuple[int, Any]], *, early: bool = False) -> None:
        for _, waiting in sorted(chosen, key=lambda pair: pair[0]):
            if isinstance(waiting, DocumentGroup):
                self._close(waiting)
            else:
                self._release(waiting)
                self.ready.append(DocumentGroup(waiting))
            self.ready[-1].early = early

    def _leave(self, key: str) -> None:
        """Decide what a sample with this key stands outside of."""
        left: list[tuple[int, object]] = [
            (group.items[0].number, group) for group in self._documents.values() if not key.startswith(group.prefix)
        ]
        for front, items in self._loose.items():
            if not key.startswith(front) or (key != front and not key.startswith(front + self._separator)):
                left += items.items()
        if left:
            self._decide(left)

    def _open(self, key: str, group: DocumentGroup) -> None:
        older = self._documents.get(key)
        if older is not None:
            self._close(older)
        if self._stems:
            for item in self._requested_items(group):
                self._release(item)
                group.join(item)
        if not group.waits:
            self.ready.append(group)
            return
        self._documents[key] = group
        self._count += len(group.items)

    def _requested_items(self, group: DocumentGroup) -> list[WaitingSample]:
        """Return the loose samples that a document wants, in the order in which they came."""
        if group.all:
            found = {item.number: item for stem, item in self._stems.items() if stem.startswith(group.prefix)}
        else:
            stems = (self._stems.get(group.prefix + name) for name in group.names)
            found = {item.number: item for item in stems if item is not None}
        return [found[number] for number in sorted(found)]

    def _close(self, group: DocumentGroup) -> None:
        key = group.prefix[: -len(self._separator)]
        del self._documents[key]
        self._count -= len(group.items)
        self.ready.append(group)

    def _place(self, key: str, item: WaitingSample) -> None:
        stems = _member_stems(key, item.sample)
        group = self._claimant(key, stems) if self._documents else None
        if group is not None:
            group.join(item)
            self._count += 1
            if not group.open and not group.all:
                self._close(group)
            return
        front = parent_key(key, self._separator)
        if front is None:
            self.ready.append(DocumentGroup(item))
            return
        for stem in stems:
            older = self._stems.get(stem)
            if older is not None:
                self._release(older)
                self.ready.append(DocumentGroup(older))
        self._loose.setdefault(front, {})[item.number] = item
        self._stems.update(dict.fromkeys(stems, item))
        self._count += 1

    def _claimant(self, key: str, stems: list[str]) -> DocumentGroup | None:
        """Return the document that wants a sample; of several, that with the longest key."""
        # nearly always
        group = self._documents.get(key[: key.rfind(self._separator)])
        if group is not None and group.takes(stems):
            return group
        for front in parent_keys(key, self._separator):
            group = self._documents.get(front)
            if group is not None and group.takes(stems):
                return group
        return None

    def _release(self, item: WaitingSample) -> None:
        key = str(item.sample["__key__"])
        front = parent_key(key, self._separator) or ""
        del self._loose[front][item.number]
        if not self._loose[front]:
            del self._loose[front]
        for stem in _member_stems(key, item.sample):
            if self._stems.get(stem) is item:
                del self._stems[stem]
        self._count -= 1


def _member_stems(key: str, sample: Sample) -> list[str]:
    """Return the names of a sample's members without their extensions."""
    return [member_stem(key, field) if "." in field else key for field in sample if field[:2] != "__"]
