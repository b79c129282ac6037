"""The dataset that most programs begin with: ``wds.WebDataset(urls)``.

It puts the right stages into the right order, and does nothing else; its result is a pipeline to chain further stages
on.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from webdataset import tariterators
from webdataset.core import trust as trust_levels
from webdataset.core.error_handlers import Handler, reraise_exception
from webdataset.core.seeds import read_seed
from webdataset.core.upstream_utils import check_flags, legacy_argument_order
from webdataset.flow.pipeline import DataPipeline
from webdataset.flow.run import STREAMS
from webdataset.fluent import interface
from webdataset.fluent.interface import FluidInterface
from webdataset.samples.sample_reader import ReadingOptions
from webdataset.shards.source import SourceArguments, SpecSource, parse_source

if TYPE_CHECKING:
    from pathlib import Path

    from webdataset.fluent.elastic_dataset import ElasticDataset
    from webdataset.shards.specs.load import SpecLike


class WebDataset(DataPipeline, FluidInterface):
    """Samples of tar shards.

    Args:
        urls: a url or path (``{000..099}`` braces, ``::`` between several, globs of local files), a list or iterable of
            them, a directory ending in ``/``, an object that yields ``{"url": …}``; or a dataset specification or shard
            index: a ``.yaml`` or ``.json`` file (not a command), a dict, or what ``load_spec`` returned.
        handler: asked where a shard or sample fails: true continues with the next shard, false ends the pass.
        mode: ``"resampled"``, or the mode of a directory list.
        resampled: draw shards at random with replacement, without end.
        repeat: start over forever (``True``), or this many passes.
        shardshuffle: buffer size of the shard shuffle (True is 100); None, False or 0 keeps the order.
        cache_size: size bound of the cache in bytes; 0 for no cache; -1 is ``WDS_CACHE_SIZE``, or no bound.
        cache_dir: directory to keep remote shards in, made where it is missing; None is ``WDS_CACHE``, or no cache.
        url_to_name: url to file name in the cache; see :class:`webdataset.caching.shard_cache.ShardCache`.
        detshuffle: shuffle shards by (seed, epoch) alone.
        nodesplitter: shares the shards out between ranks; None reads all of them on every rank.
        workersplitter: shares the shards out between DataLoader workers; None reads all of them in every worker.
            Neither default splits what an object yields that the program made (a warning says so where several ranks
            or workers read a list object whole), nor a directory, whose shards are claimed.
        select_files: full member name to bool; others are stepped over.
        rename_files: full member name to full member name; applied first.
        empty_check: raise where a whole pass gives no sample.
        verbose: log what the cache does.
        seed: decides every order together with the epoch; None is ``WDS_SEED``, or different for every run.
        trust: ``strict``, ``safe`` or ``full``: what decoding may execute, and what a specification may name.
        split: which split of a specification; None for the only one, or ``train``.
        open_shards: number of shards that are read at once, a sample of each in turn; see docs/shuffling.md.
        cache_revalidate: when the store is asked whether a cached shard is still the same: ``never``, ``once`` in each
            process, ``always``; None is ``WDS_CACHE_REVALIDATE``.
        **reading: ``keys``, ``duplicates``, ``split_samples``, ``missing_end``, ``addresses``, ``lcase``, ``suffixes``,
            ``limits``, ``storage_options``, ``memory_map``, ``where`` (an expression, as
            ``"json.width >= 512"``: only samples for which it holds are given; see docs/where.md); see
            :class:`webdataset.samples.sample_reader.Reading`.

    Raises:
        UsageError: arguments that cannot mean anything.
    """

    @legacy_argument_order(
        3,
        # webdataset 0.2.86 has ``resampled`` in the place of ``mode``
        bool,
        "resampled repeat shardshuffle cache_size cache_dir url_to_name detshuffle nodesplitter select_files "
        "rename_files verbose",
    )
    def __init__(  # noqa: PLR0917  upstream's signature
        self,
        urls: object,
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,  # noqa: FBT001, FBT002  upstream's signature, here and below
        repeat: bool | int = False,  # noqa: FBT001, FBT002
        shardshuffle: bool | int | None = None,  # noqa: FBT001
        cache_size: int = -1,
        cache_dir: "str | Path | None" = None,
        url_to_name: Callable[[str], str] | None = None,
        detshuffle: bool = False,  # noqa: FBT001, FBT002
        nodesplitter: interface.Splitter | None = interface.NODE_SPLITTER,
        workersplitter: interface.Splitter | None = interface.WORKER_SPLITTER,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,  # noqa: FBT001, FBT002
        verbose: bool = False,  # noqa: FBT001, FBT002
        seed: int | None = None,
        *,
        trust: str | None = None,
        split: str | None = None,
        open_shards: int = 1,
        cache_revalidate: str | None = None,
        **reading: Unpack[ReadingOptions],
    ) -> None:
        super().__init__()
        rules = interface.check_reading_rules(dict(reading), shardshuffle=shardshuffle, repeat=repeat)
        check_flags(resampled=resampled, detshuffle=detshuffle, empty_check=empty_check, verbose=verbose)
        self.seed = seed = seed if isinstance(seed, int | None) else read_seed(seed)
        self.trust = trust_levels.trust_level(trust) if trust is not None else None
        size = 100 if shardshuffle is True else None if shardshuffle is None else int(shardshuffle)

        def reader(folder: str | None = None, where: str | None = None) -> Any:
            near = folder or cache_dir, cache_size, url_to_name, cache_revalidate
            cache = interface.make_shard_cache(*near, verbose=verbose, handler=handler)
            given = {} if where is None else {"where": interface.parse_where(where, rules.get("where"))}
            chosen = {**rules, **given, "trust": self.trust, "cache": cache}
            one = tariterators.own_reader(handler, select_files, rename_files, **chosen)
            return interface.open_side_by_side(one, open_shards)

        source = parse_source(urls, SourceArguments(mode, resampled, seed, trust, split, rules.get("storage_options")))
        if isinstance(source, SpecSource):
            from webdataset.fluent import specs  # noqa: PLC0415  only where a specification is read

            building = specs.SourceOptions(
                reader, interface.unwrap_splitter(nodesplitter),
                interface.unwrap_splitter(workersplitter), size or None,
                detshuffle, seed, resampled, empty_check, self.trust,
            )  # fmt: skip
            self.append(specs.make_spec_source(source.mix, building, mode, rules.get("storage_options")))
        else:
            # it may wait for what reading brings about
            if source.foreign:
                rules.setdefault("prefetch", 0)
            order = interface.ShardOrder(nodesplitter, workersplitter, size, seed, detshuffle)
            for stage in interface.reading_stages(source, order, reader(), empty_check=empty_check):
                self.append(stage)
        if repeat:
            self.repeat(-1 if repeat is True else int(repeat))

    def elastic(self, streams: int = STREAMS) -> "ElasticDataset":
        """Read in virtual streams, to be resumed under any number of ranks and workers.

        Args:
            streams: how many; see :meth:`webdataset.flow.pipeline.DataPipeline.elastic`.
        """
        from webdataset.fluent.elastic_dataset import ElasticDataset  # noqa: PLC0415  only for datasets in streams

        return ElasticDataset.of(self, streams)


def from_spec(spec: "SpecLike", split: str | None = None, **options: Any) -> WebDataset:
    """Return the dataset that a specification describes.

    Args:
        spec: a path, url, dict, or what ``load_spec`` returned.
        split: which split; None for the only one, or ``train``.
        **options: arguments of :class:`WebDataset`, which hold for every source.

    Raises:
        SpecError: mistakes in the specification, each named by its place.
    """
    from webdataset.shards.specs.load import load_spec  # noqa: PLC0415  only where a specification is read

    return WebDataset(load_spec(spec, trust=options.get("trust")), split=split, **options)
