"""Members of other keys as fields of the sample whose JSON names them: ``D-0.jpg`` as field ``0.jpg`` of ``D``.

Flows in: samples, one for each key. Flows out: samples; those that were joined are gone. Never changes a payload.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.ground.errors import DuplicateField
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.samples.documents.names import stem
from webdataset.samples.documents.siblings import Group, Wants

from .gathering import Gathering
from .interleaving import record

_LISTS = ("image_info", "images", "image", "image_name_list", "videos", "video")
_NAMES = ("image_name", "name", "member")


class SiblingFields(Gathering):
    """Siblings as fields; see :func:`sibling_fields`.

    Args:
        named: take only what the JSON names.
        json: the field of the JSON.
        handler: asked where a document fails.
        separator: stands between a document's key and the names of its siblings.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait.
    """

    name = "sibling_fields"

    def __init__(
        self,
        named: bool,  # noqa: FBT001
        json: str,
        handler: Handler,
        *,
        separator: str,
        adjacent: bool,
        lookahead: float | None,
    ) -> None:
        super().__init__(handler, separator, adjacent, lookahead)
        self.named = named
        self.json = json

    def describe(self, sample: Mapping[str, Any]) -> Wants | None:
        """Return what the document in a sample wants, or None where there is none."""
        if self.json not in sample:
            return None
        if not self.named:
            return Wants([], all=True, whole=True)
        front = str(sample["__key__"]).rpartition("/")[2] + self.separator
        found: list[tuple[str, ...]] = []
        for name in dict.fromkeys(named_in(record(sample[self.json], self.json))):
            called = stem(name)
            found.append((called, called[len(front) :]) if called.startswith(front) else (called,))
        return Wants(found, whole=True)

    def candidate(self, sample: Mapping[str, Any]) -> bool:  # noqa: ARG002  whatever it holds
        """Return True: any sample without a JSON may be a sibling."""
        return True

    def made(self, group: Group, decoder: Any, left_out: Counter[str]) -> Any:  # noqa: ARG002  nothing is decoded
        """Return the sample with its siblings' fields."""
        if group.error is not None:
            raise group.error
        sample = group.items[0].sample
        if group.wants is None or not group.siblings:
            return sample
        joined = dict(sample)
        for name, (_, value) in group.siblings.items():
            if name in joined:
                raise DuplicateField(
                    f"{name!r} is a field of the sample, and the name of one of its siblings", field=name
                )
            joined[name] = value
        return joined

    def __repr__(self) -> str:
        return f"sibling_fields(named={self.named})"


def named_in(record: Any) -> Iterator[str]:
    """Yield the names of images and videos that a JSON object lists.

    Args:
        record: what the JSON holds.
    """
    if not isinstance(record, dict):
        return
    for where in _LISTS:
        listed = record.get(where)
        for entry in listed if isinstance(listed, list) else [listed]:
            if isinstance(entry, str):
                yield entry
            elif isinstance(entry, dict):
                yield from (entry[name] for name in _NAMES if isinstance(entry.get(name), str))


def sibling_fields(
    *,
    named: bool = True,
    handler: Handler = reraise_exception,
    json: str = "json",
    separator: str = "-",
    adjacent: bool = True,
    lookahead: int | None = None,
) -> SiblingFields:
    """Make members ``D-<name>.jpg`` fields ``<name>.jpg`` of the sample ``D``, in whatever order they come.

    For JSON of any kind; :func:`~webdataset.stages.interleaving.interleaved` understands documents. Samples that are
    not joined pass as they are.

    Args:
        named: only members that the JSON lists in ``image_info``, ``images``, ``image``, ``image_name_list``,
            ``videos`` or ``video``. False takes every member whose key begins with ``D-``.
        handler: asked where JSON cannot be read: true skips the sample, false ends the stage.
        json: the field that holds the JSON.
        separator: stands between a document's key and the names of its siblings.
        adjacent: the members of a document stand next to each other. False looks for them in the whole shard.
        lookahead: the greatest number of samples that wait for others; beyond it the oldest is decided as it is. None:
            1000 where members are adjacent, else any number.

    Returns:
        A stage.

    Raises:
        UsageError: arguments that cannot mean anything.
        DecodingError: JSON that cannot be read (when it runs).

    Flow: in the order in which samples are complete; holds the members of one document, or of the whole shard; resumes
    exactly.
    """
    return SiblingFields(named, json, handler, separator=separator, adjacent=adjacent, lookahead=lookahead)
