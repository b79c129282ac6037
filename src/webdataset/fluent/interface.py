"""One thin method for each stage, ``dataset.shuffle(1000).decode("rgb")``, and the order in which shards are read.

Each method returns a copy of the pipeline with one more stage. The stages are looked up in ``webdataset.filters``
when a method is called, so that replacing one there replaces it here.

The decisions of ``WebDataset`` are made here too: which splitters and shuffles stand between the shards and the
reader, and where shards are cached.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from webdataset import filters
from webdataset.core import settings
from webdataset.core.error_handlers import Handler, reraise_exception
from webdataset.core.errors import UsageError, check_keywords
from webdataset.core.optional_imports import is_instance_by_name, loaded_module
from webdataset.samples.grouping import POLICIES
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lists import ResampledShards
from webdataset.shards.source import ShardSource
from webdataset.shards.split import single_node_only, split_by_node, split_by_sample, split_by_worker
from webdataset.stages.checks import CheckSamples, SplitAssigned
from webdataset.tar.header import Limits

if TYPE_CHECKING:
    from webdataset.samples.sample_selection import SampleFilter

Splitter = Callable[[Iterable[Any]], Iterable[Any]]


ARGUMENTS = [
    "urls", "handler", "mode", "resampled", "repeat", "shardshuffle", "cache_size", "cache_dir", "url_to_name",
    "detshuffle", "nodesplitter", "workersplitter", "empty_check", "verbose", "seed", "open_shards",
    "cache_revalidate",
]  # fmt: skip


class DefaultSplitter:
    """A splitter that is used because the program gave none.

    Args:
        splitter: which one.
    """

    def __init__(self, splitter: Splitter) -> None:
        self.splitter = splitter
        functools.update_wrapper(self, splitter)

    def __call__(self, src: Any) -> Any:
        """Share out."""
        return self.splitter(src)

    def __repr__(self) -> str:
        return repr(self.splitter)


NODE_SPLITTER = DefaultSplitter(single_node_only)
WORKER_SPLITTER = DefaultSplitter(split_by_worker)


def unwrap_splitter(splitter: Splitter | None) -> Splitter | None:
    """Return a splitter, be it the default or not."""
    return splitter.splitter if isinstance(splitter, DefaultSplitter) else splitter


def make_shard_shuffle(size: int | None, seed: int | None, *, deterministic: bool) -> list[object]:
    """Return the stages that shuffle shards: none or one.

    Args:
        size: buffer size in shards; below 2 keeps the order; None for no stage.
        seed: of a deterministic shuffle.
        deterministic: the order is a function of (seed, epoch) alone.
    """
    if size is None:
        return []
    if deterministic:
        return [filters.detshuffle(size, initial=size, seed=seed or 0)]
    return [filters.shuffle(size, initial=size)]


def open_side_by_side(reader: Any, count: int) -> Any:
    """Return the stage that reads ``count`` shards at once; the reader itself for one.

    Raises:
        UsageError: below 1.
    """
    if count == 1:
        return reader
    from webdataset.stages.open_shards import OpenShards  # noqa: PLC0415  only where several shards are read at once

    return OpenShards(reader, count)


def count_generators(pipeline: object) -> int:
    """Return how many stages of a pipeline give samples generators of their own: the next one's number."""
    own = "webdataset.stages.randomness", "MapWithRng"
    return sum(is_instance_by_name(stage, *own) for stage in getattr(pipeline, "pipeline", ()))


def number_draws(pipeline: object) -> None:
    """Number the shards of a pipeline that draws them with replacement: a sample drawn twice is two samples.

    Args:
        pipeline: changed in place; left alone where its shards come once in an epoch.
    """
    from webdataset.stages.randomness import NumberDraws  # noqa: PLC0415  only where samples have generators

    stages = getattr(pipeline, "pipeline", None)
    if stages and isinstance(stages[0], ResampledShards) and NumberDraws() not in stages[1:2]:
        stages.insert(1, NumberDraws())


