"""Fields' bytes into values, as stages: decode, xdecode.

Flows in: samples whose fields are bytes. Flows out: samples with values. The codecs are loaded when a stage starts to
flow, so that building a pipeline costs nothing.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from webdataset.ground.errors import DecodingError, UsageError
from webdataset.ground.policies import Handler, reraise_exception

from .base import transform
from .blame import applied

StreamDecoder = Callable[[io.BytesIO], Any]
Rule = tuple[str, StreamDecoder | Literal[False] | None]


def _decode(
    source: Iterator[Any],
    *args: str | Callable[[str, bytes], Any],
    handler: Handler = reraise_exception,
    pre: Iterable[Callable[[str, bytes], Any]] | None = None,
    post: Iterable[Callable[[str, bytes], Any]] | None = None,
    only: str | Iterable[str] | None = None,
    partial: bool = False,
    trust: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Decode fields by their extensions.

    Args:
        source: samples whose fields are bytes.
        *args: image specs (``"rgb"``, ``"pil"``, ``"torchrgb8"``, …) or functions ``f(key, bytes)``, where key is
            ``".jpg"`` and None leaves the field to the next one; asked in turn, before the basic decoders. ``"auto"``
            also decodes the formats that no published version of webdataset decodes (YAML, JSON lines, safetensors,
            zst, …); their names (``"yaml zst"``) decode some of them.
        handler: what to do about a sample that cannot be decoded: true skips it, false ends the stage.
        pre: functions that are asked first, instead of the decompression of ``.gz`` fields.
        post: functions that are asked last, instead of the basic decoders (json, txt, cls, npy, …).
        only: names of the fields to decode; all of them without it.
        partial: leave fields alone that are no bytes; otherwise they are errors.
        trust: ``strict``, ``safe`` or ``full``: what decoding may execute.

    Yields:
        New dictionaries with values.

    Raises:
        DecodingError: a field that cannot be decoded; url, key and field are named and the cause is chained.
        UnsafeContent: a field that would run code.
        UsageError: an argument that is neither a spec nor a function.

    Flow: in order; holds nothing; resumes exactly.
    """
    from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

    for given in args:
        if not isinstance(given, str) and not callable(given):
            raise UsageError(f"decode takes image specs and functions f(key, bytes), not {given!r}")
    decoder = Decoder(list(args), pre=pre, post=post, only=only, partial=partial, trust=trust)
    return applied(source, decoder.decode, handler, "decode")


def decode_bin(stream: io.BytesIO) -> bytes:
    """Return the bytes of a stream."""
    return stream.read()


def decode_text(stream: io.BytesIO) -> str:
    """Return the UTF-8 text of a stream."""
    return stream.read().decode("utf-8")


def decode_pickle(stream: io.BytesIO) -> Any:
    """Return the value of a pickle, as far as the trust level in force allows.

    Raises:
        UnsafeContent: it would run code that is not on the allow-list.
    """
    from webdataset.codecs.pickles import unpickle_loads  # noqa: PLC0415  codecs are loaded when they are used

    return unpickle_loads(stream.read())


default_decoders: list[Rule] = [("*.bin", decode_bin), ("*.txt", decode_text), ("*.pyd", decode_pickle)]


def find_decoder(decoders: Sequence[Rule], path: str) -> Any:
    """Return the decoder of the last rule that matches, or None.

    Args:
        decoders: pairs (pattern, decoder).
        path: a field's name; its last path component in lower case is compared, with and without a dot before it.
    """
    name = path.rpartition("/")[2].lower()
    for pattern, decoder in reversed(decoders):
        if fnmatchcase(name, pattern) or fnmatchcase("." + name, pattern):
            return decoder
    return None


def _xdecode(
    source: Iterator[Any],
    /,
    *args: Rule,
    must_decode: bool = True,
    defaults: Sequence[Rule] = default_decoders,
    handler: Handler = reraise_exception,
    **kw: StreamDecoder | Literal[False] | None,
) -> Iterator[dict[str, Any]]:
    """Decode fields by file name patterns, with functions that read streams.

    Args:
        source: samples whose fields are bytes. Fields whose names start with ``__`` are left alone.
        *args: rules (pattern, ``f(stream)``); a pattern is compared with the last path component in lower case. Where
            several match, the last rule counts. False instead of a function leaves the field as it is.
        must_decode: a field that no rule matches is an error; otherwise it is left as it is.
        defaults: rules that come before all others: bin, txt, and pyd.
        handler: what to do about a sample that cannot be decoded: true skips it, false ends the stage.
        **kw: more rules, extension=f.

    Yields:
        New dictionaries.

    Raises:
        DecodingError: no rule matches a field.
        Exception: whatever a rule's function raises.

    Flow: in order; holds nothing; resumes exactly.
    """
    rules = [*defaults, *args, *((f"*.{extension}", function) for extension, function in kw.items())]

    def decoded(sample: Mapping[str, Any]) -> dict[str, Any]:
        result = dict(sample)
        for name, value in sample.items():
            if name.startswith("__"):
                continue
            function = find_decoder(rules, name)
            if function:
                result[name] = function(
                    io.BytesIO(value) if isinstance(value, bytes | bytearray | memoryview) else value
                )
            elif function is None and must_decode:
                raise DecodingError(message=f"no rule of xdecode matches field {name!r}", field=name)
        return result

    return applied(source, decoded, handler, "xdecode")


decode = transform(_decode)
xdecode = transform(_xdecode)
