"""Joins documents with their images: texts and images in one order, however the shard stores them.

``interleaved`` gives one :class:`~webdataset.samples.documents.document.Document` for each document, when all its
images are there. ``sibling_fields`` makes members of other keys fields of the sample whose JSON names them:
``D-0.jpg`` becomes field ``0.jpg`` of ``D``; the samples that were joined disappear.

The state holds the addresses of what waits, and of what is decided but not yet given; feeding those samples again
makes the same state. These stages never join two shards, never take an image that the document's JSON does not name,
and never change a payload.
"""

import dataclasses
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from webdataset.core.error_handlers import Handler, make_handler_error, reraise_exception, should_continue
from webdataset.core.errors import (
    DecodingError,
    DuplicateField,
    FlowError,
    SampleError,
    UsageError,
    check_keywords,
    describe_error,
)
from webdataset.core.json_types import Address, JsonValue, as_list, as_object
from webdataset.core.logs import log
from webdataset.samples.documents.assembly import DocumentParts, assemble_document, collect_images, locate_images
from webdataset.samples.documents.document import DocumentRules, is_image, stem
from webdataset.samples.documents.outline import parse_outline
from webdataset.samples.documents.siblings import DocumentGroup, SiblingCollector, SiblingRequest
from webdataset.stages.base import Fetch, FilterFunction, Run, Sample, Stage, StageState, with_blame
from webdataset.stages.map import FieldDecoder, _decode
from webdataset.stages.map import decode as make_decoding

if TYPE_CHECKING:
    from webdataset.codecs.decoder import Decoder

LOOKAHEAD = 1000


