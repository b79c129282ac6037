"""Members as dicts, one at a time: the form in which other people's groupers read shards.

Flows in: opened shards. Flows out: ``{"fname", "data", "__url__"}`` dicts. The end of a shard shows in no item: each
shard's ``__url__`` is a string object of its own, so that our grouper knows the border even when the same url comes
twice, while groupers written for webdataset 0.2 see what they always saw.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Any, Self

from webdataset.ground.policies import Handler, located, reraise_exception
from webdataset.ground.skips import goes_on

from .grouping import Grouper, Keys, Sample
from .names import base_plus_ext, is_meta
from .reading import Reading, ShardReader


class ShardUrl(str):
    """A shard's url, one object for each time a shard is opened; ``broken`` once reading it has failed."""

    __slots__ = ("broken",)
    broken: bool

    def __new__(cls, url: str) -> Self:
        """Make a new object, never a shared one."""
        self = super().__new__(cls, url)
        self.broken = False
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a plain string."""
        return str, (str(self),)


def shard_members(shard: dict[str, Any], reading: Reading, skip_meta: Any = r"__[^/]*__($|/)") -> Iterator[Sample]:
    """Yield one opened shard's members as ``{"fname", "data"}``.

    Args:
        shard: dict with ``url`` and ``stream``.
        reading: how to read.
        skip_meta: pattern of names to leave out; None keeps all.

    Raises:
        WebDatasetError: anything wrong with the stream, whatever the handler.
    """
    reader = ShardReader(shard, reading)
    try:
        for members in reader.member_lists():
            for name, payload, _ in members:
                if not is_meta(name, skip_meta):
                    yield {"fname": name, "data": payload}
    except Exception as error:  # whatever a source or a user's function raises gets its place
        located(error, url=reader.url, offset=reader.scanner.offset)
        raise
    finally:
        reader.close()


def expanded_members(
    shards: Iterable[dict[str, Any]], reading: Reading, eof_value: Any = None
) -> Iterator[dict[str, Any]]:
    """Yield the members of all shards, each with its ``__url__``.

    Args:
        shards: dicts with ``url`` and ``stream``.
        reading: how to read; its handler is asked where a shard fails.
        eof_value: an item to yield at the end of each shard; None yields none.
    """
    for shard in shards:
        url = ShardUrl(shard["url"])
        stamp = {name: value for name, value in shard.items() if name.startswith("__")}
        try:
            for member in shard_members(shard, reading):
                member.update(stamp)
                member["__url__"] = url
                yield member
        except Exception as error:  # noqa: BLE001  the handler decides
            url.broken = True
            if not goes_on(reading.handler, error, "reading"):
                return
        if eof_value is not None:
            yield eof_value


def group_members(
    members: Iterable[dict[str, Any]],
    *,
    keys: Keys = base_plus_ext,
    lcase: bool = True,
    suffixes: Container[str] | None = None,
    handler: Handler = reraise_exception,
    duplicates: str = "error",
) -> Iterator[Sample]:
    """Group members given as dicts.

    Args:
        members: ``{"fname", "data", "__url__"?}`` dicts; an empty dict ends a shard.
        keys: splits a name into key and extension.
        lcase: lower-case extensions.
        suffixes: keep only these full extensions.
        handler: asked at a duplicate or a member without ``fname``.
        duplicates: see :class:`~webdataset.samples.grouping.Grouper`.

    Yields:
        Samples.
    """
    grouper = Grouper(keys=keys, lcase=lcase, suffixes=suffixes, duplicates=duplicates)
    border: Any = grouper  # no url is this object
    for member in members:
        url = member.get("__url__") if member else grouper
        if url is not border:
            if not getattr(border, "broken", False):
                yield from grouper.close()
            border = url
            grouper.open({name: value for name, value in member.items() if name.startswith("__")} if member else {})
        if not member:
            continue
        try:
            yield from grouper.add([(member["fname"], member["data"], 0)])
            if grouper.fault is not None:
                raise grouper.fault  # noqa: TRY301  to the handler, like the rest
        except Exception as error:  # noqa: BLE001  the handler decides
            if not goes_on(handler, located(error, url=url, stage="group_by_keys"), "group_by_keys"):
                return
    if not getattr(border, "broken", False):
        yield from grouper.close()
