"""Chooses samples and their fields, and names of fields; what stays is written as it stands.

A rename keeps everything of a member but its name. A sample none of whose fields stay is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count

from webdataset.core.errors import DuplicateField, MissingField, UsageError
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.raw_samples import RawMember, RawSample, rename_member


@dataclass
class Selection:
    """Which samples and fields stay.

    Args:
        where: tells whether a sample stays; None for all.
        keys: the keys that stay; None for all.
        keep: patterns of the fields that stay (``*`` and ``?``); empty for all.
        drop: patterns of the fields that go.
        rename: new name of a field to its old name; after keep and drop.
        require_fields: raise where a sample lacks a field that ``rename`` names.

    Attributes:
        taken: samples that stayed.
        left_out: samples that went.
        emptied: those of them that went since none of their fields stayed, and the key of the first.
        found_keys: those of ``keys`` that were met.
        unmet_fields: what ``keep``, ``drop`` and ``rename`` name and no chosen sample had; None before the first one.
    """

    where: Callable[[RawSample], bool] | None = None
    keys: frozenset[str] | None = None
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    require_fields: bool = False
    taken: int = 0
    left_out: int = 0
    emptied: tuple[int, str | None] = (0, None)
    found_keys: set[str] = field(default_factory=set)
    unmet_fields: list[str] | None = None

    def apply(self, samples: Iterable[RawSample]) -> Iterator[RawSample]:
        """Yield what stays of samples.

        Args:
            samples: as they stand.

        Raises:
            SampleError: ``where`` fails for a sample; two fields of a sample get one name; a field is missing.
        """
        for sample in samples:
            chosen = self._choose(sample)
            if chosen is None:
                self.left_out += 1
            else:
                self.taken += 1
                yield chosen

    def _choose(self, sample: RawSample) -> RawSample | None:
        if self.keys is not None:
            if sample.key not in self.keys:
                return None
            self.found_keys.add(sample.key)
        if self.where is not None and not self.where(sample):
            return None
        if not (self.keep or self.drop or self.rename):
            return sample
        chosen = self._choose_fields(sample)
        if chosen.members:
            return chosen
        number, first = self.emptied
        self.emptied = number + 1, first if number else sample.key
        return None

    def _choose_fields(self, sample: RawSample) -> RawSample:
        self._note_met_fields(sample)
        olds = {old: new for new, old in self.rename.items()}
        missing = [old for old in olds if old not in sample.fields]
        if missing and self.require_fields:
            raise MissingField(f"the sample has no field {missing[0]!r}", key=sample.key, url=sample.url)
        members: list[RawMember] = []
        fields: list[str] = []
        for name, member in zip(sample.fields, sample.members, strict=True):
            if (self.keep and not _matches(name, self.keep)) or _matches(name, self.drop):
                continue
            new = olds.get(name, name)
            if new in fields:
                raise DuplicateField(f"two fields get the name {new!r}", key=sample.key, url=sample.url, field=new)
            fields.append(new)
            members.append(member if new == name else rename_member(member, f"{sample.key}.{new}"))
        return sample._replace(members=tuple(members), fields=tuple(fields))

    def _note_met_fields(self, sample: RawSample) -> None:
        if self.unmet_fields is None:
            self.unmet_fields = list(dict.fromkeys((*self.keep, *self.drop, *self.rename.values())))
        if self.unmet_fields:
            self.unmet_fields = [
                name for name in self.unmet_fields if not any(_matches(each, (name,)) for each in sample.fields)
            ]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class FieldChoice:
    """Chooses fields as tarp's ``-f`` does: ``jpg cls`` keeps two, ``png:png,jpg`` renames the first that there is.

    Args:
        text: words with blanks between, in the order in which fields are written; ``__key__`` counts nothing, for
            keys always stay.

    Attributes:
        names: of the fields that are written.

    Raises:
        UsageError: a word that makes no sense, or a name that comes twice.
    """

    def __init__(self, text: str) -> None:
        self._choices: list[tuple[str, list[str]]] = []
        self.names: list[str] = []
        for word in text.split():
            new, colon, olds = word.partition(":")
            sources = olds.split(",") if colon else [new]
            if not new or not all(sources) or base_plus_ext(f"key.{new}") != ("key", new):
                raise UsageError(f"{word!r} names no fields: write FIELD or NEW:OLD1,OLD2")
            if new == "__key__":
                continue
            if new.lower() in self.names:
                raise UsageError(f"the field {new!r} is written twice: name it once in {text!r}")
            self.names.append(new.lower())
            self._choices.append((new, [source.lower() for source in sources]))
        if not self.names:
            raise UsageError(f"{text!r} names no field to keep")

    def apply(self, sample: RawSample) -> RawSample:
        """Return a sample with the chosen fields alone.

        Args:
            sample: as it stands.

        Raises:
            MissingField: it has none of those that a word names.
        """
        members = []
        for new, olds in self._choices:
            old = next((old for old in olds if old in sample.fields), None)
            if old is None:
                wanted, there = " or ".join(map(repr, olds)), " ".join(sample.fields)
                raise MissingField(f"the sample has no field {wanted}; it has {there}", key=sample.key, url=sample.url)
            member = sample.members[sample.fields.index(old)]
            members.append(member if new.lower() == old else rename_member(member, f"{sample.key}.{new}"))
        return sample._replace(members=tuple(members), fields=tuple(self.names))


def rekey_samples(samples: Iterable[RawSample], pattern: str | None) -> Iterator[RawSample]:
    """Give samples new keys.

    Args:
        samples: as they stand.
        pattern: ``#`` for their number from 0, in nine digits; None keeps the keys.

    Raises:
        UsageError: another pattern.
    """
    if pattern not in (None, "#"):
        raise UsageError(f"--rekey {pattern!r} is unknown: write '#' to number the samples")
    return iter(samples) if pattern is None else map(_rekey, samples, (f"{number:09}" for number in count()))


def _rekey(sample: RawSample, key: str) -> RawSample:
    members = tuple(rename_member(member, key + member.name[len(sample.key) :]) for member in sample.members)
    return sample._replace(key=key, members=members)
