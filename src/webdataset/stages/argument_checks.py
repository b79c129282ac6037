"""Checks of what stages are given: a wrong argument fails where it is written, and the error says what to write.

A pipeline is built in one place and runs in another, often in a worker process. So a stage does not wait for its first
sample to find out that a function is none. What is checked here costs nothing while samples flow.
"""

import math
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import SupportsIndex

from webdataset.core.errors import UsageError
from webdataset.core.seeds import CounterRng, Seed, read_seed
from webdataset.core.upstream_utils import check_flags

ArgumentCheck = Callable[[object], None]
"""Takes the value of an argument; raises UsageError where it cannot mean anything."""


def show_value(value: object) -> str:
    """Return a value as an error message shows it: short, and with the usual cause of a None."""
    return "None (pass the function f itself: f, not f())" if value is None else reprlib.repr(value)


def make_function_check(takes: str, write: str) -> ArgumentCheck:
    """Return the check of an argument that is a function.

    Args:
        takes: which function, as ``"map takes a function of a sample"``.
        write: what to write instead.
    """

    def check(value: object) -> None:
        if not callable(value):
            raise UsageError(f"{takes}, not {show_value(value)}: write {write}")

    return check


def make_functions_check(takes: str, write: str, *others: object) -> ArgumentCheck:
    """Return the check of a tuple, or of a dictionary by name, of functions.

    Args:
        takes: which functions, as ``"map_dict takes a function for each field"``.
        write: what to write instead.
        *others: what may stand in the place of a function: None, or False.
    """

    def check(values: object) -> None:
        for name, value in name_values(values):
            if not callable(value) and not any(value is other for other in others):
                raise UsageError(f"{takes}, not {name}{show_value(value)}: write {write}")

    return check


def make_flag_check(name: str) -> ArgumentCheck:
    """Return the check of an argument that is True or False.

    Args:
        name: of the argument.
    """
    return lambda value: check_flags(**{name: value})


def name_values(values: object) -> list[tuple[str, object]]:
    """Return the values of a tuple or dictionary, each with ``name=`` before it, or nothing."""
    if isinstance(values, Mapping):
        return [(f"{name}=", value) for name, value in values.items()]
    return [("", value) for value in values] if isinstance(values, Iterable) else []


def check_path(value: object) -> None:
    """Raise where an argument is no path; an open file's number, which ``open`` takes too, is none.

    Raises:
        UsageError: it is no path.
    """
    if not isinstance(value, str | bytes | os.PathLike):
        raise UsageError(f"the path of a file is a str or a pathlib.Path, not {reprlib.repr(value)}")


def read_count(number: float, name: str) -> int:
    """Return a number of samples or bytes as an int; programs write ``1e4`` and ``count / 4`` for one.

    Args:
        number: a fraction is rounded up.
        name: of the argument.

    Raises:
        UsageError: an infinite number, or none.
    """
    if isinstance(number, int):
        return number
    try:
        if math.isfinite(number):
            return math.ceil(number)
    except TypeError:
        # no number
        pass
    raise UsageError(f"{name}={reprlib.repr(number)}: it is a finite number, such as {name}=1000")


def read_bound(call: str, number: object, name: str) -> int:
    """Return a bound on items or passes as an int; programs compute bounds, so that some are floats, or of numpy.

    Args:
        call: the method that takes it.
        number: a fraction is rounded up; an infinite number is no bound, which is -1.
        name: of the argument.

    Raises:
        UsageError: something that is no number.
    """
    if isinstance(number, SupportsIndex):
        return index(number)
    if isinstance(number, float) and not math.isnan(number):
        return math.ceil(number) if math.isfinite(number) else -1
    raise UsageError(f"{call}({name}={number!r:.60}): it is a whole number, such as {call}(1000)")


def check_random_source(rng: object, seed: Seed | SupportsIndex) -> Seed:
    """Return the seed of a generator, checked with the generator that may stand in its place.

    Args:
        rng: a generator, or None.
        seed: a seed, or None; whole numbers of numpy become those of Python, which its generators take.

    Raises:
        UsageError: a generator without ``randint``, or a seed that Python's generators do not take.
    """
    if rng is not None and not hasattr(rng, "randint") and not isinstance(rng, CounterRng):
        raise UsageError(f"rng={reprlib.repr(rng)} is no generator: write rng=random.Random(0), or seed=0")
    return seed if isinstance(seed, int | None) else read_seed(seed)


def check_collation(function: object) -> None:
    """Raise where what makes batches is no function.

    Raises:
        UsageError: as it says.
    """
    if not callable(function):
        raise UsageError(
            f"collation_fn={reprlib.repr(function)}: it makes a batch of a list of samples: write "
            "collation_fn=function, or collation_fn=None to keep the list"
        )
