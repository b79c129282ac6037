"""The functions that a job calls: their three forms, made once a process, and random numbers that belong to a sample.

A function takes a sample ``{"__key__", "__url__", field: bytes}`` and returns one, None, or a list. One that is marked
by :func:`stream_function` takes an iterator of samples and returns an iterator. A class is called with the job's
parameters in each process; its ``setup()`` runs before the first sample there, and ``teardown()`` at the end.
"""

import atexit
import contextlib
import functools
import inspect
import os
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from webdataset.cluster.function_digest import AnyFunction
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.core.errors import SampleError, UsageError, describe_error
from webdataset.core.seeds import make_rng
from webdataset.reshaping.creation import make_member
from webdataset.reshaping.processing import SampleFunction, load_function
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.raw_samples import RawSample

F = TypeVar("F", bound=AnyFunction)
_STREAMS = "__wds_stream_function__"


def stream_function(function: F) -> F:
    """Mark a function that takes an iterator of samples and returns an iterator, for ``map_shards``.

    Args:
        function: called once for each output.
    """
    setattr(function, _STREAMS, True)
    return function


def sample_rng(key: str, *parts: int | str | None) -> random.Random:
    """Return random numbers that belong to a sample: the same on every engine, in every order, after every retry.

    Args:
        key: of the sample.
        *parts: a seed, or what else they depend on.
    """
    return make_rng("map_shards", key, *parts)


def is_stream_function(function: object) -> bool:
    """Tell whether a function takes an iterator of samples."""
    while isinstance(function, functools.partial):
        function = function.func
    return bool(getattr(function, _STREAMS, False))


def refuse_form(function: object, on_sample_error: str) -> None:
    """Refuse functions that cannot do what is asked.

    Raises:
        UsageError: it cannot be called, or errors of an iterator are to be those of samples.
    """
    if not callable(function):
        raise UsageError(f"{function!r:.80} cannot be called")
    if isinstance(function, type) and not any("__call__" in vars(kind) for kind in function.__mro__):
        raise UsageError(f"objects of {function.__name__} cannot be called: give the class a method __call__(sample)")
    if is_stream_function(function) and on_sample_error != "raise":
        raise UsageError(
            f"on_sample_error={on_sample_error!r} needs a function of one sample: an error of an iterator belongs to "
            "no sample. Catch errors in the function, or let it take samples one by one"
        )


class MappedFunction:
    """A job's function in this process.

    Args:
        job: whose function it is.

    Raises:
        UsageError: it cannot be imported.
    """

    def __init__(self, job: ShardJob) -> None:
        called = job.callable if job.callable is not None else load_function(str(job.function["name"]))
        self.streams = is_stream_function(called)
        params = dict(job.params)
        made: AnyFunction = called
        if isinstance(called, type):
            made = called(**params)
        elif params:
            made = functools.partial(called, **params)
        self.target = made
        self._made = made.func if isinstance(made, functools.partial) else made
        self._call = SampleFunction(made)
        setup = getattr(self._made, "setup", None)
        if callable(setup) and not inspect.isfunction(self._made):
            setup()

    def map_sample(self, sample: RawSample) -> list[RawSample]:
        """Return what the function makes of a sample.

        Args:
            sample: as it stands.

        Raises:
            SampleError: it fails, or what it returns is no sample.
            EncodingError: a value cannot be encoded.
        """
        try:
            made = self._call(sample)
        except SystemExit as error:
            # a function that ends its process would do so each time
            raise SampleError(f"the function calls sys.exit({error})", key=sample.key, url=sample.url) from error
        if len(made) < 2:
            return made
        # several results that kept the sample's key are numbered
        return [
            _rename_sample(each, f"{sample.key}-{place}") if each.key == sample.key else each
            for place, each in enumerate(made)
        ]

    def map_stream(self, samples: Iterable[RawSample]) -> Iterator[RawSample]:
        """Yield what a stream function makes of samples.

        Args:
            samples: as they stand.

        Raises:
            SampleError: what it gives is no sample.
        """
        from webdataset.codecs import make_encoder  # noqa: PLC0415  for functions alone

        encode = make_encoder(True)
        source = ({"__key__": each.key, "__url__": each.url, **each.payloads()} for each in samples)
        for made in self.target(source):
            yield _make_sample(made, encode)

    def close(self) -> None:
        """Call the function's ``teardown``, where it has one."""
        teardown = getattr(self._made, "teardown", None)
        if callable(teardown) and not inspect.isfunction(self._made):
            teardown()


def _rename_sample(sample: RawSample, key: str) -> RawSample:
    members = tuple(
        make_member(f"{key}.{field}", member.payload)
        for field, member in zip(sample.fields, sample.members, strict=True)
    )
    return sample._replace(key=key, members=members)


def _make_sample(made: object, encode: AnyFunction) -> RawSample:
    if not isinstance(made, Mapping) or not isinstance(made.get("__key__"), str):
        raise SampleError(f"the function gives a {type(made).__name__}: it gives dicts with '__key__'")
    key = made["__key__"]
    if base_plus_ext(f"{key}.x") != (key, "x"):
        raise SampleError(f"{key!r} cannot be a key: it would end at a dot", key=key)
    fields = {name: value for name, value in made.items() if not name.startswith("_")}
    if not fields:
        raise SampleError("the function gives a sample without fields", key=key)
    encoded = encode({"__key__": key, **fields})
    members = tuple(make_member(f"{key}.{name}", bytes(encoded[name])) for name in fields)
    return RawSample(key, members, tuple(fields), str(made.get("__url__", "")), 0)


_open: dict[tuple[int, int, str, int], MappedFunction] = {}
_lock = threading.Lock()


def open_function(job: ShardJob) -> MappedFunction:
    """Return the function of a job, made once in each process, and once in each thread of an engine that has several.

    Args:
        job: whose function it is.

    Raises:
        UsageError: it cannot be imported.
        SampleError: making it, or its ``setup``, fails.
    """
    place = os.getpid(), threading.get_ident(), job.key, id(job.callable)
    with _lock:
        if place not in _open:
            try:
                _open[place] = MappedFunction(job)
            except UsageError:
                raise
            except Exception as error:  # whatever the user's class raises: it is chained
                raise SampleError(f"the function cannot be set up: {describe_error(error)}") from error
        return _open[place]


def close_functions() -> None:
    """Call ``teardown`` of every function that this process made; their next use makes them anew."""
    mine = [place for place in _open if place[0] == os.getpid()]
    for place in mine:
        _open.pop(place).close()


@atexit.register
def _close_at_exit() -> None:
    # the process ends: nothing can be done about a teardown that fails
    with contextlib.suppress(Exception):
        close_functions()
