"""Whether a cached shard is still what its store has, and the rest of a shard from the middle.

Flows in: a url and the record of its copy. Flows out: what the store says, or nothing where it does not say. A store
that is not reached, refuses, or has lost the object, does not make a copy wrong: without an answer the copy is used.
"""

import io
import time
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import UsageError, WebDatasetError
from webdataset.sources.objects import Again, Identity, ObjectSource
from webdataset.sources.resuming import ResumingStream
from webdataset.sources.stores import object_of

from .names import canonical
from .places import Place
from .sidecar import Record, digest, record_at

POLICIES = ("never", "once", "always")
_SILENCE_SECONDS = 60.0

_asked: set[str] = set()  # paths of copies that were compared in this process
_silent: dict[str, float] = {}  # until when a server that did not answer is left alone


def policy_named(name: str | None) -> str:
    """Return when copies are compared.

    Args:
        name: ``never``, ``once`` in each process, ``always``, or None for ``WDS_CACHE_REVALIDATE``.

    Raises:
        UsageError: another name.
    """
    chosen = settings.CACHE_REVALIDATE.get() if name is None else name
    if chosen not in POLICIES:
        raise UsageError(f"revalidate={chosen!r} is not one of {', '.join(POLICIES)}")
    return chosen


def settled(place: Place) -> None:
    """Take note that a copy is as its store has it.

    Args:
        place: the copy's.
    """
    _asked.add(place.final)


def answer_about(place: Place, target: str, options: Any, policy: str) -> Identity | None:
    """Ask the store who the object is now, if the policy wants it.

    Args:
        place: the copy's.
        target: the url, after rewriting.
        options: what a dataset says about its storage.
        policy: ``never``, ``once`` or ``always``.

    Returns:
        None where it was not asked, or does not say.
    """
    if policy == "never" or (policy == "once" and place.final in _asked):
        return None
    record = record_at(place.record)
    host = "/".join(target.split("/", 3)[:3])
    if record is None or not (record.whole and record.can_be_resumed()) or _silent.get(host, 0.0) > time.monotonic():
        return None
    _asked.add(place.final)
    source = _object(record, target, options)
    return None if source is None else _glance(source, host)


def _glance(source: ObjectSource, host: str) -> Identity | None:
    try:
        answer = source.open_at(0, None, 1)
        answer.body.close()
    except Again:
        _silent[host] = time.monotonic() + _SILENCE_SECONDS
    except WebDatasetError:
        pass
    except source.failures():
        pass
    else:
        return answer.identity
    return None


def rest_of(record: Record, target: str, options: Any, offset: int) -> Any:
    """Open the same object from the middle.

    Args:
        record: who it was.
        target: the url, after rewriting.
        options: what a dataset says about its storage.
        offset: the first byte wanted.

    Returns:
        A stream, or None where the object cannot be taken up again.

    Raises:
        ShardChanged: it is another object by now.
        SourceError: the store refuses, or does not answer.
    """
    source = _object(record, target, options) if record.can_be_resumed() else None
    if source is None:
        return None
    if offset == record.length:
        return io.BytesIO()
    return ResumingStream(source, start=offset, known=record.identity)


def _object(record: Record, target: str, options: Any) -> ObjectSource | None:
    """Return the object itself, if it is the one that the record is about."""
    try:
        source = object_of(target, options)
    except WebDatasetError:  # a package or profile that was there is not there now
        return None
    return source if source is not None and digest(canonical(source.url)) == record.origin else None
