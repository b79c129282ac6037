"""The settings of a training job that a forecast is made of: how many of everything, and outer limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, get_args

from webdataset.core.errors import UsageError

T = TypeVar("T")


def _setting(text: str, default: T, least: float = 0.0) -> T:
    return field(default=default, metadata={"text": text, "least": least})


@dataclass(frozen=True)
class TrainingJob:
    """A job: how many of everything.

    Args:
        ranks: processes that train.
        ranks_per_host: of them on one machine.
        workers: processes of each rank that read and decode; 0: the rank does so itself.
        streams: of an elastic dataset; 0 for one that is split by rank and worker.
        by_sample: split shards between workers by sample, where there are too few.
        batch_size: samples in a batch of a rank; rows, where the dataset packs samples into rows.
        samples_per_second: that the trainer of a rank takes (rows, likewise); None for as many as come.
        shuffle: samples in a shuffle buffer; of each stream, where the dataset is elastic.
        shuffle_initial: samples that it gathers before the first one is given.
        prefetch_bytes: that a worker may hold ahead, as ``WDS_PREFETCH_BYTES`` says.
        connections: of a worker at once, as ``WDS_CONNECTIONS`` says.
        batches_ahead: batches of the rank that its workers may be ahead by.
        cores: processors of a host that are free for reading; 0: those of this machine.
        host_bytes_per_second: of a host's network or disk; None for no limit.
        store_bytes_per_second: of the store, for all hosts; None for no limit.
        requests_per_second: that the store answers for one prefix; None for no limit.
        prefixes: over which the shards are spread.
        host_requests_per_second: that a host may send, as ``WDS_REQUESTS_PER_SECOND`` says; None for no limit.
        listed: the shards are named by a wildcard, so that each host lists them once.
        hours_between_failures: of one host; None for no failures.
        checkpoint_minutes: between two checkpoints.
        checkpoint_seconds: that the training waits for one.
    """

    ranks: int = _setting("Processes that train.", 8, 1)
    ranks_per_host: int = _setting("Of them on one machine.", 8, 1)
    workers: int = _setting("Processes of each rank that read and decode.", 4)
    streams: int = _setting("Of an elastic dataset; 0 splits by rank and worker.", 0)
    by_sample: bool = _setting("Split shards by sample where there are too few.", default=False)
    batch_size: int = _setting("Samples (rows of a dataset that packs) in a batch of a rank.", 32, 1)
    samples_per_second: float | None = _setting(
        "That the trainer of a rank takes; rows, where samples are packed.", None
    )
    shuffle: int = _setting("Samples in a shuffle buffer (of each stream).", 0)
    shuffle_initial: int = _setting("Samples gathered before the first is given.", 100)
    prefetch_bytes: int = _setting("That a worker may hold ahead.", 256 << 20)
    connections: int = _setting("Of a worker at once, as WDS_CONNECTIONS says.", 5, 1)
    batches_ahead: int = _setting("Batches that workers may be ahead by.", 3, 1)
    cores: int = _setting("Processors of a host; 0: as many as here.", 0)
    host_bytes_per_second: float | None = _setting("Network or disk of a host.", None)
    store_bytes_per_second: float | None = _setting("The store, for all hosts.", None)
    requests_per_second: float | None = _setting("That the store answers for one prefix.", None)
    prefixes: int = _setting("Over which the shards are spread.", 1, 1)
    host_requests_per_second: float | None = _setting("As WDS_REQUESTS_PER_SECOND says.", None)
    listed: bool = _setting("Shards are named by a wildcard.", default=False)
    hours_between_failures: float | None = _setting("Of one host.", None)
    checkpoint_minutes: float = _setting("Between two checkpoints.", 30.0)
    checkpoint_seconds: float = _setting("That the training waits for one.", 0.0)

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> "TrainingJob":
        """Return a job of named settings.

        Args:
            settings: by the names of the attributes.

        Raises:
            UsageError: an unknown name, or a value of the wrong type or too small.
        """
        known = {each.name: each for each in list_settings()}
        for name, value in settings.items():
            if name not in known:
                raise UsageError(f"a job has no setting {name!r}: it has {', '.join(known)}")
            _check_setting(known[name], value)
        checked: dict[str, Any] = dict(settings)
        return cls(**checked)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: fewer streams than ranks.
        """
        if 0 < self.streams < self.ranks:
            raise UsageError(f"{self.streams} streams for {self.ranks} ranks: some would have nothing to read")

    @property
    def hosts(self) -> int:
        """Number of machines."""
        return -(-self.ranks // self.ranks_per_host)

    @property
    def readers(self) -> int:
        """Number of processes that read, of all ranks."""
        return self.ranks * max(1, self.workers)


class JobSetting(NamedTuple):
    """A setting of :class:`TrainingJob`.

    Args:
        name: of the attribute.
        kind: of its value.
        optional: None is a value, too.
        default: where it is not given.
        least: value.
        text: what it is.
    """

    name: str
    kind: type
    optional: bool
    default: object
    least: float
    text: str


def list_settings() -> list[JobSetting]:
    """Return the settings of a job."""
    found = []
    for each in fields(TrainingJob):
        kinds = [kind for kind in (int, bool, float) if kind is each.type or kind in get_args(each.type)]
        optional = type(None) in get_args(each.type)
        found.append(
            JobSetting(each.name, kinds[0], optional, each.default, each.metadata["least"], each.metadata["text"])
        )
    return found


def _check_setting(setting: JobSetting, value: object) -> None:
    if value is None and setting.optional:
        return
    wanted: tuple[type, ...] = (int, float) if setting.kind is float else (setting.kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and setting.kind is not bool):
        raise UsageError(f"{setting.name} is {value!r}: it must be of type {setting.kind.__name__}")
    if isinstance(value, int | float) and (not math.isfinite(value) or value < setting.least):
        raise UsageError(f"{setting.name} is {value!r}: it must be a number of at least {setting.least:g}")
