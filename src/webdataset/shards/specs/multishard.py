"""Mixtures of datasets described in YAML: each pass takes a new sample of the shards.

A file or dict has this form::

    prefix: pipe:curl -s -L http://        # put before every url (optional)
    buckets: [data.example.com/sets/]      # default of the datasets: one place (optional)
    datasets:
      - name: first                        # for messages (optional)
        shards: train-{000..099}.tar       # or a list; braces, ~ and $NAME expand
        choose: 10                         # so many a pass, each at most once; or
        resample: 20                       # so many draws with replacement; default: all of them
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.shards.expand import expand_braces
from webdataset.shards.lists import Shard, ShardList, SimpleShardList, make_unseeded_rng
from webdataset.storage.local_files import open_raw

_KEYS = frozenset({"prefix", "datasets", "buckets"})
_DATASET_KEYS = frozenset({"name", "shards", "buckets", "resample", "choose"})


@dataclass
class MSSource:
    """The shards of one dataset of a mixture.

    Args:
        name: for messages.
        perepoch: shards a pass, each at most once; not positive for all.
        resample: draws a pass, with replacement; not positive for none.
        urls: the shards.
    """

    name: str = ""
    perepoch: int = -1
    resample: bool | int = -1
    urls: list[str] = field(default_factory=list)

    def sample_urls(self, generator: random.Random) -> list[str]:
        """Return the urls of one pass.

        Args:
            generator: what to draw from.
        """
        if self.resample > 0:
            return generator.choices(self.urls, k=int(self.resample))
        urls = list(self.urls)
        if self.perepoch > 0:
            generator.shuffle(urls)
            del urls[self.perepoch :]
        return urls


class MultiShardSample(ShardList):
    """A mixture of datasets: each pass samples the shards of every dataset and shuffles them together.

    Args:
        fname: path of a YAML file, or its content as a dict.

    Every pass draws anew: from the pipeline's run, so that workers that share the shards out agree, or from the
    operating system. After ``set_epoch`` it draws from that number alone, as published versions do.

    Raises:
        NotFound: no such file.
        UsageError: a specification that makes no sense.
    """

    def __init__(self, fname: str | os.PathLike[str] | dict[str, Any]) -> None:
        self.epoch = -1
        self.rng: random.Random | None = None
        self.sources: list[MSSource] = []
        self.parse_spec(fname)

    def parse_spec(self, fname: str | os.PathLike[str] | dict[str, Any]) -> None:
        """Read a specification.

        Args:
            fname: path of a YAML file, or its content as a dict.

        Raises:
            NotFound: no such file.
            UsageError: a specification that makes no sense.
        """
        spec, where = (fname, "specification") if isinstance(fname, dict) else (_load_yaml(fname), str(fname))
        if not isinstance(spec, dict) or not isinstance(spec.get("datasets"), list):
            raise UsageError(f"{where}: expected a mapping with a list 'datasets'")
        _check_keys(spec, _KEYS, where)
        prefix, default = settings.expand_environment(str(spec.get("prefix") or "")), spec.get("buckets")
        self.sources = [
            _parse_source(dataset, prefix, default, f"{where}, dataset {number}")
            for number, dataset in enumerate(spec["datasets"])
        ]

    def set_epoch(self, seed: int) -> None:
        """Draw the next passes from this number alone.

        Args:
            seed: number of the epoch, or any other number.
        """
        self.rng = random.Random(seed)  # noqa: S311  drawing shards, not cryptography

    def get_shards_for_epoch(self) -> list[str]:
        """Return the urls of one more pass."""
        return self._sample_urls(self.rng or make_unseeded_rng())

    def _sample_urls(self, generator: random.Random) -> list[str]:
        urls = [url for source in self.sources for url in source.sample_urls(generator)]
        generator.shuffle(urls)
        return urls

    def shards(self, epoch: int, draw: Callable[[], random.Random]) -> Iterator[Shard]:  # noqa: ARG002
        """Yield one pass."""
        for url in self._sample_urls(self.rng or draw()):
            yield {"url": url}


def _load_yaml(path: str | os.PathLike[str]) -> object:
    import yaml  # noqa: PLC0415  only specifications need it

    with open_raw(path) as stream:
        try:
            return yaml.safe_load(stream.read())
        except yaml.YAMLError as error:
            raise UsageError(f"not a YAML file: {error}", url=str(path)) from error


def _parse_source(dataset: object, prefix: str, buckets: object, where: str) -> MSSource:
    """Return one dataset of a specification."""
    if not isinstance(dataset, dict) or "shards" not in dataset:
        raise UsageError(f"{where}: expected a mapping with 'shards'")
    _check_keys(dataset, _DATASET_KEYS, where)
    bucket = _parse_bucket(dataset.get("buckets", buckets), where)
    shards = dataset["shards"]
    patterns = [shards] if isinstance(shards, str) else list(map(str, shards))
    names = [name for pattern in patterns for name in expand_braces(pattern)]
    urls = [prefix + os.path.join(bucket, settings.expand_environment(name)) for name in names]  # noqa: PTH118  urls
    choose, resample = _parse_count(dataset, "choose", where), _parse_count(dataset, "resample", where)
    if choose > 0 and resample > 0:
        raise UsageError(f"{where}: give either 'choose' or 'resample', not both")
    if choose > len(urls):
        raise UsageError(f"{where}: 'choose' is {choose}, but there are only {len(urls)} shards")
    return MSSource(str(dataset.get("name", f"@{bucket}")), choose, resample, urls)


def _check_keys(mapping: dict[str, object], known: frozenset[str], where: str) -> None:
    unknown = set(map(str, mapping)) - known
    if unknown:
        raise UsageError(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(known)}")


def _parse_bucket(buckets: object, where: str) -> str:
    if isinstance(buckets, list):
        if len(buckets) != 1:
            raise UsageError(f"{where}: 'buckets' names {len(buckets)} places; exactly one is supported")
        buckets = buckets[0]
    return settings.expand_environment(str(buckets or ""))


def _parse_count(dataset: dict[str, object], key: str, where: str) -> int:
    count = dataset.get(key, -1)
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{where}: '{key}' is a number of shards, not {count!r}")
    return count


def shardspec(spec: str | os.PathLike[str] | dict[str, Any]) -> SimpleShardList | MultiShardSample:
    """Return the list of shards that a specification stands for.

    Args:
        spec: path of a ``.yaml`` or ``.yml`` file, or urls.

    Raises:
        NotFound: no such file.
        UsageError: a specification that makes no sense.
    """
    if isinstance(spec, dict) or str(spec).endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)
