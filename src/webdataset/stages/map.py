"""Applies functions to samples: map, map_dict, map_tuple, decode, xdecode, labels, info and log_keys.

Results come in the order of the samples; no sample is held back. The error of a user's function names the function
and its place in the code, and the stage's handler decides what happens.

Decoding turns the bytes of fields into values; the codecs are loaded when the stage begins to flow, so that building
a pipeline costs nothing. Labels add ``__source__`` and ``__tags__``, or keep some of the fields. ``info`` and
``log_keys`` pass the samples unchanged, and write to a text stream or a log file.
"""

import functools
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Literal, SupportsIndex, TextIO

from webdataset.core.error_handlers import Handler, count_drop, reraise_exception, should_continue
from webdataset.core.errors import DecodingError, UsageError
from webdataset.core.trust import trust_level
from webdataset.stages import argument_checks
from webdataset.stages.base import (
    Item,
    Outcome,
    Sample,
    StageState,
    TransparentFunction,
    map_items,
    observation,
    stage_title,
    transform,
    with_blame,
)
from webdataset.stages.fields import missing

StreamDecoder = Callable[[io.BytesIO], object]
FieldDecoder = Callable[[str, bytes], Any]
Rule = tuple[str, StreamDecoder | Literal[False] | None]


def _decode(
    source: Iterator[Sample],
    *args: str | FieldDecoder,
    handler: Handler = reraise_exception,
    pre: Iterable[FieldDecoder] | None = None,
    post: Iterable[FieldDecoder] | None = None,
    only: str | Iterable[str] | None = None,
    partial: bool = False,
    trust: str | None = None,
) -> Iterator[Sample]:
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

    decoder = Decoder(list(args), pre=pre, post=post, only=only, partial=partial, trust=trust)
    return map_items(source, decoder.decode, handler, "decode")


def decode_bin(stream: io.BytesIO) -> bytes:
    """Return the bytes of a stream."""
    return stream.read()


def decode_text(stream: io.BytesIO) -> str:
    """Return the UTF-8 text of a stream."""
    return stream.read().decode("utf-8")


def decode_pickle(stream: io.BytesIO) -> object:
    """Return the value of a pickle, as far as the trust level in force allows.

    Raises:
        UnsafeContent: it would run code that is not on the allow-list.
    """
    from webdataset.codecs.safe_pickle import unpickle_loads  # noqa: PLC0415  codecs are loaded when they are used

    return unpickle_loads(stream.read())


default_decoders: list[Rule] = [("*.bin", decode_bin), ("*.txt", decode_text), ("*.pyd", decode_pickle)]


def find_decoder(decoders: Sequence[Rule], path: str) -> StreamDecoder | Literal[False] | None:
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
    source: Iterator[Sample],
    /,
    *args: Rule,
    must_decode: bool = True,
    defaults: Sequence[Rule] = default_decoders,
    handler: Handler = reraise_exception,
    **kw: StreamDecoder | Literal[False] | None,
) -> Iterator[Sample]:
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

    def decode_fields(sample: Sample) -> Sample:
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

    return map_items(source, decode_fields, handler, "xdecode")


def _check_decoders(given: object) -> None:
    """Raise UsageError where ``decode`` was given something that is no decoder, or a spec that is not known."""
    from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded where decoders are named

    for part in given if isinstance(given, tuple) else ():
        if not isinstance(part, str) and not callable(part):
            raise UsageError(
                f"decode takes image specs and functions f(key, bytes), not {argument_checks.show_value(part)}: write "
                "decode('rgb'), or decode(wds.handle_extension('x', function))"
            )
    Decoder(given)


def _check_handlers(given: object) -> None:
    takes = "pre= and post= take a list of functions f(key, bytes)"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{takes}, not {argument_checks.show_value(given)}: write pre=[function]")
    # an iterator can be asked once
    if isinstance(given, tuple | list):
        argument_checks.make_functions_check(takes, "pre=[function]")(given)


def _check_only(given: object) -> None:
    if not isinstance(given, Iterable):
        raise UsageError(f"only= names fields, not {argument_checks.show_value(given)}: write only='jpg cls'")


