"""Functions applied to samples: whole samples, named fields, tuple positions.

Flows in: samples. Flows out: what the user's functions return, in the same order. Never holds a sample back. A
function that raises is blamed by name and place, and its stage's handler decides what happens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.ground.skips import count_dropped, goes_on

from .base import Outcome, TransparentFunction, transform
from .blame import applied, blamed, titled
from .fields import missing

Function = Callable[[Any], Any]


def _map(source: Iterator[Any], f: Function, handler: Handler = reraise_exception) -> Iterator[Any]:
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
    return _mapped(source, f, handler)


def _mapped(
    source: Iterator[Any], f: Function, handler: Handler = reraise_exception, *, outcome: Outcome | None = None
) -> Iterator[Any]:
    """Do what ``_map`` does, and say at the end whether all samples were dropped."""
    last: type = type(None)
    keyed = gave = False
    dropped = 0
    name = ""  # in reports, once a sample was dropped
    for sample in source:
        try:
            result = f(sample)
        except Exception as exn:  # noqa: BLE001  user code: the handler decides
            if goes_on(handler, blamed(exn, "map", sample, f), titled("map", f)):
                continue
            return
        if result is None:
            name = name or titled("map", f)
            count_dropped(name)
            dropped += 1
        else:
            gave = True
            if result is not sample:
                if type(result) is not last:  # asked once for each kind of result: isinstance is slow to say no
                    last = type(result)
                    keyed = isinstance(result, dict)
                if keyed and isinstance(sample, dict) and "__key__" in sample:
                    result["__key__"] = sample["__key__"]
            yield result
    if outcome is not None:
        outcome.end(dropped, gave=gave)


class Map(TransparentFunction):
    """A function applied to every sample; see :func:`map`."""

    drops = True
    name = "map"

    @property
    def function(self) -> Any:
        """The user's function."""
        return self.args[0] if self.args else self.kw.get("f")

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:
        """Yield the results that are not None."""
        return _mapped(upstream, *self.args, **self.kw, outcome=None if memory is None else memory.outcome)


def _map_dict(source: Iterator[Any], /, handler: Handler = reraise_exception, **kw: Function) -> Iterator[Any]:
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

    def update(sample: Any) -> Any:
        if not isinstance(sample, dict):
            raise UsageError(f"map_dict works on dictionaries, and got {type(sample).__name__}; use map_tuple or map")
        for name, function in functions:
            if name not in sample:
                raise missing([name], sample)
            sample[name] = function(sample[name])
        return sample

    return applied(source, update, handler, "map_dict")


def _map_tuple(source: Iterator[Any], *args: Function | None, handler: Handler = reraise_exception) -> Iterator[Any]:
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

    def update(sample: Any) -> tuple[Any, ...]:
        values = list(sample)
        for place, function in places:
            if place >= len(values):
                break
            try:
                values[place] = function(values[place])
            except Exception as exn:  # user code: located and raised again
                blamed(exn, f"map_tuple: position {place}", sample, function)
                raise
        return tuple(values)

    return applied(source, update, handler, "map_tuple")


map = transform(_map, Map)  # noqa: A001  upstream's name
map_dict = transform(_map_dict)
map_tuple = transform(_map_tuple)


def transform_with(sample: Sequence[Any], transformers: Sequence[Function | None] | None) -> Sequence[Any]:
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
