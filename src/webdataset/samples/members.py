"""Yields members as dicts, one at a time: the form that groupers of other programs read.

The items are ``{"fname", "data", "__url__"}``. No item marks the end of a shard: each shard's ``__url__`` is a string
object of its own, so that this library's grouper knows the border even when the same url comes twice, while groupers
written for webdataset 0.2 see what they always saw.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple, cast

from webdataset.core.error_handlers import Handler, reraise_exception, should_continue, with_location
from webdataset.samples.grouping import Grouper, Keys, Sample, Shard, base_plus_ext, is_meta
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_reader import ShardReader, StopReading
from webdataset.samples.split_samples import FinishedKeys, check_policy, track_keys


class ShortUrl(str):
    """A url of less than two letters, of which Python keeps one object each."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as a plain string."""
        return str, (str(self),)


class OpenedUrl:
    """The url of a shard that was opened, as its members carry it.

    Attributes:
        text: a plain ``str``, one object for each time a shard is opened.
        broken: reading the shard has failed.
        ended: it was read to its end.
    """

    def __init__(self, url: str) -> None:
        # a slice of a longer text is an object of its own
        self.text = f"{url} "[:-1] if len(url) > 1 else ShortUrl(url)
        self.broken = self.ended = False


class OpenedUrls:
    """The shards opened last, known by the object that is their url."""

    # members that a program gathers before it groups them may be of as many shards
    MOST = 4096

    def __init__(self) -> None:
        self._known: OrderedDict[int, OpenedUrl] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, url: str) -> OpenedUrl:
        """Note a shard that is opened."""
        opened = OpenedUrl(url)
        with self._lock:
            self._known[id(opened.text)] = opened
            while len(self._known) > self.MOST:
                self._known.popitem(last=False)
        return opened

    def find(self, url: object) -> OpenedUrl | None:
        """Return the shard whose members carry this object as ``__url__``, or None where it is none of these shards."""
        opened = self._known.get(id(url))
        return opened if opened is not None and opened.text is url else None


_opened_urls = OpenedUrls()


def shard_members(
    shard: Shard, reading: Reading, skip_meta: "str | re.Pattern[str] | None" = r"__[^/]*__($|/)"
) -> Iterator[Sample]:
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
            for some in reader.resolve(members):
                for name, payload, _ in some:
                    if not is_meta(name, skip_meta):
                        yield {"fname": name, "data": payload}
    except Exception as error:  # whatever a source or a user's function raises gets its place
        with_location(error, url=reader.url, path=reader.path, offset=reader.place)
        raise
    finally:
        reader.close()


def _replaced_members(
    iterate: Callable[..., Iterator[Sample]], shard: Shard, opened: OpenedUrl, reading: Reading
) -> Iterator[Sample]:
    """Yield one shard's members as a program's own ``tar_file_iterator`` gives them."""

    def ask(error: Exception) -> bool:
        # the grouper drops the sample in progress
        opened.broken = True
        return reading.handler(error)

    # older ones lack these two arguments
    rules = {"select_files": reading.select_files, "rename_files": reading.rename_files}
    given = {name: rule for name, rule in rules.items() if rule is not None}
    try:
        for member in iterate(shard["stream"], handler=ask, **given):
            yield dict(member)
    finally:
        close = getattr(shard["stream"], "close", None)
        if callable(close):
            close()


def expanded_members(
    shards: Iterable[Shard],
    reading: Reading,
    eof_value: object = None,
    iterate: Callable[..., Iterator[Sample]] | None = None,
) -> Iterator[Sample]:
    """Yield the members of all shards, each with its ``__url__``.

    Args:
        shards: dicts with ``url`` and ``stream``.
        reading: how to read; its handler is asked where a shard fails.
        eof_value: an item to yield at the end of each shard; None yields none.
        iterate: a program's own ``tar_file_iterator``, which takes a stream; None reads in this library's way.
    """
    for shard in shards:
        opened = _opened_urls.add(str(shard["url"]))
        stamp = {name: value for name, value in shard.items() if name.startswith("__")}
        try:
            found = (
                shard_members(shard, reading) if iterate is None else _replaced_members(iterate, shard, opened, reading)
            )
            for member in found:
                member.update(stamp)
                member["__url__"] = opened.text
                yield member
        except Exception as error:  # noqa: BLE001  the handler decides
            opened.broken = True
            if not should_continue(reading.handler, error, "reading"):
                return
        else:
            opened.ended = not opened.broken
        if eof_value is not None:
            yield cast("Sample", eof_value)