def _check_trust(given: object) -> None:
    trust_level(given)  # type: ignore[arg-type]


decode = transform(
    _decode,
    state_name="_decode",
    args=_check_decoders,
    pre=_check_handlers,
    post=_check_handlers,
    only=_check_only,
    partial=argument_checks.make_flag_check("partial"),
    trust=_check_trust,
)


def _check_rules(rules: object) -> None:
    for rule in rules if isinstance(rules, Iterable) else [rules]:
        if not isinstance(rule, tuple | list) or len(rule) != 2 or not isinstance(rule[0], str):
            raise UsageError(
                f"a rule of xdecode is a pair (pattern, function of a stream), not {argument_checks.show_value(rule)}: "
                "write ('*.txt', function)"
            )
        _check_streams((rule[1],))


_check_streams = argument_checks.make_functions_check(
    "xdecode takes functions of a stream, or False to leave a field as it is", "xdecode(txt=function)", False, None
)
xdecode = transform(_xdecode, state_name="_xdecode", args=_check_rules, defaults=_check_rules, kw=_check_streams)


def _add_label(source: Iterator[Sample], name: str, tags: Mapping[str, object] | None = None) -> Iterator[Sample]:
    """Say in each sample where it came from, in place.

    Args:
        source: samples that are dictionaries.
        name: put into ``__source__``.
        tags: copied into ``__tags__``, a dictionary of its own for each sample; None for no such field.

    Yields:
        The same dictionaries.

    Flow: in order; holds nothing; resumes exactly.
    """
    for sample in source:
        sample["__source__"] = name
        if tags is not None:
            sample["__tags__"] = dict(tags)
        yield sample


def _keep_fields(source: Iterator[Sample], *names: str) -> Iterator[Sample]:
    """Keep some fields, and those whose names begin with ``__``.

    Args:
        source: samples that are dictionaries.
        *names: the fields; one that a sample lacks is no error.

    Yields:
        New dictionaries.

    Flow: in order; holds nothing; resumes exactly.
    """
    wanted = frozenset(names)
    for sample in source:
        yield {name: value for name, value in sample.items() if name in wanted or name[:2] == "__"}


def _keep_first(source: Iterator[Sample], *names: str) -> Iterator[Sample]:
    """Keep the first of some fields, under its last component (``nrm.jpg`` as ``jpg``), and what begins with ``__``.

    Args:
        source: samples that are dictionaries.
        *names: the fields, in the order in which they are tried.

    Yields:
        New dictionaries.

    Raises:
        MissingField: a sample has none of them.

    Flow: in order; holds nothing; resumes exactly.
    """
    for sample in source:
        result = {name: value for name, value in sample.items() if name[:2] == "__"}
        for name in names:
            if name in sample:
                result[name.rpartition(".")[2]] = sample[name]
                break
        else:
            raise missing(list(names), sample)
        yield result


add_label = transform(_add_label, state_name="_add_label")
keep_fields = transform(_keep_fields, state_name="_keep_fields")
keep_first = transform(_keep_first, state_name="_keep_first")


Function = Callable[[Any], Any]


def _map(source: Iterator[object], f: Function, handler: Handler = reraise_exception) -> Iterator[object]:
    """Apply a function to every sample.

    Where sample and result are dictionaries, the result takes the sample's ``__key__`` (if it has one).

    Args:
        source: samples of any type.
        f: from one sample to its result; None drops the sample.
        handler: what to do when ``f`` raises: true skips the sample, false ends the stage.

    Yields:
        The results that are not None.

    Raises:
        Exception: whatever ``f`` raises, where the handler raises it; stage, function, key and url are noted on it.

    Flow: in order; holds nothing; resumes exactly.
    """
    return _map_with_outcome(source, f, handler)


