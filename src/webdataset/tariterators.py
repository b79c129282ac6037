"""Compatibility import path of the readers of shards; the code lives in :mod:`webdataset.samples`.

Late-bound: replacing ``url_opener``, ``tar_file_expander``, ``tar_file_iterator``, ``group_by_keys`` or
``valid_sample`` in this module changes what ``tarfile_samples``, ``tarfile_to_samples`` and ``WebDataset`` do, since
they look these up when they are called.
"""

import functools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from webdataset.core.error_handlers import Handler, reraise_exception
from webdataset.core.errors import UsageError, check_keywords
from webdataset.core.lazy_modules import lazy_attributes
from webdataset.core.optional_imports import loaded_module
from webdataset.gopen import gopen_replaced, resolve_shard
from webdataset.samples.documents.document import sibling_keys
from webdataset.samples.grouping import META_PREFIX as meta_prefix  # noqa: N811  upstream's name
from webdataset.samples.grouping import META_SUFFIX as meta_suffix  # noqa: N811  upstream's name
from webdataset.samples.grouping import Grouper, Keys, Sample, base_plus_ext, valid_sample
from webdataset.samples.members import expanded_members, group_members, shard_members
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_opener import open_shards
from webdataset.shards.lists import listed_shards as shardlist
from webdataset.stages.read_shards import ReaderState, ReadShards, SelectSamples

__all__ = [
    "Grouper", "base_plus_ext", "group_by_keys", "meta_prefix", "meta_suffix", "shardlist", "sibling_keys",
    "tar_file_expander", "tar_file_iterator", "tarfile_samples", "tarfile_to_samples", "url_opener", "valid_sample",
]  # fmt: skip