def group_members(
    members: Iterable[Sample],
    *,
    keys: Keys = base_plus_ext,
    lcase: bool = True,
    suffixes: Container[str] | None = None,
    handler: Handler = reraise_exception,
    duplicates: str = "error",
    split_samples: str = "error",
) -> Iterator[Sample]:
    """Group members given as dicts.

    Args:
        members: ``{"fname", "data", "__url__"?}`` dicts; an empty dict ends a shard.
        keys: splits a name into key and extension.
        lcase: lower-case extensions.
        suffixes: keep only these full extensions.
        handler: asked at a duplicate or a member without ``fname``.
        duplicates: see :class:`~webdataset.samples.grouping.Grouper`.
        split_samples: ``error``, ``warn`` or ``ignore`` parts of samples; see
            :class:`~webdataset.samples.sample_reader.Reading`. Members that do not come out of this library's expander
            may be of any number of shards under one url: their keys may come again.
    """
    grouping = _MemberGrouper(
        Grouper(keys=keys, lcase=lcase, suffixes=suffixes, duplicates=duplicates),
        _KeyRules(keys, split_samples),
        handler,
    )
    try:
        try:
            for member in members:
                yield from grouping.border(member)
                if member:
                    yield from grouping.take(member)
        except StopReading:
            raise
        except Exception:  # of a shard after the one whose last sample is in progress: raised again
            if grouping.complete():
                yield from grouping.end()
            raise
        yield from grouping.end()
    except StopReading:
        return
    finally:
        grouping.tell()


class _KeyRules(NamedTuple):
    """What is said about keys."""

    keys: Keys
    split_samples: str


class _MemberGrouper:
    """Groups members that come one by one."""

    def __init__(self, grouper: Grouper, rules: _KeyRules, handler: Handler) -> None:
        check_policy(rules.split_samples)
        self._grouper = grouper
        self._rules = rules
        self._handler = handler
        self._finished: FinishedKeys | None = None
        # no url is this object
        self._url: object = grouper
        self._opened: OpenedUrl | None = None

    def border(self, member: Sample) -> list[Sample]:
        """Return the last sample of a shard where a member is of the next one, and begin that."""
        url: object = member.get("__url__") if member else self._grouper
        if url is self._url:
            return []
        samples = self.end()
        self.tell()
        self._url = url
        self._opened = _opened_urls.find(url)
        self._grouper.open({name: value for name, value in member.items() if name.startswith("__")} if member else {})
        self._finished = None if self._opened is None else track_keys(str(url), self._rules, self._grouper)
        return samples

    def take(self, member: Sample) -> list[Sample]:
        """Return the sample that ends before a member, if one does."""
        try:
            samples = self._grouper.add([(member["fname"], member["data"], 0)])
            if self._grouper.fault is not None:
                raise self._grouper.fault  # noqa: TRY301  to the handler, like the rest
        except Exception as error:  # noqa: BLE001  the handler decides
            self._ask(error)
            return []
        return self._whole(samples)

    def complete(self) -> bool:
        """Tell whether the shard was read to its end, though no member of the next one has come."""
        return self._opened is not None and self._opened.ended

    def end(self) -> list[Sample]:
        """Return the last sample of a shard; none where reading it has failed."""
        return [] if self._opened is not None and self._opened.broken else self._whole(self._grouper.close())

    def _whole(self, samples: list[Sample]) -> list[Sample]:
        """Return those of at most one sample that are no parts."""
        if samples and self._finished is not None:
            for _, part in self._finished.add(samples, [-1]):
                self._ask(part)
                return []
        return samples

    def _ask(self, error: Exception) -> None:
        url = None if self._url is self._grouper else self._url
        if not should_continue(self._handler, with_location(error, url=url, stage="group_by_keys"), "group_by_keys"):
            raise StopReading

    def tell(self) -> None:
        """Say what came again in a shard."""
        if self._finished is not None:
            self._finished.tell()