def _map_with_outcome(
    source: Iterator[object], f: Function, handler: Handler = reraise_exception, *, outcome: Outcome | None = None
) -> Iterator[object]:
    """Do what ``_map`` does, and say whether a sample has passed."""
    last: type = type(None)
    keyed = gave = False
    outcome = outcome or Outcome()
    name = ""  # in reports, once a sample was dropped
    for sample in source:
        try:
            result = f(sample)
        except Exception as exn:  # noqa: BLE001  user code: the handler decides
            if should_continue(handler, with_blame(exn, "map", sample, f), stage_title("map", f)):
                continue
            return
        if result is None:
            name = name or stage_title("map", f)
            count_drop(name)
            if not gave:
                outcome.dropped += 1
        else:
            if not gave:
                gave = outcome.gave = True
            if result is not sample:
                if type(result) is not last:  # asked once for each kind of result: isinstance is slow to say no
                    last = type(result)
                    keyed = isinstance(result, dict)
                if keyed and isinstance(sample, dict) and "__key__" in sample:
                    result["__key__"] = sample["__key__"]
            yield result
    outcome.ended = True


class Map(TransparentFunction):
    """A function applied to every sample; see :func:`map`."""

    drops = True
    name = "map"

    @property
    def function(self) -> object:
        """The user's function."""
        return self.args[0] if self.args else self.kw.get("f")

    def flow(self, upstream: Iterator[object], state: StageState | None) -> Iterator[object]:
        """Yield the results that are not None."""
        return _map_with_outcome(upstream, *self.args, **self.kw, outcome=None if state is None else state.outcome)


def _map_dict(source: Iterator[object], /, handler: Handler = reraise_exception, **kw: Function) -> Iterator[Sample]:
    """Apply functions to named fields, in place.

    Args:
        source: samples that are dictionaries.
        handler: what to do when a field is absent or a function raises: true skips the sample, false ends the stage.
        **kw: field=function.

    Yields:
        The same dictionaries, updated.

    Raises:
        MissingField: a sample lacks one of the fields (a KeyError, too).
        UsageError: a sample is not a dictionary.

    Flow: in order; holds nothing; resumes exactly.
    """
    functions = list(kw.items())

    def update(sample: object) -> Sample:
        if not isinstance(sample, dict):
            raise UsageError(f"map_dict works on dictionaries, and got {type(sample).__name__}; use map_tuple or map")
        for name, function in functions:
            if name not in sample:
                raise missing([name], sample)
            sample[name] = function(sample[name])
        return sample

    return map_items(source, update, handler, "map_dict")


def _map_tuple(
    source: Iterator[Iterable[object]], *args: Function | None, handler: Handler = reraise_exception
) -> Iterator[tuple[object, ...]]:
    """Apply one function to each position of tuples.

    Args:
        source: samples that are tuples or lists.
        *args: functions by position; None leaves its position alone, and so does a function too few. Functions too
            many are ignored.
        handler: what to do when a function raises: true skips the sample, false ends the stage.

    Yields:
        Tuples.

    Raises:
        Exception: whatever a function raises, where the handler raises it.

    Flow: in order; holds nothing; resumes exactly.
    """
    places = [(place, function) for place, function in enumerate(args) if function is not None]

    def update(sample: Iterable[object]) -> tuple[object, ...]:
        values = list(sample)
        for place, function in places:
            if place >= len(values):
                break
            try:
                values[place] = function(values[place])
            except Exception as exn:  # user code: located and raised again
                with_blame(exn, f"map_tuple: position {place}", sample, function)
                raise
        return tuple(values)

    return map_items(source, update, handler, "map_tuple")


map = transform(  # noqa: A001  upstream's name
    _map,
    Map,
    state_name="_map",
    f=argument_checks.make_function_check(
        "map takes a function of a sample", "map(function), or map_dict(jpg=function) for one field"
    ),
)
map_dict = transform(
    _map_dict,
    state_name="_map_dict",
    kw=argument_checks.make_functions_check("map_dict takes a function for each field", "map_dict(jpg=function)"),
)
map_tuple = transform(
    _map_tuple,
    state_name="_map_tuple",
    args=argument_checks.make_functions_check(
        "map_tuple takes a function for each element, or None to leave it", "map_tuple(function, None)", None
    ),
)


