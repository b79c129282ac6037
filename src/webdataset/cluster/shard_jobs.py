"""The description of a job that maps shards to shards: plain values, equal in every process that is given it.

Theory. The unit of work is one output. Its parts say which samples of which inputs it is made of, decided before the
function runs, by positions: one whole input, or the samples [jT/M, (j+1)T/M) of all T. So an output does not depend on
the engine, on how many tasks there are, or on what they did before. :meth:`ShardJob.only` keeps what one output needs,
which is what an engine sends.

The function travels by its import name, or by value where it has none; plain JSON holds the rest.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple

from webdataset.cluster.function_digest import AnyFunction
from webdataset.cluster.stored_files import Record, StoredIdentity
from webdataset.core.errors import UsageError
from webdataset.core.redaction import redact

OnSampleError = Literal["raise", "skip", "quarantine"]
KIND = "wds-map-job"
VERSION = 1


class InputShard(NamedTuple):
    """A shard that a job reads.

    Args:
        url: of it.
        identity: which version of it the job was planned for.
        samples: how many it has, where they were counted.
        blake2b: digest of its bytes, where they were read when they were counted.
    """

    url: str
    identity: StoredIdentity
    samples: int | None = None
    blake2b: str | None = None


class InputPart(NamedTuple):
    """Samples of one input.

    Args:
        number: of the input.
        start: the first sample.
        stop: the sample after the last one; None for all.
    """

    number: int
    start: int = 0
    stop: int | None = None


class OutputShard(NamedTuple):
    """A shard that a job makes.

    Args:
        url: of it.
        parts: what it is made of.
    """

    url: str
    parts: tuple[InputPart, ...]


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """What a job does.

    Args:
        function: name, digests and declared version of the function, as JSON.
        params: keyword arguments of the function, plain values.
        inputs: number to input; all, or those of some outputs.
        outputs: number to output, likewise.
        count: how many outputs the whole job has.
        manifest: folder of the job's records.
        key: digest of what the job does, without the versions of its inputs.
        compress: compression of the outputs; None for none.
        level: of the compression.
        assignment: ``1:1`` or ``N:M``.
        on_sample_error: what to do about a sample for which the function fails.
        max_errors: a task fails when more samples (a count), or a larger share of them, failed.
        trust: ``name`` takes inputs without an identity as unchanged.
        recompute: make outputs anew though they are done.
        verify: read outputs that are done, and compare their digests.
        engine: name of the engine, for receipts.
        unseen: what the digests of the function cannot see.
        callable: the function, where it has no import name; travels by value.
        storage_options: what inputs are opened with; in no record.
    """

    function: Record
    params: Record
    inputs: Mapping[int, InputShard]
    outputs: Mapping[int, OutputShard]
    count: int
    manifest: str
    key: str
    compress: str | None = None
    level: int | None = None
    assignment: str = "1:1"
    on_sample_error: OnSampleError = "raise"
    max_errors: float | None = None
    trust: str | None = None
    recompute: bool = False
    verify: bool = False
    engine: str = "serial"
    unseen: tuple[str, ...] = ()
    callable: AnyFunction | None = dataclasses.field(default=None, compare=False)
    storage_options: object = dataclasses.field(default=None, compare=False, repr=False)

    def only(self, number: int) -> "ShardJob":
        """Return the job with one output and its inputs: what a task needs.

        Args:
            number: of the output.
        """
        output = self.outputs[number]
        inputs = {part.number: self.inputs[part.number] for part in output.parts}
        return dataclasses.replace(self, outputs={number: output}, inputs=inputs)

    def to_json(self) -> Record:
        """Return the job as JSON, without function objects and storage options."""
        record = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("callable", "storage_options", "inputs", "outputs")
        }
        record |= {"kind": KIND, "version": VERSION, "unseen": list(self.unseen)}
        record["inputs"] = [
            [number, shard.url, shard.identity.to_json(), shard.samples, shard.blake2b]
            for number, shard in sorted(self.inputs.items())
        ]
        record["outputs"] = [
            [number, shard.url, [list(part) for part in shard.parts]] for number, shard in sorted(self.outputs.items())
        ]
        return record

    def describe(self) -> Record:
        """Return the job as JSON for people, without secrets in urls: what is kept in the manifest."""
        record = self.to_json()
        for name in ("inputs", "outputs"):
            record[name] = [[number, redact(url), *rest] for number, url, *rest in record[name]]
        return {**record, "manifest": redact(self.manifest)}

    @classmethod
    def from_json(cls, record: Record) -> "ShardJob":
        """Return the job that :meth:`to_json` described.

        Raises:
            UsageError: it is something else, or of another version.
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"callable", "storage_options"}
        if record.get("kind") != KIND or record.get("version") != VERSION:
            raise UsageError("this is no description of a job that this version of the library can read")
        values = {name: record[name] for name in known if name in record}
        values["inputs"] = {
            number: InputShard(url, StoredIdentity.from_json(identity), count, digest)
            for number, url, identity, count, digest in record["inputs"]
        }
        values["outputs"] = {
            number: OutputShard(url, tuple(InputPart(*part) for part in parts))
            for number, url, parts in record["outputs"]
        }
        return cls(**{**values, "unseen": tuple(record.get("unseen", ()))})

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the function by value, everything else as JSON."""
        return _restore_job, (self.to_json(), self.pickle_objects())

    def pickle_objects(self) -> bytes:
        """Return what JSON cannot hold, the function and the storage options, by value: for a child's pipe."""
        return _pickle_objects(self.callable, self.storage_options)

    def with_objects(self, pickled: bytes) -> "ShardJob":
        """Return the job with the objects of :meth:`pickle_objects`; for bytes of the process's own parent alone.

        Args:
            pickled: the same bytes give the same objects.
        """
        function, options = _unpickle_objects(pickled)
        return dataclasses.replace(self, callable=function, storage_options=options)


def _restore_job(record: Record, pickled: bytes) -> ShardJob:
    return ShardJob.from_json(record).with_objects(pickled)


@functools.lru_cache(maxsize=8)
def _unpickle_objects(pickled: bytes) -> tuple[AnyFunction | None, object]:
    """Return what the driver sent; the same bytes give the same function, so that it is set up once a process."""
    import cloudpickle  # noqa: PLC0415  for functions by value alone

    function, options = cloudpickle.loads(pickled)
    return function, options


def _pickle_objects(function: AnyFunction | None, options: object) -> bytes:
    import pickle  # noqa: PLC0415  for what is sent alone

    from webdataset.flow.pickling import pickle_by_value  # noqa: PLC0415

    try:
        return pickle_by_value((function, options))
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UsageError(
            f"the function cannot be sent to another process: {error}. Put it into a module that the processes can "
            "import, and what it needs into setup() of a class"
        ) from error