_INSTEAD = {
    "shuffle": "shardshuffle=100 shuffles the shards, and WebDataset(...).shuffle(1000) the samples",
    "batch_size": "WebDataset(...).batched(64) makes batches",
    "batchsize": "WebDataset(...).batched(64) makes batches",
    "num_workers": "wds.Loader(dataset, 64, workers=4) and wds.WebLoader(dataset, num_workers=4) have workers",
    "workers": "wds.Loader(dataset, 64, workers=4) and wds.WebLoader(dataset, num_workers=4) have workers",
    "transform": "WebDataset(...).map(function) and .map_dict(jpg=function) apply functions",
    "decode": "WebDataset(...).decode('rgb') decodes",
}


_MEANINGS = {
    "where": "an expression as a text, such as 'json.width >= 512', or None",
    "duplicates": f"one of {', '.join(map(repr, POLICIES))}",
    "keys": "a function of a member's name that returns (key, extension)",
    "suffixes": "a list of the extensions to keep, such as ['jpg', 'json'], or None",
    "limits": "a webdataset.tar.header.Limits",
    "cache_dir": "the path of a folder, as a str or a pathlib.Path, or None",
    "url_to_name": "a function of a url that returns the name of a file in the cache, or None",
    "nodesplitter": "a function that shares shards out, such as wds.split_by_node, or None",
    "workersplitter": "a function that shares shards out, such as wds.split_by_worker, or None",
    "shardshuffle": "a number of shards, or True or False",
    "repeat": "a number of passes, or True or False",
}


def check_reading_rules(rules: dict[str, Any], **counts: object) -> dict[str, Any]:
    """Return the rules of reading that a dataset was given, checked.

    Args:
        rules: those that were given by name.
        **counts: other arguments that are numbers, or None.

    Raises:
        TypeError: a name that is none.
        UsageError: a value that cannot mean anything.
    """
    known = Reading.__dataclass_fields__
    if not rules.keys() <= known.keys():
        check_keywords("WebDataset", rules, [*known, *ARGUMENTS], _INSTEAD)
    if isinstance(rules.get("where"), str):
        rules["where"] = parse_where(rules["where"])
    good = {
        "duplicates": rules.get("duplicates", "error") in POLICIES,
        "suffixes": hasattr(rules.get("suffixes") or (), "__contains__"),
        "limits": "limits" not in rules or isinstance(rules["limits"], Limits),
        "where": rules.get("where") is None or hasattr(rules["where"], "normal"),
        "keys": "keys" not in rules or callable(rules["keys"]),
    }
    for name, count in counts.items():
        good[name] = count is None or isinstance(count, SupportsIndex | float)
    for name, means in good.items():
        if not means:
            raise _meaning_error(name, {**rules, **counts}[name])
    return rules


def _meaning_error(name: str, value: object) -> UsageError:
    return UsageError(f"{name}={value!r:.60}: it is {_MEANINGS[name]}")


def parse_where(text: str, before: "SampleFilter | None" = None) -> "SampleFilter":
    """Return the filter of an expression.

    Args:
        text: the expression.
        before: a filter that has to hold, too.

    Raises:
        UsageError: the text is no expression.
    """
    from webdataset.inspection.expression import Expression  # noqa: PLC0415  few datasets select samples

    parsed = Expression(text)
    return parsed if before is None else Expression(f"({before.normal}) and ({parsed.normal})")


@dataclasses.dataclass(frozen=True)
class ShardOrder:
    """Which shards of a source a process reads, and in which order.

    Args:
        nodesplitter: as the dataset was given it.
        workersplitter: likewise.
        size: as for :func:`shard_shuffle`.
        seed: likewise.
        deterministic: likewise.
    """

    nodesplitter: Splitter | None
    workersplitter: Splitter | None
    size: int | None
    seed: int | None
    deterministic: bool


