"""Which source a sample came from, and which of its fields stay.

Flows in: samples that are dictionaries. Flows out: the same with ``__source__`` and ``__tags__``, or with fewer fields.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .base import transform
from .fields import missing


def _labelled(source: Iterator[Any], name: str, tags: Mapping[str, Any] | None = None) -> Iterator[Any]:
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


def _kept(source: Iterator[Any], *names: str) -> Iterator[dict[str, Any]]:
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


def _first_of(source: Iterator[Any], *names: str) -> Iterator[dict[str, Any]]:
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


labelled = transform(_labelled)
kept = transform(_kept)
first_of = transform(_first_of)
