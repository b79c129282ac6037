"""A list of shards as one sequence of samples, for map-style loading.

Made from a shard index, or a list of shards with their numbers of samples. Shards are opened when first needed; the
least recently used are closed. Names of fields start with a dot, and values that nothing decodes are ``BytesIO``
objects, as in wids.

The dataset passes for a torch Dataset without importing torch: ``isinstance(dataset, torch.utils.data.Dataset)`` asks
``__class__`` where the type says no, and once torch is loaded, that is a class below both ours and torch's.
"""

import base64
import bisect
import dataclasses
import hashlib
import io
import itertools
import logging
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, SupportsIndex

from webdataset.core import settings
from webdataset.core.errors import MissingExtra, NoSuchSample, StaleIndex, UsageError
from webdataset.core.optional_imports import install_command, loaded_module
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.core.trust import trust_level
from webdataset.index.build import choose_reading
from webdataset.index.wids.local_copies import LocalShards, LRUCache, OpenShard
from webdataset.index.wids.transforms import Transformation, interpret_transformations
from webdataset.shards.expand import expand_urls
from webdataset.shards.wids_index import WidsIndex, WidsShard, read_wids_json

_classes: dict[tuple[type, type], type] = {}


def _combine(kind: type, base: type) -> type:
    """Return the class below two classes; the same one every time."""
    if (kind, base) not in _classes:
        _classes[kind, base] = type(
            kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__}
        )
    return _classes[kind, base]


