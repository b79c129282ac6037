"""Decides once how a dataset reads its ``urls``: as a list of shards, or as a dataset specification.

The stages of a dataset follow from the fields of the answer; no other module asks what ``urls`` is. Reads
specifications and shard indexes, each once. Never opens a shard, and imports no code of specifications for other urls.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import IterableDataset, is_instance_by_name
from webdataset.core.tracebacks import warn_user
from webdataset.shards.lazy_urls import LazyUrls
from webdataset.shards.lists import ResampledShards, ShardList, SimpleShardList

if TYPE_CHECKING:
    from webdataset.shards.specs.load import SpecLike
    from webdataset.shards.specs.mix import Mix

# the last word of a command is not the name of a specification
_SPEC_NAME = re.compile(r"(?!pipe:)(?s:.*)\.(?:ya?ml|json)(?:\?[^/]*)?$", re.IGNORECASE)


@dataclass(frozen=True)
class SourceArguments:
    """The arguments of a dataset that decide how it reads its urls.

    Args:
        mode: ``"resampled"``, or the mode of a directory list.
        resampled: draw shards at random with replacement.
        seed: of the draws.
        trust: the trust level under which a specification is read.
        split: which split of a specification; None for the only one, or ``train``.
        storage_options: how objects are listed.
    """

    mode: str | None = None
    resampled: bool = False
    seed: int | None = None
    trust: str | None = None
    split: str | None = None
    storage_options: object = None


@dataclass(frozen=True)
class ShardSource:
    """The first stage of a dataset: what yields its shards.

    Args:
        shards: yields ``{"url": url}`` for each shard.
        given: the program made the object, and may share its shards out itself.
        drawn: shards come in random order, with replacement.
        can_split: a splitter may stand after it. It may not where each worker draws its own shards, or claims them so
            that no other reads them: what a splitter leaves out there, no process would read.
        can_assign: it is a list object of the program whose shards this library may assign.
        foreign: its class is of another package: it may wait for what reading brings about.
    """

    shards: object
    given: bool
    drawn: bool
    can_split: bool
    can_assign: bool
    foreign: bool

    @property
    def count(self) -> int | None:
        """The number of shards, or None where it is not known."""
        urls = getattr(self.shards, "urls", None)
        return len(urls) if isinstance(urls, list | LazyUrls) else None


@dataclass(frozen=True)
class SpecSource:
    """What a specification says that a dataset reads.

    Args:
        mix: its sources, and how they are combined.
    """

    mix: "Mix"


_LIST_MODES = (None, "resampled")


def parse_source(urls: object, arguments: SourceArguments) -> ShardSource | SpecSource:
    """Return what a dataset reads; see :class:`webdataset.fluent.dataset.WebDataset` for all that ``urls`` may be.

    Raises:
        UsageError: ``urls`` is of a kind that cannot be read, has no splits, or is given the mode of a directory.
        NoShards: an empty list.
        SpecError: a specification with mistakes.
    """
    if is_instance_by_name(urls, "pathlib", "Path"):
        urls = str(urls)
    named = isinstance(urls, str) and _SPEC_NAME.match(urls) is not None
    if named or isinstance(urls, dict) or is_instance_by_name(urls, "webdataset.shards.specs.spec", "DatasetSpec"):
        return _parse_specification(urls, arguments)
    if arguments.split is not None:
        raise UsageError(f"split={arguments.split!r} is a part of a dataset specification, and {urls!r} is none")
    if isinstance(urls, str) and urls.endswith("/") and not _is_listable_folder(urls):
        return _describe(_list_directory(urls, arguments.mode))
    if arguments.mode not in _LIST_MODES:
        raise _make_mode_error(arguments.mode)
    resampled = arguments.resampled or arguments.mode == "resampled"
    if not isinstance(urls, str | list | tuple) and _yields_shards(urls):
        return _describe_own(urls, resampled=resampled, given=True)
    if resampled:
        return _describe(ResampledShards(urls, seed=arguments.seed or 0, storage_options=arguments.storage_options))
    if not isinstance(urls, str | Iterable):
        raise UsageError(f"expected urls as a str, a path, a list or an iterable, got {type(urls).__name__}")
    return _describe(SimpleShardList(urls, storage_options=arguments.storage_options))


def _make_mode_error(mode: object) -> UsageError:
    """Return the error of a list of shards that is given the mode of a directory, which would change nothing."""
    return UsageError(
        f"mode={mode!r:.60} belongs to a directory of shards, 'shards/': a list is read without a mode, or drawn at "
        "random without end by resampled=True"
    )


def _parse_specification(urls: object, arguments: SourceArguments) -> ShardSource | SpecSource:
    """Return a mix, or a list of shards where the document says no more than that."""
    from webdataset.shards.specs.load import load_source  # noqa: PLC0415  only where a specification is read
    from webdataset.shards.wids_lists import WidsShardList  # noqa: PLC0415

    mix, listed = load_source(cast("SpecLike", urls), arguments.split, trust=arguments.trust)
    if listed is None:
        return SpecSource(mix)
    if arguments.mode not in _LIST_MODES:
        raise _make_mode_error(arguments.mode)
    resampled = arguments.resampled or arguments.mode == "resampled"
    if resampled and isinstance(listed, WidsShardList):
        return _describe(ResampledShards(listed.urls, seed=arguments.seed))
    return _describe_own(listed, resampled=resampled)


def _is_listable_folder(url: str) -> bool:
    """Tell whether a name that ends with a slash is a folder of a store; else it is a directory."""
    if "://" not in url:
        return False
    from webdataset.storage.listing import can_list  # noqa: PLC0415  local files are not listed there

    return can_list(url)


def _list_directory(path: str, mode: str | None) -> ShardList:
    """Return the list of a directory in which shards appear and go away."""
    from webdataset.shards.directory import DirectoryShardList  # noqa: PLC0415  few datasets read directories

    return DirectoryShardList(path, mode=mode) if mode else DirectoryShardList(path)


def _yields_shards(urls: object) -> bool:
    """Tell whether an object yields shards by itself: one of our lists, a torch IterableDataset, a stage."""
    kinds = {kind.__name__ for kind in type(urls).__mro__}
    return isinstance(urls, IterableDataset) or bool(kinds & {"IterableDataset", "PipelineStage"})


def _describe_own(shards: object, *, resampled: bool, given: bool = False) -> ShardSource:
    """Return a first stage that chooses its shards by itself, and warn where it was told to draw them."""
    if resampled and not isinstance(shards, ResampledShards):
        warn_user(
            f"resampled=True changes nothing for a {type(shards).__name__}, which yields shards by itself: give "
            "WebDataset the urls in its place, or wds.ResampledShards(urls)"
        )
    return _describe(shards, given=given)


def _describe(shards: object, *, given: bool = False) -> ShardSource:
    """Return a first stage with all that the stages after it depend on."""
    drawn = isinstance(shards, ResampledShards)
    can_split = not (drawn or is_instance_by_name(shards, "webdataset.shards.directory", "DirectoryShardList"))
    can_assign = given and can_split and isinstance(shards, ShardList)
    foreign = not type(shards).__module__.startswith("webdataset.")
    return ShardSource(shards, given, drawn, can_split, can_assign, foreign)