class JoinState(StageState):
    """What a gathering stage remembers: what waits, and what is decided but not yet given.

    Attributes:
        decoder: of this run.
        left_out: counts what the stage's rules leave out.
    """

    def __init__(self, stage: "JoinStage") -> None:
        self.stage = stage
        self.gatherer = stage.gatherer()
        self.decoder = stage.decoder()
        self.left_out: Counter[str] = Counter()

    def snapshot(self) -> JsonValue:
        """Return the addresses of the samples that wait, and of the groups that are ready."""
        return {
            "waiting": [item.address for item in self.gatherer.pending_samples()],
            "ready": [group.addresses for group in self.gatherer.ready],
        }

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch the samples, and take them in again."""
        parts = as_object(state)
        waiting, ready = as_list(parts["waiting"]), [as_list(group) for group in as_list(parts["ready"])]
        samples = iter(fetch([*waiting, *(address for group in ready for address in group)]))
        for address in waiting:
            self.gatherer.feed(address, next(samples))
        if self.gatherer.ready:
            raise FlowError("what waited before the snapshot does not wait now: the samples have changed")
        self.gatherer.ready.extend(self.stage.again(group, samples) for group in ready)


class JoinStage(Stage[JoinState]):
    """A stage that joins documents with their siblings; what it makes of a group is the subclass's.

    Args:
        handler: asked where that fails.
        separator: stands between a document's key and the names of its siblings.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait; None: 1000 where members are adjacent, else any number.
    """

    name = "gathering"
    needs_whole_shards = True

    def __init__(
        self,
        handler: Handler,
        separator: str,
        adjacent: bool,  # noqa: FBT001
        lookahead: float | None,
    ) -> None:
        if lookahead is None:
            lookahead = LOOKAHEAD if adjacent else float("inf")
        if lookahead < 1:
            raise UsageError(f"lookahead={lookahead}: at least one sample must be able to wait")
        if handler is not None and not callable(handler):
            raise make_handler_error(handler)
        self.handler = handler
        self.separator = separator
        self.adjacent = adjacent
        self.lookahead = lookahead

    @abstractmethod
    def describe(self, sample: Mapping[str, object]) -> SiblingRequest | None:
        """Return what a document wants, or None for a sample that is none."""

    @abstractmethod
    def candidate(self, sample: Mapping[str, object]) -> bool:
        """Tell whether a sample may be a sibling."""

    @abstractmethod
    def make_output(self, group: DocumentGroup, decoder: "Decoder | None", left_out: Counter[str]) -> object:
        """Return what becomes of a group; None leaves it out.

        Args:
            group: a document and its siblings, or a sample that belongs to none.
            decoder: what ``decoder`` returned.
            left_out: counts what is left out.
        """

    def decoder(self) -> "Decoder | None":
        """Return the decoder of one run, or None."""
        return None

    def gatherer(self, *, whole: bool = False) -> SiblingCollector:
        """Return a gatherer under this stage's rules.

        Args:
            whole: for the samples of one group, which are all there.
        """
        if whole:
            return SiblingCollector(self.describe, self.candidate, separator=self.separator, adjacent=False)
        return SiblingCollector(
            self.describe,
            self.candidate,
            separator=self.separator,
            adjacent=self.adjacent,
            lookahead=self.lookahead,
        )

    def begin(self, run: Run) -> JoinState:  # noqa: ARG002
        """Return a state in which nothing waits."""
        return JoinState(self)

    def flow(self, upstream: Iterator[Sample], state: JoinState) -> Iterator[object]:
        """Yield what becomes of the groups."""
        try:
            yield from self._flow(upstream, state)
        finally:
            if state.left_out:
                counts = ", ".join(f"{count} {what}" for what, count in sorted(state.left_out.items()))
                log.info("%s left out: %s", self.name, counts)

    def _flow(self, upstream: Iterator[Sample], state: JoinState) -> Iterator[object]:
        gatherer, origin = state.gatherer, state.origin
        ready = gatherer.ready
        for sample in _finish_after(upstream, gatherer.finish):
            if sample is not gatherer:
                gatherer.feed(origin() if origin is not None else None, sample)
            while ready:
                group = ready.popleft()
                try:
                    result = self.make_output(group, state.decoder, state.left_out)
                except Exception as exn:  # noqa: BLE001  decoders are users' code: the handler decides
                    if should_continue(self.handler, with_blame(exn, self.name, group.items[0].sample), self.name):
                        continue
                    return
                if result is not None:
                    state.address = group.addresses
                    yield result

    def again(self, addresses: Sequence[Address], samples: Iterator[Sample]) -> DocumentGroup:
        """Return the group that stands at some addresses.

        Raises:
            FlowError: they are no group any more.
        """
        gatherer = self.gatherer(whole=True)
        for address in addresses:
            gatherer.feed(address, next(samples))
        gatherer.finish()
        if len(gatherer.ready) != 1 or len(gatherer.ready[0].items) != len(addresses):
            raise FlowError(f"{len(addresses)} samples that made one before the snapshot do not now", stage=self.name)
        return gatherer.ready[0]

    def refetch(self, addresses: list[Address], fetch: Fetch, state: JoinState | None = None) -> list[object]:
        """Fetch all samples of the groups at once, and make them again."""
        groups = [as_list(group) for group in addresses]
        samples = iter(fetch([address for group in groups for address in group]))
        decoder = state.decoder if state is not None else self.decoder()
        return [self.make_output(self.again(group, samples), decoder, Counter()) for group in groups]


def _finish_after(upstream: Iterator[Any], finish: Callable[[], None]) -> Iterator[Any]:
    """Yield the samples, and, once ``finish`` was called after them, the object that it belongs to."""
    yield from upstream
    finish()
    yield finish.__self__  # type: ignore[attr-defined]


OTHERS = ("error", "pass", "drop")
Decoding = tuple[tuple[Any, ...], dict[str, Any]]


class Interleaved(JoinStage):
    """Documents; see :func:`interleaved`.

    Args:
        rules: layout, policies and limits.
        others: what to do about samples that belong to no document.
        decode: (arguments, keyword arguments) of ``decode``, or None.
        decoded: fields have been decoded, so that only other images are to be.
        json: the field of the JSON.
        handler: asked where a document fails.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait.
    """

    state_name = "Interleaved"
    name = "interleaved"

    def __init__(
        self,
        rules: DocumentRules,
        others: str,
        decode: Decoding | None,
        json: str,
        handler: Handler,
        *,
        adjacent: bool,
        lookahead: float | None,
        decoded: bool = False,
    ) -> None:
        super().__init__(handler, rules.separator, adjacent, lookahead)
        if others not in OTHERS:
            raise UsageError(f"others={others!r} is not one of {', '.join(OTHERS)}")
        self.rules = rules
        # otherwise each document is one sample
        self._searches = self.needs_whole_shards = rules.searches
        self.others = others
        self.decode = decode
        self.decoded = decoded
        self.json = json

    def decoder(self) -> "Decoder | None":
        """Return the decoder of one run, or None."""
        if self.decode is None:
            return None
        from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

        arguments, named = self.decode
        return Decoder(list(arguments), **{**named, "partial": True})

    def describe(self, sample: Mapping[str, object]) -> SiblingRequest | None:
        """Return what the document in a sample wants, or None where there is none."""
        if self.json not in sample:
            return None
        outline = parse_outline(parse_record(sample[self.json], self.json), self.rules.place)
        if outline is None:
            return None
        found = locate_images(sample, outline, self.rules)
        names = [place.names for place in found if place.kind == "sibling"]
        return SiblingRequest(names, about=(outline, found))

    def candidate(self, sample: Mapping[str, object]) -> bool:
        """Tell whether a sample holds images only."""
        if not self._searches:
            return False
        for name in sample:  # noqa: SIM110  a generator would cost more than the rest
            if name[:2] != "__" and not is_image(name):
                return False
        return True

    def make_output(self, group: DocumentGroup, decoder: "Decoder | None", left_out: Counter[str]) -> object:
        """Return the document; or the sample, where it belongs to none and passes."""
        if group.error is not None:
            raise group.error
        sample = group.items[0].sample
        if group.wants is None:
            return self._other(group, left_out)
        outline, found = group.wants.about
        gathered = DocumentParts(sample, outline, found, group.siblings, left_out, self._advice(early=group.early))
        pictures = collect_images(gathered, self.rules)
        if pictures is None:
            return None
        document = assemble_document(gathered, pictures, self.json)
        if decoder is not None:
            unseen = [number for number, picture in enumerate(pictures) if picture.unseen]
            document.decode_images(decoder, unseen if self.decoded else None)
        return document

    def _advice(self, *, early: bool) -> str:
        """Say how to find members that stand apart."""
        if early:
            return f"more than lookahead={self.lookahead} samples waited: pass a greater lookahead"
        if self.adjacent:
            return "pass adjacent=False to look in the whole shard, and shuffle after interleaved, not before"
        return "the whole shard was searched; mix and shuffle after interleaved, not before"

    def _other(self, group: DocumentGroup, left_out: Counter[str]) -> object:
        sample = group.items[0].sample
        if self.others == "error":
            raise SampleError(
                f"this sample ({_list_field_names(sample)}) is no document, and no document next to it names it in "
                "its JSON; "
                "pass others='pass' to let such samples pass, others='drop' to leave them out; if its document stands "
                f"elsewhere: {self._advice(early=group.early)}"
            )
        if self.others == "pass":
            return sample
        left_out["samples of no document"] += 1
        return None

    def __repr__(self) -> str:
        return f"interleaved(layout={self.rules.layout!r}, others={self.others!r})"


def _list_field_names(sample: object) -> str:
    if not isinstance(sample, Mapping):
        return type(sample).__name__
    return ", ".join(name for name in sample if not name.startswith("__")) or "without fields"


def parse_record(value: Any, field: str) -> Any:
    """Return what a JSON field holds, whether it was decoded or not.

    Raises:
        DecodingError: not JSON.
    """
    if value.__class__ is memoryview:
        value = bytes(value)
    if value.__class__ is not bytes and not isinstance(value, (bytes, str)):
        return value
    from webdataset.codecs.json_codec import json_loads  # noqa: PLC0415  codecs are loaded when they are used

    try:
        return json_loads(value.encode("utf-8") if isinstance(value, str) else value)
    except (ValueError, RecursionError) as error:
        raise DecodingError(
            message=f"the document's JSON cannot be read: {describe_error(error)}", field=field
        ) from error


def inherit_decoding(stages: Sequence[object]) -> Decoding | None:
    """Return the decoding that the stages before apply to fields, or None.

    Images that ``decode`` cannot see (base64 in JSON) are then decoded as those that it can.
    """
    for stage in reversed(stages):
        if isinstance(stage, FilterFunction) and stage.f is _decode:
            known = ("pre", "post", "only", "trust")
            return stage.args, {name: value for name, value in stage.kw.items() if name in known}
    return None


def interleaved_behind(stages: Sequence[object], layout: str = "auto", **options: Any) -> Interleaved:
    """Return the stage for a pipeline of these stages: images are decoded as its ``decode`` does.

    Args:
        stages: of a pipeline.
        layout: as for :func:`interleaved`.
        **options: as for :func:`interleaved`.
    """
    stage = interleaved(layout, **options)
    before = inherit_decoding(stages) if stage.decode is None else None
    if before is None:
        return stage
    return Interleaved(
        stage.rules,
        stage.others,
        before,
        stage.json,
        stage.handler,
        adjacent=stage.adjacent,
        lookahead=stage.lookahead,
        decoded=True,
    )


def _check_rules(rules: Mapping[str, object]) -> None:
    """Raise for keyword arguments that there are not. Raises TypeError: it names the one that was probably meant."""
    known = [field.name for field in dataclasses.fields(DocumentRules)]
    check_keywords(
        "interleaved", rules, [*known, "decode", "others", "handler", "json", "adjacent", "lookahead", "trust"]
    )


def interleaved(
    layout: str = "auto",
    *,
    decode: str | Callable[..., Any] | Sequence[Any] | None = None,
    others: str = "error",
    handler: Handler = reraise_exception,
    json: str = "json",
    adjacent: bool = True,
    lookahead: int | None = None,
    trust: str | None = None,
    **rules: Any,
) -> Interleaved:
    """Put interleaved documents together: MMC4, OBELICS, MINT-1T and their kin, in any of four layouts.

    ============ ============================================= =====================================================
    ``siblings`` ``D.json``, ``D-<name>.jpg`` …, in any order  the JSON names the images, or they are numbered from 0
    ``inline``   ``D.json``                                    base64 in ``image_info[…].image_base64``
    ``fields``   ``D.json``, ``D.0.jpg``, ``D.1.jpg`` …        by name, or by number
    ``pages``    ``D.json``, ``D.tiff``                        the k-th image is the k-th page
    ============ ============================================= =====================================================

    Args:
        layout: one of these, or ``auto``: each image wherever it is.
        decode: decode the images: an image spec, a function ``f(key, bytes)``, or a list of these, as for ``decode``.
            Without it they stay bytes, and a ``decode`` after this stage decodes them.
        others: what to do about samples that belong to no document: ``error``, ``pass`` or ``drop``.
        handler: asked where a document fails: true skips it, false ends the stage.
        json: the field that holds the JSON.
        adjacent: the members of a document stand next to each other. False looks for them in the whole shard.
        lookahead: the greatest number of samples that wait for others; beyond it the oldest is decided as it is. None:
            1000 where members are adjacent, else any number.
        trust: ``strict``, ``safe`` or ``full``: what decoding may execute.
        **rules: ``match``, ``separator``, ``place``, ``ties``, ``missing_image``, ``placeholder``, ``min_similarity``,
            ``min_image_bytes``, ``max_images``, ``keep``, ``min_images``; see
            :class:`webdataset.samples.documents.document.DocumentRules`.

    Returns:
        A stage. It gives a :class:`webdataset.samples.documents.document.Document` for each document.

    Raises:
        UsageError: arguments that cannot mean anything.
        MissingImage: an image that the JSON names is not there (when it runs).
        SampleError: a document that contradicts itself, or a sample that belongs to none (when it runs).
        DecodingError: JSON or base64 that cannot be read (when it runs).

    Flow: in the order in which documents are complete; holds the members of one document, or of the whole shard;
    resumes exactly.
    """
    _check_rules(rules)
    decoding = None if decode is None else (_list_decoders(decode), {} if trust is None else {"trust": trust})
    return Interleaved(
        DocumentRules(layout=layout, **rules),
        others,
        decoding,
        json,
        handler,
        adjacent=adjacent,
        lookahead=lookahead,
    )


def _list_decoders(given: str | FieldDecoder | Iterable[str | FieldDecoder]) -> tuple[str | FieldDecoder, ...]:
    """Return what ``decode=`` names, one or several. Raises UsageError: it names no decoder."""
    decoders = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    make_decoding(*decoders)
    return decoders


_LISTS = ("image_info", "images", "image", "image_name_list", "videos", "video")
_NAMES = ("image_name", "name", "member")


class SiblingFields(JoinStage):
    """Siblings as fields; see :func:`sibling_fields`.

    Args:
        named: take only what the JSON names.
        json: the field of the JSON.
        handler: asked where a document fails.
        separator: stands between a document's key and the names of its siblings.
        adjacent: a document's members stand next to each other.
        lookahead: the greatest number of samples that wait.
    """

    state_name = "SiblingFields"
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

    def describe(self, sample: Mapping[str, object]) -> SiblingRequest | None:
        """Return what the document in a sample wants, or None where there is none."""
        if self.json not in sample:
            return None
        if not self.named:
            return SiblingRequest([], all=True, whole=True)
        front = str(sample["__key__"]).rpartition("/")[2] + self.separator
        found: list[tuple[str, ...]] = []
        for name in dict.fromkeys(list_named_files(parse_record(sample[self.json], self.json))):
            called = stem(name)
            found.append((called, called[len(front) :]) if called.startswith(front) else (called,))
        return SiblingRequest(found, whole=True)

    def candidate(self, sample: Mapping[str, object]) -> bool:  # noqa: ARG002  whatever it holds
        """Return True: any sample without a JSON may be a sibling."""
        return True

    def make_output(self, group: DocumentGroup, decoder: "Decoder | None", left_out: Counter[str]) -> object:  # noqa: ARG002  nothing is decoded
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


def list_named_files(record: object) -> Iterator[str]:
    """Yield the names of images and videos that a JSON object lists."""
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

    For JSON of any kind; :func:`~webdataset.stages.interleaved_documents.interleaved` understands documents. Samples
    that are
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