def url_opener(
    data: Iterable[dict[str, Any]], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    """Open each shard: ``{"url"}`` dicts to ``{"url", "stream"}``.

    Args:
        data: dicts with ``url``.
        handler: asked where one cannot be opened.
        **kw: ``trust``, the trust level of the dataset, its ``storage_options`` and ``prefetch``.
    """
    return open_shards(data, handler=handler, resolve=resolve_shard, **kw)


def tar_file_iterator(
    fileobj: Any,
    skip_meta: Any = r"__[^/]*__($|/)",
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one tar stream's members as ``{"fname", "data"}``.

    Args:
        fileobj: object with ``read(n)``; closed at the end.
        skip_meta: pattern of names to leave out; None keeps all.
        handler: asked where the stream fails; false ends quietly, true too (nothing follows the fault).
        select_files: member name to bool.
        rename_files: member name to member name, applied first.
    """
    reading = Reading(handler=handler, select_files=select_files, rename_files=rename_files)
    url = getattr(fileobj, "name", None)
    try:
        yield from shard_members({"url": str(url or "a file object"), "stream": fileobj}, reading, skip_meta)
    except Exception as error:  # noqa: BLE001  the handler decides
        handler(error)


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    eof_value: Any = None,
) -> Iterator[dict[str, Any]]:
    """Yield the members of opened shards as ``{"fname", "data", "__url__"}``.

    Args:
        data: dicts with ``url`` and ``stream``.
        handler: asked where a shard fails; true continues with the next one.
        select_files: member name to bool.
        rename_files: member name to member name, applied first.
        eof_value: an item to yield at the end of each shard; by default none, and the border shows in ``__url__``
            (a string object of its own for each opened shard), invisible to groupers written for webdataset 0.2.
    """
    reading = Reading(handler=handler, select_files=select_files, rename_files=rename_files)
    return expanded_members(data, reading, eof_value, None if tar_file_iterator is _own[2] else tar_file_iterator)


def group_by_keys(  # noqa: PLR0917  upstream's signature
    data: Iterable[dict[str, Any]],
    keys: Keys = base_plus_ext,
    lcase: bool = True,  # noqa: FBT001, FBT002  upstream's signature
    suffixes: Container[str] | None = None,
    handler: Handler = reraise_exception,
    duplicates: str = "error",
    split_samples: str = "error",
) -> Iterator[Sample]:
    """Group members given as dicts into samples; see :func:`webdataset.samples.members.group_members`."""
    samples = group_members(
        data, keys=keys, lcase=lcase, suffixes=suffixes, handler=handler, duplicates=duplicates,
        split_samples=split_samples,
    )  # fmt: skip
    return samples if valid_sample is _own[3] else filter(valid_sample, samples)


_own = (tar_file_expander, group_by_keys, tar_file_iterator, valid_sample)


@dataclass(repr=False)
class TarSamples(ReadShards):
    """The reader stage of this module: replaced names are honoured, and otherwise cost nothing."""

    state_name = "TarSamples"
    reading: Reading

    def open_shards(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Open shards with ``url_opener`` as it is now, through the cache if there is one."""
        names = ("trust", "storage_options", "prefetch")
        rules = [(name, getattr(self.reading, name)) for name in names]
        options: dict[str, Any] = {name: rule for name, rule in rules if rule is not None}

        def source(shards: Iterable[dict[str, Any]], handler: Handler) -> Iterator[dict[str, Any]]:
            return url_opener(shards, handler=handler, **options)

        cache = self.reading.cache
        cache_module = loaded_module("webdataset.cache")
        if cache is None and cache_module is not None:
            cache = cache_module.replacement(self.reading.handler)
        if cache is None:
            return source(shards, self.reading.handler)
        reading, resolve = self.reading, None
        if getattr(url_opener, "__module__", "").startswith("webdataset.") and not gopen_replaced():
            resolve = functools.partial(resolve_shard, trust=reading.trust, storage_options=reading.storage_options)
        opened: Iterator[dict[str, Any]] = cache.open_shards(
            shards,
            source,
            reading.handler,
            level=reading.trust,
            storage_options=reading.storage_options,
            prefetch=0 if resolve is None else reading.prefetch,
            resolve=resolve,
        )
        return opened

    def opens_by_url(self) -> bool:
        """Tell whether shards are opened by this library's own ``url_opener``, and through no cache."""
        ours = getattr(url_opener, "__module__", "").startswith("webdataset.") and not gopen_replaced()
        cache_module = loaded_module("webdataset.cache")
        cached = cache_module is not None and cache_module.replacement(self.reading.handler) is not None
        return type(self).open_shards is TarSamples.open_shards and ours and not cached

    def flow(self, upstream: Iterator[Any], state: ReaderState) -> Iterator[Sample]:
        """Yield samples, through the replaced expander and grouper where there are any."""
        if (tar_file_expander, group_by_keys, tar_file_iterator, valid_sample) == _own:
            return super().flow(upstream, state)
        rules = self.reading
        if state.stream is not None or rules.where is not None:
            who = "an elastic dataset" if state.stream is not None else "a dataset with where="
            raise UsageError(
                f"{who} reads shards by itself: a function of webdataset.tariterators was replaced, and such a reader "
                "cannot say where a sample stands",
                stage="tarfile_samples",
            )
        members = tar_file_expander(
            self.open_shards(upstream),
            handler=rules.handler,
            select_files=rules.select_files,
            rename_files=rules.rename_files,
        )
        return group_by_keys(members, handler=rules.handler)


class SelectedTarSamples(SelectSamples, TarSamples):
    """The reader stage of the samples for which an expression holds."""

    state_name = "SelectedTarSamples"


def tarfile_samples(
    src: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    **options: Any,
) -> Iterator[Sample]:
    """Read samples from a stream of shard urls (used uncalled as a pipeline stage).

    Args:
        src: dicts with ``url``.
        handler: asked where a shard or sample fails.
        select_files: member name to bool.
        rename_files: member name to member name, applied first.
        **options: further fields of :class:`~webdataset.samples.sample_reader.Reading`: ``keys``, ``lcase``,
            ``suffixes``,
            ``duplicates``, ``split_samples``, ``missing_end``, ``addresses``, ``limits``.
    """
    return own_reader(handler, select_files, rename_files, **options)(src)


def tarfile_to_samples(
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    **options: Any,
) -> TarSamples:
    """Return the stage that reads samples from a stream of shard urls; arguments as :func:`tarfile_samples`.

    Raises:
        UsageError: an argument that cannot mean anything, such as a text for ``select_files``.
        TypeError: an argument that there is not.
    """
    if not options.keys() <= Reading.__dataclass_fields__.keys():
        check_keywords("tarfile_to_samples", options, Reading.__dataclass_fields__)
    reading = Reading(handler=handler, select_files=select_files, rename_files=rename_files, **options)
    return TarSamples(reading) if reading.where is None else SelectedTarSamples(reading)


# what WebDataset reads by, whatever a program puts in the place of the name, as in the published versions; what is put
# there may call tarfile_samples
own_reader = tarfile_to_samples
tarfile_samples.as_stage = tarfile_to_samples  # type: ignore[attr-defined]  # used uncalled, it is the stage itself

__getattr__ = lazy_attributes(__name__, "filters gopen")