def transform_with(sample: Sequence[object], transformers: Sequence[Function | None] | None) -> Sequence[object]:
    """Apply one function to each value of a sequence.

    Args:
        sample: the values.
        transformers: functions by position, None for identity; shorter than ``sample`` is fine.

    Returns:
        A list of the results, or ``sample`` itself where there is nothing to apply.

    Raises:
        UsageError: more functions than values.
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise UsageError(f"{len(transformers)} functions for {len(sample)} values")
    results = list(sample)
    for place, function in enumerate(transformers):
        if function is not None:
            results[place] = function(sample[place])
    return results


def _info(  # noqa: PLR0917  upstream's
    source: Iterator[Item],
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: TextIO | None = None,
    name: str = "",
) -> Iterator[Any]:
    """Show the first samples, and every so many after them.

    Args:
        source: samples of any type.
        fmt: a format string over the sample's fields; without one, each field is shown on a line.
        n: how many of the first samples to show.
        every: show also every so many; below 1 none.
        width: characters of a field to show.
        stream: where to write; standard error where it is not given.
        name: shown with each sample.

    Yields:
        The samples, untouched.

    Flow: in order; holds nothing; resumes exactly.
    """
    for number, sample in enumerate(source, 1):
        if number <= n or (every > 0 and number % every == 0):
            (stream or sys.stderr).write(_format_sample(sample, fmt, width, name) + "\n")
        yield sample


def _format_sample(sample: object, fmt: str | None, width: int, name: str) -> str:
    fields = (
        sample
        if isinstance(sample, dict)
        else dict(enumerate(sample if isinstance(sample, tuple | list) else [sample]))
    )
    if fmt is not None:
        return fmt.format(**sample) if isinstance(sample, dict) else fmt.format(*fields.values())
    return "\n".join([f"--- {name}", *(f"{field} {repr(value)[:width]}" for field, value in fields.items())])


def _log_keys(source: Iterator[Item], logfile: str | os.PathLike[str] | None = None) -> Iterator[Item]:
    """Write down which sample went where.

    Args:
        source: samples that are dictionaries.
        logfile: appended to, one line a sample: its number here, ``__worker__``, ``__rank__`` and ``__key__``, joined
            by tabs. The file is locked for each line. None or "" writes nothing.

    Yields:
        The samples, untouched.

    Raises:
        OSError: the file cannot be written.

    Flow: in order; holds nothing; resumes exactly.
    """
    if not logfile:
        yield from source
        return
    for number, sample in enumerate(source):
        known = sample if isinstance(sample, dict) else {}
        places = [number, *(known.get(name) for name in ("__worker__", "__rank__", "__key__"))]
        with open(logfile, "a", encoding="utf-8") as log:  # noqa: PTH123  any path-like
            _lock_file(log)
            log.write("\t".join(str(place) for place in places) + "\n")
        yield sample


def _check_number(value: object, name: str) -> None:
    if not isinstance(value, SupportsIndex):
        raise UsageError(f"info({name}={value!r:.60}): it is a whole number, such as info({name}=10)")


def _check_log(logfile: object) -> None:
    if logfile:
        argument_checks.check_path(logfile)


def _lock_file(file: TextIO) -> None:
    """Lock a file until it is closed; on systems without ``fcntl`` single short appends must do."""
    with suppress(ImportError):
        import fcntl  # noqa: PLC0415  absent on Windows

        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def _check_stream(stream: object) -> None:
    if not hasattr(stream, "write"):
        raise UsageError(f"stream={stream!r:.60}: info writes to an open text file: write stream=sys.stdout")


def _check_format(fmt: object) -> None:
    if not isinstance(fmt, str | None):
        raise UsageError(f"fmt={fmt!r:.60}: info takes a format of the fields: write info('{{__key__}} {{cls}}')")


info = observation(
    _info,
    state_name="_info",
    fmt=_check_format,
    stream=_check_stream,
    n=functools.partial(_check_number, name="n"),
    every=functools.partial(_check_number, name="every"),
    width=functools.partial(_check_number, name="width"),
)
log_keys = observation(_log_keys, state_name="_log_keys", logfile=_check_log)
