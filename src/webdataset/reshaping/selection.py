"""Chooses samples and their fields, and names of fields; what stays is written as it stands.

A rename keeps everything of a member but its name. A sample none of whose fields stay is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from webdataset.core.errors import DuplicateField, MissingField
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
        found_keys: those of ``keys`` that were met.
    """

    where: Callable[[RawSample], bool] | None = None
    keys: frozenset[str] | None = None
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    require_fields: bool = False
    taken: int = 0
    left_out: int = 0
    found_keys: set[str] = field(default_factory=set)

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
        return chosen if chosen.members else None

    def _choose_fields(self, sample: RawSample) -> RawSample:
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


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