class MapDataset:
    """Base of the datasets with random access that a DataLoader may be given."""

    @property
    def __class__(self) -> Any:
        kind = type(self)
        base = getattr(loaded_module("torch.utils.data"), "Dataset", None)
        return kind if base is None or issubclass(kind, base) else _combine(kind, base)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        object.__dict__["__class__"].__set__(self, kind)

    def __add__(self, other: object) -> object:
        """Return torch's ConcatDataset of both.

        Raises:
            MissingExtra: torch is not loaded.
        """
        data = loaded_module("torch.utils.data")
        if data is None:
            raise MissingExtra(
                f"adding datasets makes a torch ConcatDataset: {install_command('torch')}, then import torch"
            )
        return data.ConcatDataset([self, other])

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle with lambdas and local functions, for workers started by spawn and forkserver."""
        import cloudpickle  # noqa: PLC0415  only travellers pay for it

        return _rebuild_dataset, (cloudpickle.dumps((type(self), self.__getstate__())),)


def _rebuild_dataset(pickled: bytes) -> Any:
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    kind, state = cloudpickle.loads(pickled)
    result = kind.__new__(kind)
    result.__setstate__(state)
    return result


# a cache_size below this is a number of shards, as in wids 0.2.86
_FEW = 1_000_000
# as shards are called, and indexes are not
_SHARDS = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")
_ENOUGH_ACCESSES = 100
_TOO_MANY_MISSES = 0.3

log = logging.getLogger("webdataset")


class ShardListDataset(MapDataset):
    """The samples of many shards, by number.

    A sample is ``{".jpg": …, ".cls": …, "__key__", "__dataset__", "__index__", "__shard__", "__shardindex__"}``.

    Args:
        shards: url or path of an index (wids JSON), an open file or a dict with one, a list of ``{"url", "nsamples"}``,
            or urls of shards (a list, or one text with braces), whose samples are then counted.
        cache_size: bound in bytes on the downloads in ``cache_dir``; a small number is ``lru_size``, as in wids 0.2.86.
        cache_dir: keep whole shards here after downloading them; by default ``WIDS_CACHE``. Without it, remote shards
            are read by ranges where the server allows that, and else through temporary files.
        dataset_name: of samples whose shards name no dataset; by default the index's name.
        localname: url to local path: shards are copied there and kept.
        transformations: ``"PIL"`` or ``"numpy"``: the decoders of wids; an image spec such as ``"rgb"``: all decoders
            of webdataset; a function of the sample; a list of these; None or ``[]``: nothing is decoded.
        keep: never delete downloads from ``cache_dir``, whatever ``cache_size`` says; an index may say so too.
        base: what relative urls of the index are joined to.
        options: replace or add keys of the index.
        lru_size: how many shards to keep open.
        trust: ``strict``, ``safe`` or ``full``: what decoding may execute, and what an index from the network may name.
        **reading: rules of reading, such as ``duplicates``; see :class:`webdataset.samples.sample_reader.Reading`.

    Attributes:
        shards: the shards, as dicts.
        lengths: their numbers of samples.
        cum_lengths: the sums of these up to each shard.
        total_length: number of samples.

    Raises:
        NotFound: no such index.
        FormatError: an index that is none.
        UsageError: arguments that cannot mean anything.
        TypeError: a rule of reading that there is not.
    """

    def __init__(  # noqa: PLR0917  the positions of wids 0.2.86
        self,
        shards: object,
        cache_size: float | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: object = "PIL",
        keep: bool = False,  # noqa: FBT001, FBT002
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        lru_size: int = 10,
        trust: str | None = None,
        **reading: Any,
    ) -> None:
        trust_level(trust)
        counted = cache_size is not None and 0 < cache_size < _FEW
        self.lru_size = int(cache_size) if counted and cache_size is not None else lru_size
        bounded = not counted and cache_size is not None
        folder = os.fspath(cache_dir) if cache_dir is not None else settings.WIDS_CACHE.get()
        self._nearby = LocalShards(
            folder,
            float(cache_size) if bounded and cache_size is not None else -1,
            localname,
            trust,
            choose_reading("ShardListDataset", None, {"trust": trust, **reading}),
        )
        self._begin()
        self.index = self._index(shards, base, options, trust)
        self.base = base
        self.spec = dict(self.index.document)
        self.keep = keep or self.spec.get("keep") is True
        if self.keep:
            self._nearby = dataclasses.replace(self._nearby, size_bytes=-1)
        self.cache_dir = folder
        self.localname = localname
        self.shards = [shard.to_entry() for shard in self.index.shards]
        self.lengths = [shard.nsamples for shard in self.index.shards]
        self.cum_lengths = list(itertools.accumulate(self.lengths))
        self.total_length = self.cum_lengths[-1] if self.cum_lengths else 0
        self._name = dataset_name or self.index.name
        self.dataset_name = self._name or hash_dataset_name(str(self.index.urls))
        self.transformations = interpret_transformations(transformations, trust)
        if settings.WIDS_VERBOSE.get():
            log.warning("wids: %r", self)

    def _index(self, shards: Any, base: str | None, options: Mapping[str, Any] | None, trust: str | None) -> WidsIndex:
        urls = _find_urls(shards)
        if urls is None:
            return read_wids_json(shards, base=base, options=options, trust=trust)
        found = []
        for which, url in enumerate(urls):
            self.cache[which] = opened = self._nearby.open(url)
            found.append(WidsShard(url, len(opened)))
        return WidsIndex(None, tuple(found), (options or {}).get("name"), dict(options or {}))

    def _begin(self) -> None:
        self._locks = {os.getpid(): threading.RLock()}
        # a shard that is let go closes when the last thread has read from it
        self.cache = LRUCache(self.lru_size)
        self.reset_stats()

    def add_transform(self, transform: Transformation) -> Self:
        """Add a function of the sample, to be called after those there are.

        Args:
            transform: sample to sample, or to anything.

        Returns:
            This dataset.
        """
        self.transformations.append(transform)
        return self

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.total_length

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, transformed; or a list of samples, for a slice.

        Args:
            index: its number; negative ones count from the end. Or a slice.

        Raises:
            NoSuchSample: there is no such number (an IndexError).
            StaleIndex: the shard does not have the samples that the index says.
            SourceError: a shard cannot be read.
            DecodingError: a field does not decode.
        """
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        opened, which, ordinal, place = self._find_sample(index)
        shard = self.index.shards[which]
        read = opened.read(ordinal)
        key = read.pop("__key__")
        del read["__url__"]
        sample: Any = {"." + name: io.BytesIO(payload) for name, payload in read.items()}
        sample["__key__"] = key
        sample["__dataset__"] = shard.dataset or self._name
        sample["__index__"] = place
        sample["__shard__"] = shard.url
        sample["__shardindex__"] = ordinal
        for transformation in self.transformations:
            sample = transformation(sample)
        return sample

    def _find_sample(self, index: Any) -> tuple[OpenShard, int, int, int]:
        """Return a sample's shard, open, the numbers of both, and its place in the dataset."""
        number = operator.index(index)
        place = number + self.total_length if number < 0 else number
        if not 0 <= place < self.total_length:
            raise NoSuchSample(f"there is no sample {number}: the dataset has {self.total_length}")
        which = bisect.bisect_right(self.cum_lengths, place)
        with self._locks.get(os.getpid()) or self._renew_lock():
            self.accesses += 1
            opened = self.cache[which]
            if opened is None:
                opened = self._open_shard(which)
        return opened, which, place - self.cum_lengths[which] + self.lengths[which], place

    def __iter__(self) -> Iterator[Any]:
        """Yield all samples, in order."""
        return (self[place] for place in range(self.total_length))

    def _renew_lock(self) -> threading.RLock:
        """Return a lock for a process that was forked; what is open is shared, unless the fork came in between."""
        mine = threading.RLock()
        with mine:
            before = list(self._locks.values())
            lock = self._locks.setdefault(os.getpid(), mine)
            if lock is mine and not before[-1].acquire(blocking=False):
                self.cache = LRUCache(self.lru_size)
        return lock

    def _open_shard(self, which: int) -> OpenShard:
        self.misses += 1
        shard = self.index.shards[which]
        opened = self._nearby.open(shard.url)
        try:
            _check_count(opened, shard, exact=self.index.place is not None)
        except BaseException:  # whatever happens, the shard is closed
            opened.close()
            raise
        self.cache[which] = opened
        return opened

    def get_shard(self, index: int) -> tuple[OpenShard, int, dict[str, Any]]:
        """Return where a sample is.

        Args:
            index: its number, from 0.

        Returns:
            Its shard, open, its number in it, and what the index says of the shard.

        Raises:
            NoSuchSample: there is no such number.
            SourceError: the shard cannot be read.
        """
        opened, which, ordinal, _ = self._find_sample(index)
        return opened, ordinal, self.shards[which]

    def get_stats(self) -> tuple[int, int]:
        """Return how often a shard was needed, and how often it was not open."""
        return self.accesses, self.misses

    def reset_stats(self) -> None:
        """Begin to count again."""
        self.accesses = self.misses = 0

    def check_cache_misses(self) -> None:
        """Warn where shards are opened and closed all the time: more than 30 of 100 accesses."""
        accesses, misses = self.get_stats()
        if accesses > _ENOUGH_ACCESSES and misses > _TOO_MANY_MISSES * accesses:
            warn_user(
                f"{misses} of {accesses} samples needed a shard that was not open: read in the order of a "
                f"ShardListSampler or ChunkedSampler, or keep more shards open than lru_size={self.lru_size}",
            )

    def close(self) -> None:
        """Close all shards and remove temporary files; shards are opened again where they are needed again."""
        with self._locks.get(os.getpid()) or self._renew_lock():
            self.cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what is open."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_locks", "cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        place = redact(self.index.place) if self.index.place else "a list"
        return (
            f"<{type(self).__name__} {self._name or ''!r} of {place}: {len(self.shards)} shards, "
            f"{self.total_length} samples>"
        )


