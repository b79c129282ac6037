"""Decodes samples: a chain of handlers over the fields of each sample.

For each field name the chain is resolved once into a *plan*, one function of the bytes; plans are dropped when the
table of decoders changes. A decoder never changes the sample it is given, and every failure names shard, sample and
field.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial as bound
from typing import Any

from webdataset.codecs.handlers import (
    AUTO_KINDS,
    Continue,
    Handler,
    auto_handlers,
    default_post_handlers,
    default_pre_handlers,
    is_key_handler,
    keep_bytes,
)
from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS, imagehandler, imagespecs
from webdataset.codecs.registry import BytesDecoder, LiveTable
from webdataset.core.errors import CodecError, DecodingError, MissingExtra, UsageError, describe_error
from webdataset.core.optional_imports import loaded_module
from webdataset.core.upstream_utils import check_flags
from webdataset.samples.documents.document import Document

Sample = dict[str, Any]
MOST_PLANS = 4096
# what fields of shards are: memoryviews where files are mapped
_STORED = frozenset([bytes, memoryview])
# functions of this package that decode; users write their names as texts
_MEDIA_FUNCTIONS = ("audio", "video", "video_clips", "torch_audio", "torch_video", "torch_safetensors")


class _Plans(dict[str, BytesDecoder]):
    """Plans by field name, made when a name is first met; bounded, for names may come from anywhere."""

    def __init__(self, make: Callable[[str], BytesDecoder]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> BytesDecoder:
        if len(self) >= MOST_PLANS:
            self.clear()
        plan = self[name] = self._make(name)
        return plan


class Decoder:
    """Decodes samples by a chain of handlers: ``pre``, then ``handlers``, then ``post``.

    Called with a sample it returns the decoded sample; called with an iterable of samples (a dataset) it returns an
    iterable over the decoded samples. Several handlers may be given as a list or one after the other.

    Args:
        handlers: handlers ``f(key, data)`` (keys start with a dot), image specs ("rgb"), ``"auto"`` for formats that
            no published version of webdataset decodes, names of some of them ("yaml zst"), or a list of these.
        *more: further handlers where the first was no list; else ``pre``, ``post``, ``only``, ``partial`` by position.
        pre: handlers to ask first; default: the one that decompresses ``.gz``.
        post: handlers to ask after these; default: the table of basic decoders. ``"auto"`` is asked last.
        only: decode just these fields (names without dots at their start; a list, or a string split at spaces).
        partial: leave values alone that are no bytes; else they are errors.
        trust: ``strict``, ``safe`` or ``full``; None means the level in force (see ``webdataset.core.trust``).

    Raises:
        UsageError: an unknown image spec or format.
    """

    def __init__(
        self,
        handlers: Any = (),
        *more: Any,
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        trust: str | None = None,
    ) -> None:
        if isinstance(handlers, (list, tuple)):
            pre, post, only, partial = _positional(more, (pre, post, only, partial))
            own = list(handlers)
        else:
            own = [handlers, *more]
        chosen, kinds = _parse_handlers(own)
        self.handlers: list[Any] = [
            *(default_pre_handlers if pre is None else pre),
            *chosen,
            *(default_post_handlers if post is None else post),
            *auto_handlers(kinds),
        ]
        self.only = set(only.split() if isinstance(only, str) else only) if only is not None else None
        check_flags(partial=partial)
        self.partial = partial
        self.trust = trust
        self._forget()

    def _forget(self) -> None:
        self._changes = LiveTable.changes
        self._plans = _Plans(self._plan_field)
        # names that are known to be metadata
        self._metadata: set[str] = set()
        self._chains: dict[tuple[str, int], BytesDecoder] = {}

    def decode(self, sample: Sample) -> Sample:
        """Decode one sample.

        Args:
            sample: fields to bytes. Names starting with ``__`` are metadata: bytes become text where they are UTF-8.

        Returns:
            A new dict with the same names in the same order. Of a document, a document whose images are decoded.

        Raises:
            DecodingError: a field does not decode; the cause is chained.
            UnsafeContent: a field's decoding would run code that is not allowed.
            MissingExtra: a field's format needs a package that is not installed.
            UsageError: the sample is no dict.
        """
        if isinstance(sample, Document):
            return sample.decode_with(self)
        if self._changes != LiveTable.changes:
            self._forget()
        plans, metadata = self._plans, self._metadata
        decoded: Sample = {}
        field = ""
        try:
            for field, data in sample.items():
                if type(data) in _STORED:
                    plan = plans[field]
                    decoded[field] = data if plan is keep_bytes else plan(data if type(data) is bytes else bytes(data))
                elif field in metadata:
                    decoded[field] = data
                elif field[:2] == "__":
                    decoded[field] = data
                    if len(metadata) < MOST_PLANS:
                        metadata.add(field)
                else:
                    decoded[field] = self._unusual(field, data)
        except (CodecError, MissingExtra) as error:
            error.locate(url=_metadata_text(sample, "__url__"), key=_metadata_text(sample, "__key__"), field=field)
            raise
        except Exception as error:  # handlers are users' code: whatever they raise is a failure of this field
            raise _decoding_error(error, sample, field) from error
        return decoded

    def _unusual(self, field: str, data: object) -> object:
        if self.only is not None and field not in self.only:
            return data
        if isinstance(data, (bytes, bytearray, memoryview)):
            return self._plans[field](bytes(data))
        if data is None:
            raise DecodingError("the field's value is None, where bytes were expected")
        if self.partial:
            return data
        raise DecodingError(
            f"the field's value is of type {type(data).__name__}, not bytes; "
            "pass partial=True to leave such values as they are (has the sample been decoded already?)"
        )

    def _plan_field(self, field: str) -> BytesDecoder:
        if field.startswith("__"):
            return _text_if_utf8
        if self.only is not None and field not in self.only:
            return keep_bytes
        return self._chain("." + field, 0)

    def _chain(self, key: str, start: int) -> BytesDecoder:
        """Return one function for all that the handlers from ``start`` on have to say on data under ``key``."""
        steps: list[tuple[int, bool, BytesDecoder]] = []
        for index, handler in enumerate(self.handlers[start:], start):
            if is_key_handler(handler):
                function = handler.claim(key, self.trust)
                if function is not None:
                    steps.append((index, handler.final, function))
                    # handlers after it are never asked, and may look for installed packages
                    if handler.final:
                        break
            else:
                steps.append((index, False, bound(handler, key)))
        if not steps:
            return keep_bytes
        if steps[0][1]:
            return steps[0][2]
        return bound(self._ask, tuple(steps))

    def _ask(self, steps: tuple[tuple[int, bool, BytesDecoder], ...], data: bytes) -> Any:
        for index, final, function in steps:
            value = function(data)
            if final:
                return value
            if isinstance(value, Continue):
                return self._continue_chain(value.key, 0 if value.again else index + 1)(value.data)
            if value is not None:
                return value
        return data

    def _continue_chain(self, key: str, start: int) -> BytesDecoder:
        chain = self._chains.get((key, start))
        if chain is None:
            if len(self._chains) >= MOST_PLANS:
                self._chains.clear()
            chain = self._chains[key, start] = self._chain(key, start)
        return chain

    def decode1(self, key: str, data: bytes) -> Any:
        """Decode the bytes of one field.

        Args:
            key: the field's name, with or without a dot at its start.
            data: its bytes.
        """
        if self._changes != LiveTable.changes:
            self._forget()
        return self._continue_chain("." + key, 0)(data)

    def __call__(self, sample: object) -> Any:
        """Decode a sample (a dict), or each sample of an iterable.

        Raises:
            UsageError: neither a dict nor an iterable.
        """
        if isinstance(sample, dict):
            return self.decode(sample)
        if not isinstance(sample, Iterable):
            raise UsageError(f"a Decoder takes a sample (a dict) or a dataset, not {type(sample).__name__}")
        return DecodedSamples(self, sample)

    def __getstate__(self) -> dict[str, Any]:
        kept = {
            name: value
            for name, value in dict(self.__dict__).items()
            if name not in ("_plans", "_chains", "_changes", "_metadata")
        }
        # where it is not loaded, none were added
        pickles: Any = loaded_module("webdataset.codecs.safe_pickle")
        return {**kept, "_safe_globals": () if pickles is None else pickles.added_safe_globals()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        added = state.pop("_safe_globals", ())
        if added:
            from webdataset.codecs.safe_pickle import add_safe_globals  # noqa: PLC0415  most datasets hold no pickles

            add_safe_globals(added)
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"Decoder({self.handlers!r})"


class DecodedSamples:
    """The samples of a dataset, decoded; may be iterated as often as the dataset."""

    def __init__(self, decoder: Decoder, samples: Iterable[Sample]) -> None:
        self.decoder = decoder
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        """Yield decoded samples."""
        return map(self.decoder.decode, self.samples)


def _parse_handlers(given: list[Any]) -> tuple[list[Any], list[str]]:
    """Return handlers for what a decoder was given, and which formats it decodes beyond the published ones."""
    parts = [part for each in given for part in (each.split() if isinstance(each, str) else [each])]
    names = [part for part in parts if isinstance(part, str)]
    wrong = [part for part in parts if not isinstance(part, str) and not callable(part)]
    if wrong:
        raise UsageError(f"a decoder takes image specs, formats and functions f(key, bytes), not {wrong[0]!r:.60}")
    kinds = [*AUTO_KINDS, *AUTO_IMAGE_EXTENSIONS] if "auto" in names else names
    images = [kind for kind in kinds if kind in AUTO_IMAGE_EXTENSIONS]
    specs = [name for name in names if name in imagespecs]
    for name in names:
        if name in AUTO_IMAGE_EXTENSIONS and not specs:
            raise UsageError(f"decode({name!r}) does not say to what; name an image spec too: decode('rgb', {name!r})")
        if not (name == "auto" or name in AUTO_KINDS or name in images or name in imagespecs):
            if name in _MEDIA_FUNCTIONS:
                raise UsageError(f"sound and video are decoded by functions, not by names: write decode(wds.{name})")
            raise UsageError(
                f"unknown image spec or format {name!r}; there are the specs {', '.join(imagespecs)}, the formats "
                f"{', '.join((*AUTO_KINDS, *AUTO_IMAGE_EXTENSIONS))}, and 'auto' for all these formats"
            )
    extensions = [*IMAGE_EXTENSIONS, *images]
    handlers = [
        imagehandler(part, extensions) if isinstance(part, str) else part
        for part in parts
        if not isinstance(part, str) or part in imagespecs
    ]
    return handlers, [kind for kind in kinds if kind in AUTO_KINDS]


def _positional(given: tuple[Any, ...], named: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(given) > len(named):
        raise UsageError("Decoder takes a list of handlers and then pre, post, only and partial")
    return given + named[len(given) :]


def _text_if_utf8(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _metadata_text(sample: Mapping[str, object], name: str) -> str | None:
    value = sample.get(name)
    return None if value is None else str(value)


def _decoding_error(error: Exception, sample: object, field: str) -> DecodingError | UsageError:
    if not isinstance(sample, Mapping):
        return UsageError(
            f"decode takes samples that are dicts, and got {type(sample).__name__}: "
            "write it before to_tuple, or any other stage that takes fields out"
        )
    return DecodingError(
        _metadata_text(sample, "__url__"),
        _metadata_text(sample, "__key__"),
        field,
        sample,
        message=f"a field could not be decoded: {describe_error(error)}",
    )


default_decoder = Decoder([])
