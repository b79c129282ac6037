"""The shards of one source, pass by pass.

Flows in: a source. Flows out, on each pass: ``{"url": url}`` for its shards, chosen, repeated and shuffled as it says.
All workers draw alike, so that what a split behind it hands out is neither lost nor read twice.
"""

import random
from collections.abc import Callable, Iterable, Iterator

from webdataset.ground.errors import NoShards, UsageError
from webdataset.shards.lists import Shard, ShardList
from webdataset.sources.preparing import prepare

from .mixes import Source
from .origins import Origin


class SourceShards(ShardList):
    """The shards of one source.

    Args:
        source: what to read.
        shuffled: a new order in each pass.

    Raises:
        NoShards: it names none.
        UsageError: more shards to be chosen than there are, or a part of a pass that is no shard at all.
        UnsafeSpec: a specification from the network names what it may not.
    """

    def __init__(self, source: Source, *, shuffled: bool) -> None:
        self.source = source
        self.shuffled = shuffled
        self.urls = source.urls()
        prepare(self.urls)
        if not self.urls:
            raise NoShards(f"source {source.name!r} has no shards: {', '.join(source.shards)} in {source.subset}")
        if source.choose is not None and source.choose > len(self.urls):
            raise UsageError(f"source {source.name!r}: 'choose' is {source.choose}, but it has {len(self.urls)} shards")
        self.whole = int(source.repeat)
        if not self.whole and not self._part():
            raise UsageError(
                f"source {source.name!r}: 'repeat' of {source.repeat} is no whole shard of {len(self.urls)}: write "
                f"'subsample: {source.repeat}'"
            )

    def __len__(self) -> int:
        """Return the number of shards in one pass."""
        if self.source.resample is not None:
            return self.source.resample
        return self.whole * self._chosen() + self._part()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source.name!r}, {len(self.urls)} shards)"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield the shards of one pass, each checked once more against where the specification came from."""
        for url in self.drawn_urls(draw()):
            yield {"url": self.source.origin.check(url)}

    def drawn_urls(self, generator: random.Random) -> list[str]:
        """Return the urls of one pass.

        Args:
            generator: what to draw from.
        """
        if self.source.resample is not None:
            return generator.choices(self.urls, k=self.source.resample)
        found: list[str] = []
        for count in [self._chosen()] * self.whole + [self._part()]:
            found += self._some(count, generator)
        return found

    def _chosen(self) -> int:
        return len(self.urls) if self.source.choose is None else self.source.choose

    def _part(self) -> int:
        return round(self.source.repeat % 1 * self._chosen())

    def _some(self, count: int, generator: random.Random) -> list[str]:
        """Return so many of the urls: in their order, unless they are shuffled."""
        if self.shuffled:
            return generator.sample(self.urls, count)
        if count == len(self.urls):
            return self.urls
        return [self.urls[number] for number in sorted(generator.sample(range(len(self.urls)), count))]


class Allowed:
    """Checks each shard once more, as it is about to be opened.

    Args:
        origin: where the specification came from.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def __call__(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Yield the shards.

        Raises:
            UnsafeSpec: a url that the environment rewrites to what a specification from the network may not name.
        """
        for shard in shards:
            self.origin.check(shard["url"])
            yield shard


class MixedShards(ShardList):
    """The shards of several sources, shuffled together (``mix: shards``).

    Args:
        lists: the sources.
    """

    def __init__(self, lists: list[SourceShards]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        """Return the number of shards in one pass."""
        return sum(map(len, self.lists))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lists!r})"

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield the shards of one pass."""
        generator = draw()
        found = [(each, url) for each in self.lists for url in each.drawn_urls(generator)]
        generator.shuffle(found)
        for each, url in found:
            yield {"url": each.source.origin.check(url)}