def reading_stages(source: ShardSource, order: ShardOrder, reader: Any, *, empty_check: bool) -> list[object]:
    """Return the stages from a source of shards to samples, as 0.2.86 has them: programs slice the list."""
    # what is drawn is in random order; an object keeps its order unless a shuffle is asked for
    none = source.drawn or (source.given and not order.size)
    shuffles = make_shard_shuffle(None if none else order.size, order.seed, deterministic=order.deterministic)
    assigned = _find_assigner(order) if source.can_assign else ()
    checks = (CheckSamples(source.count, selected=reader.reading.where is not None),) if empty_check else ()
    splitters = _choose_splitters(source, order) if source.can_split else []
    return [source.shards, *splitters, *shuffles, reader.joined_with(assigned, checks)]


def _choose_splitters(source: ShardSource, order: ShardOrder) -> list[Splitter]:
    """Return the splitters after a source: for an object of the program only those that the program chose.

    Raises:
        UsageError: something that is no splitter.
    """
    splitters = (order.nodesplitter, order.workersplitter)
    given: dict[str, object] = {"nodesplitter": order.nodesplitter, "workersplitter": order.workersplitter}
    for name, splitter in given.items():
        # published versions take objects that have ``run``
        if splitter and not callable(splitter) and not hasattr(splitter, "run"):
            raise _meaning_error(name, splitter)
    wanted = [
        each.splitter if isinstance(each, DefaultSplitter) else each
        for each in splitters
        if each and not (source.given and isinstance(each, DefaultSplitter))
    ]
    # it shares out between ranks and workers alike: nothing is left to split
    if split_by_sample in wanted:
        ours = (single_node_only, split_by_node, split_by_worker)
        wanted = [splitter for splitter in dict.fromkeys(wanted) if splitter not in ours]
    return wanted


def _find_assigner(order: ShardOrder) -> tuple[SplitAssigned, ...]:
    """Return what shares out a list object where this library assigns shards: nothing, or one stage."""
    splitters = order.nodesplitter, order.workersplitter
    if split_by_sample in splitters:
        return ()
    ranks, workers = (isinstance(each, DefaultSplitter) for each in splitters)
    return (SplitAssigned(ranks=ranks, workers=workers),) if ranks or workers else ()


def make_shard_cache(
    cache_dir: str | os.PathLike[str] | None,
    cache_size: float,
    url_to_name: Callable[[str], str] | None,
    revalidate: str | None = None,
    *,
    verbose: bool,
    handler: Handler = reraise_exception,
) -> Any:
    """Return the cache that a dataset asks for, or None.

    Args:
        cache_dir: the directory; None is ``WDS_CACHE``.
        cache_size: bound in bytes; 0 is no cache, -1 is ``WDS_CACHE_SIZE``, or no bound.
        url_to_name: url to file name.
        revalidate: ``never``, ``once``, ``always``; None is ``WDS_CACHE_REVALIDATE``.
        verbose: log what the cache does.
        handler: asked where a shard cannot be opened.

    Raises:
        UsageError: the directory does not exist, or ``revalidate`` is something else.
    """
    if url_to_name is not None and not callable(url_to_name):
        raise _meaning_error("url_to_name", url_to_name)
    if cache_dir is not None and not isinstance(cache_dir, str | os.PathLike):
        raise _meaning_error("cache_dir", cache_dir)
    folder = settings.CACHE.get() if cache_dir is None else os.fspath(cache_dir)
    if folder is None:
        return None
    from webdataset.caching.shard_cache import ShardCache  # noqa: PLC0415  only where shards are kept

    size = settings.CACHE_SIZE.get() if cache_size == -1 else cache_size
    size = -1 if size is None else size
    cache = ShardCache(folder, size, url_to_name, verbose=verbose, revalidate=revalidate)
    if size == 0:
        return None
    # where a program may have put a FileCache of its own
    module = loaded_module("webdataset.cache")
    return cache if module is None else module.replacement(handler, folder, cache_size=size, verbose=verbose) or cache


