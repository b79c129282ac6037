"""Documents out of samples: texts and images in one order, however the shard stores them.

Flows in: samples, one for each key. Flows out: one :class:`~webdataset.samples.documents.document.Document` for each
document, when all its images are there. Remembers the addresses of what waits. Never joins two shards, never takes an
image that the document's JSON does not name.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webdataset.ground.errors import DecodingError, SampleError, UsageError, said
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.samples.documents.assembly import Gathered, assembled, pictures_of
from webdataset.samples.documents.names import is_image
from webdataset.samples.documents.outline import outlined
from webdataset.samples.documents.places import places
from webdataset.samples.documents.rules import DocumentRules
from webdataset.samples.documents.siblings import Group, Wants

from .base import FilterFunction
from .decoding import _decode
from .gathering import Gathering

OTHERS = ("error", "pass", "drop")
Decoding = tuple[tuple[Any, ...], dict[str, Any]]


class Interleaved(Gathering):
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
        self._searches = rules.searches
        self.others = others
        self.decode = decode
        self.decoded = decoded
        self.json = json

    def decoder(self) -> Any:
        """Return the decoder of one run, or None."""
        if self.decode is None:
            return None
        from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

        arguments, named = self.decode
        return Decoder(list(arguments), **{**named, "partial": True})

    def describe(self, sample: Mapping[str, Any]) -> Wants | None:
        """Return what the document in a sample wants, or None where there is none."""
        if self.json not in sample:
            return None
        outline = outlined(record(sample[self.json], self.json), self.rules.place)
        if outline is None:
            return None
        found = places(sample, outline, self.rules)
        names = [place.names for place in found if place.kind == "sibling"]
        return Wants(names, about=(outline, found))

    def candidate(self, sample: Mapping[str, Any]) -> bool:
        """Tell whether a sample holds images only."""
        if not self._searches:
            return False
        for name in sample:  # noqa: SIM110  a generator would cost more than the rest
            if name[:2] != "__" and not is_image(name):
                return False
        return True

    def made(self, group: Group, decoder: Any, left_out: Counter[str]) -> Any:
        """Return the document; or the sample, where it belongs to none and passes."""
        if group.error is not None:
            raise group.error
        sample = group.items[0].sample
        if group.wants is None:
            return self._other(group, left_out)
        outline, found = group.wants.about
        gathered = Gathered(sample, outline, found, group.siblings, left_out, self._advice(early=group.early))
        pictures = pictures_of(gathered, self.rules)
        if pictures is None:
            return None
        document = assembled(gathered, pictures, self.json)
        if decoder is not None:
            unseen = [number for number, picture in enumerate(pictures) if picture.unseen]
            document.decode_images(decoder, unseen if self.decoded else None)
        return document

    def _advice(self, *, early: bool) -> str:
        """Say how to find members that stand apart."""
        if early:
            return f"more than lookahead={self.lookahead} samples waited: pass a greater lookahead"
        if self.adjacent:
            return "pass adjacent=False to look in the whole shard, and shuffle behind interleaved, not before"
        return "the whole shard was searched; mix and shuffle behind interleaved, not before"

    def _other(self, group: Group, left_out: Counter[str]) -> Any:
        sample = group.items[0].sample
        if self.others == "error":
            raise SampleError(
                f"this sample ({_shown(sample)}) is no document, and no document next to it names it in its JSON; "
                "pass others='pass' to let such samples pass, others='drop' to leave them out; if its document stands "
                f"elsewhere: {self._advice(early=group.early)}"
            )
        if self.others == "pass":
            return sample
        left_out["samples of no document"] += 1
        return None

    def __repr__(self) -> str:
        return f"interleaved(layout={self.rules.layout!r}, others={self.others!r})"


def _shown(sample: Any) -> str:
    if not isinstance(sample, Mapping):
        return type(sample).__name__
    return ", ".join(name for name in sample if not name.startswith("__")) or "without fields"


def record(value: Any, field: str) -> Any:
    """Return what a JSON field holds, whether it was decoded or not.

    Args:
        value: bytes, text, or what they decode to.
        field: its name.

    Raises:
        DecodingError: not JSON.
    """
    if value.__class__ is not bytes and not isinstance(value, (bytes, str)):
        return value
    from webdataset.codecs.json_fields import json_loads  # noqa: PLC0415  codecs are loaded when they are used

    try:
        return json_loads(value.encode("utf-8") if isinstance(value, str) else value)
    except (ValueError, RecursionError) as error:
        raise DecodingError(message=f"the document's JSON cannot be read: {said(error)}", field=field) from error


def inherited(stages: Sequence[Any]) -> Decoding | None:
    """Return the decoding that the stages before apply to fields, or None.

    Images that ``decode`` cannot see (base64 in JSON) are then decoded as those that it can.

    Args:
        stages: of a pipeline.
    """
    for stage in reversed(stages):
        if isinstance(stage, FilterFunction) and stage.f is _decode:
            known = ("pre", "post", "only", "trust")
            return stage.args, {name: value for name, value in stage.kw.items() if name in known}
    return None


def interleaved_behind(stages: Sequence[Any], layout: str = "auto", **options: Any) -> Interleaved:
    """Return the stage for a pipeline of these stages: images are decoded as its ``decode`` does.

    Args:
        stages: of a pipeline.
        layout: as for :func:`interleaved`.
        **options: as for :func:`interleaved`.
    """
    stage = interleaved(layout, **options)
    before = inherited(stages) if stage.decode is None else None
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
            Without it they stay bytes, and a ``decode`` behind this stage decodes them.
        others: what to do about samples that belong to no document: ``error``, ``pass`` or ``drop``.
        handler: asked where a document fails: true skips it, false ends the stage.
        json: the field that holds the JSON.
        adjacent: the members of a document stand next to each other. False looks for them in the whole shard.
        lookahead: the greatest number of samples that wait for others; beyond it the oldest is decided as it is. None:
            1000 where members are adjacent, else any number.
        trust: ``strict``, ``safe`` or ``full``: what decoding may execute.
        **rules: ``match``, ``separator``, ``place``, ``ties``, ``missing_image``, ``placeholder``, ``min_similarity``,
            ``min_image_bytes``, ``max_images``, ``keep``, ``min_images``; see
            :class:`webdataset.samples.documents.rules.DocumentRules`.

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
    if callable(decode) or isinstance(decode, str):
        decode = [decode]
    decoding = None if decode is None else (tuple(decode), {} if trust is None else {"trust": trust})
    return Interleaved(
        DocumentRules(layout=layout, **rules),
        others,
        decoding,
        json,
        handler,
        adjacent=adjacent,
        lookahead=lookahead,
    )