def hash_dataset_name(input_string: str) -> str:
    """Return 16 letters that stand for a text: the start of its SHA-256 in base 64.

    Args:
        input_string: any text.
    """
    digest = hashlib.sha256(input_string.encode("utf-8", "surrogateescape")).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")[:16]


def _find_urls(shards: Any) -> list[Any] | None:
    """Return urls of shards whose samples have to be counted, or None for an index or a list with counts."""
    if isinstance(shards, os.PathLike) and os.fsdecode(shards).endswith(_SHARDS):
        return [os.fsdecode(shards)]
    if isinstance(shards, str) and ("{" in shards or shards.endswith(_SHARDS)):
        return expand_urls(shards)
    if isinstance(shards, list | tuple) and shards and all(isinstance(each, str | os.PathLike) for each in shards):
        return expand_urls(list(shards))
    if isinstance(shards, set | frozenset | bytes):
        raise UsageError(f"shards are an index, a list of dicts or urls, not a {type(shards).__name__}")
    return None


def _check_count(opened: OpenShard, shard: WidsShard, *, exact: bool) -> None:
    """Compare a shard with what is said of it; a list made by hand may use fewer samples than there are."""
    found = len(opened)
    if found == shard.nsamples:
        return
    message = (
        f"the index says {shard.nsamples} samples, and the shard has {found}: write the index again (wids-index create)"
    )
    if exact or found < shard.nsamples:
        raise StaleIndex(message, url=shard.url)
    warn_user(f"{redact(shard.url)}: only {shard.nsamples} of {found} samples are used")