class FluidInterface:
    """The chainable methods; mixed into pipelines (anything with ``compose``)."""

    trust: str | None = None

    def compose(self, *args: object) -> Self:
        """Return a copy with more stages; pipelines provide it."""
        raise NotImplementedError

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = filters.default_collation_fn,
        partial: bool = True,  # noqa: FBT001, FBT002  upstream's signature
    ) -> Self:
        """Join consecutive samples into batches.

        Args:
            batchsize: samples in a batch.
            collation_fn: a list of samples to a batch; None leaves the list.
            partial: give the last batch even where it is smaller.
        """
        return self.compose(filters.batched(batchsize, collation_fn=collation_fn, partial=partial))

    def unbatched(self) -> Self:
        """Split batches into samples."""
        return self.compose(filters.unbatched())

    def listed(self, batchsize: int, partial: bool = True) -> Self:  # noqa: FBT001, FBT002  upstream's signature
        """Join consecutive samples into lists, without collating them.

        Args:
            batchsize: samples in a list.
            partial: give the last list even where it is shorter.
        """
        return self.compose(filters.listed(batchsize, partial=partial))

    def unlisted(self) -> Self:
        """Split lists into samples."""
        return self.compose(filters.unlisted())

    def log_keys(self, logfile: str | None = None) -> Self:
        """Append the key of each sample to a file.

        Args:
            logfile: its path; None logs nothing.
        """
        return self.compose(filters.log_keys(logfile))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer.

        Args:
            size: samples in the buffer; below 1 leaves the order as it is.
            **kw: ``initial``, ``rng``, ``seed``, ``max_bytes``; see :func:`webdataset.filters.shuffle`.
        """
        if isinstance(size, int | float) and size < 1:
            return self
        return self.compose(filters.shuffle(size, **kw))

    def block_shuffle(self, size: int, **kw: int | None) -> Self:
        """Shuffle blocks of consecutive samples, each by itself.

        Args:
            size: samples in a block.
            **kw: ``seed``; see :func:`webdataset.filters.block_shuffle`.
        """
        return self.compose(filters.block_shuffle(size, **kw))

    def pack(self, max_tokens: int, how: str = "window", **kw: Any) -> Self:
        """Pack sequences of different lengths into rows of ``max_tokens`` tokens.

        Args:
            max_tokens: tokens in a row.
            how: ``"window"``: whole samples, chosen so that little is padded; ``"concat"``: cut where a row is full.
            **kw: ``tokens``, ``also``, ``pad_id``, ``output`` and others; see :func:`webdataset.filters.pack`.
        """
        return self.compose(filters.pack(max_tokens, how, **kw))

    def bucket(self, by: str | Callable[..., object], edges: Iterable[float] | None = None, **kw: Any) -> Self:
        """Gather samples that are alike into batches: of like length, or of one class.

        Args:
            by: a field, or a function of a sample.
            edges: the greatest length of each bucket; None: samples of one value of ``by`` make a batch.
            **kw: ``batch_size``, ``max_total``, ``collation_fn``, ``window`` and others; see
                :func:`webdataset.filters.bucket`.
        """
        return self.compose(filters.bucket(by, edges, **kw))

    def map(
        self,
        f: Callable[..., Any],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> Self:
        """Apply a function to each sample; None drops the sample.

        Args:
            f: sample to sample; with ``rng``, sample and generator to sample.
            handler: asked where it raises.
            rng: give each sample a generator of its own, fixed by seed, epoch and sample: True or ``"python"``,
                ``"numpy"``, ``"seed"``; see :func:`webdataset.filters.map_with_rng`.
        """
        if rng is False:
            return self.compose(filters.map(f, handler=handler))
        salt = count_generators(self)
        result = self.compose(filters.map_with_rng(f, rng, handler, salt))
        number_draws(result)
        return result

    def decode(self, *args: str | Callable[[str, bytes], Any], handler: Handler = reraise_exception, **kw: Any) -> Self:
        """Decode fields from bytes to values.

        Args:
            *args: image specifications (``"rgb"``, ``"pil"``, ``"torchrgb8"`` …) and decoders ``f(key, payload)``.
            handler: asked where a field cannot be decoded.
            **kw: ``pre``, ``post``, ``only``, ``partial``; see :func:`webdataset.filters.decode`.
        """
        kw.setdefault("trust", self.trust)
        return self.compose(filters.decode(*args, handler=handler, **kw))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> Self:
        """Apply a function to each named field, in place.

        Args:
            handler: asked where one raises.
            **kw: field to function.
        """
        return self.compose(filters.map_dict(handler=handler, **kw))

    def select(self, predicate: Callable[[Any], bool], **kw: Any) -> Self:
        """Keep the samples for which ``predicate`` is true.

        Args:
            predicate: sample to bool.
            **kw: see :func:`webdataset.filters.select`.
        """
        return self.compose(filters.select(predicate, **kw))

    def to_tuple(self, *args: str | list[str] | tuple[str, ...], **kw: Any) -> Self:
        """Turn samples into tuples of fields.

        Args:
            *args: field names; ``"jpg;png"`` takes the first that is there.
            **kw: ``handler``, ``missing_is_error``, ``none_is_error``; see :func:`webdataset.filters.to_tuple`.
        """
        return self.compose(filters.to_tuple(*args, **kw))

    def map_tuple(self, *args: Callable[[Any], Any] | None, handler: Handler = reraise_exception) -> Self:
        """Apply a function to each element of a tuple; None leaves the element.

        Args:
            *args: one function an element.
            handler: asked where one raises.
        """
        return self.compose(filters.map_tuple(*args, handler=handler))

    def slice(self, *args: int | None) -> Self:
        """Keep a slice of the samples, as ``itertools.islice`` does.

        Args:
            *args: stop, or start and stop, or start, stop and step.
        """
        return self.compose(filters.slice(*args))

    def rename(self, **kw: Any) -> Self:
        """Rename fields.

        Args:
            **kw: new name to old name (``"jpg;png"`` takes the first that is there); ``keep``, ``handler``.
        """
        return self.compose(filters.rename(**kw))

    def rsample(self, p: float = 0.5) -> Self:
        """Keep each sample with a probability.

        Args:
            p: the probability, in [0, 1].
        """
        return self.compose(filters.rsample(p))

    def rename_keys(self, *args: tuple[str, str], **kw: Any) -> Self:
        """Rename fields by pattern; see :func:`webdataset.filters.rename_keys`."""
        return self.compose(filters.rename_keys(*args, **kw))

    def extract_keys(self, *args: str | list[str] | tuple[str, ...], **kw: Any) -> Self:
        """Turn samples into tuples of fields chosen by pattern; see :func:`webdataset.filters.extract_keys`."""
        return self.compose(filters.extract_keys(*args, **kw))

    def xdecode(self, *args: Any, **kw: Any) -> Self:
        """Decode fields by pattern; see :func:`webdataset.filters.xdecode`."""
        return self.compose(filters.xdecode(*args, **kw))

    def interleaved(self, layout: str = "auto", **kw: object) -> Self:
        """Put interleaved documents together, in whatever layout they are stored.

        Images are decoded by the ``decode`` before, the ``decode`` after it, or ``decode=``.

        Args:
            layout: ``auto``, ``siblings``, ``inline``, ``fields`` or ``pages``.
            **kw: ``decode``, ``others``, ``missing_image``, …; see :func:`webdataset.filters.interleaved`.
        """
        kw.setdefault("trust", self.trust)
        return self.compose(filters.interleaved_behind(getattr(self, "pipeline", ()), layout, **kw))

    def sibling_fields(self, **kw: Any) -> Self:
        """Make members ``D-<name>.jpg`` fields of the sample ``D``; see :func:`webdataset.filters.sibling_fields`."""
        return self.compose(filters.sibling_fields(**kw))

    def to_dict(self, *args: str | list[str] | tuple[str, ...], **kw: Any) -> Self:
        """Keep the fields whose names end in one of some suffixes; see :func:`webdataset.filters.to_dict`."""
        return self.compose(filters.to_dict(*args, **kw))

    def mcached(self) -> Self:
        """Keep all samples in memory after the first complete pass."""
        return self.compose(filters.Cached())

    def lmdb_cached(self, *args: Any, **kw: Any) -> Self:
        """Keep all samples in an LMDB file after the first complete pass; see ``webdataset.filters.LMDBCached``."""
        return self.compose(filters.LMDBCached(*args, **kw))
