"""The description of a job that maps shards to shards: plain values, equal in every process that is given it.

Theory. The unit of work is one output. Its parts say which samples of which inputs it is made of, decided before the
function runs, by positions: one whole input, or the samples [jT/M, (j+1)T/M) of all T. So an output does not depend on
the engine, on how many tasks there are, or on what they did before. :meth:`ShardJob.only` keeps what one output needs,
which is what an engine sends.

The function travels by its import name, or by value where it has none; plain JSON holds the rest.
"""

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from webdataset.cluster.function_digest import describe_function, name_function
from webdataset.cluster.stored_files import StoredIdentity, digest_record, file_name
from webdataset.core.errors import UsageError
from webdataset.core.redaction import redact
from webdataset.core.trust import trust_level

OnSampleError = Literal["raise", "skip", "quarantine"]
KIND = "wds-map-job"
VERSION = 1


class InputShard(NamedTuple):
    """A shard that a job reads.

    Args:
        url: of it.
        identity: which version of it the job was planned for.
        count: its samples, where they were counted.
        blake2b: digest of its bytes, where they were read when they were counted.
    """

    url: str
    identity: StoredIdentity
    count: int | None = None
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
        engine: name of the engine, for receipts.
        unseen: what the digests of the function cannot see.
        callable: the function, where it has no import name; travels by value.
        storage_options: what inputs are opened with; in no record.
    """

    function: Mapping[str, Any]
    params: Mapping[str, Any]
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
    engine: str = "serial"
    unseen: tuple[str, ...] = ()
    callable: Callable[..., Any] | None = dataclasses.field(default=None, compare=False)
    storage_options: Any = dataclasses.field(default=None, compare=False, repr=False)

    def only(self, number: int) -> "ShardJob":
        """Return the job with one output and its inputs: what a task needs.

        Args:
            number: of the output.
        """
        output = self.outputs[number]
        inputs = {part.number: self.inputs[part.number] for part in output.parts}
        return dataclasses.replace(self, outputs={number: output}, inputs=inputs)

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON, without function objects and storage options."""
        record = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("callable", "storage_options", "inputs", "outputs")
        }
        record |= {"kind": KIND, "version": VERSION, "unseen": list(self.unseen)}
        record["inputs"] = [
            [number, shard.url, shard.identity.to_json(), shard.count, shard.blake2b]
            for number, shard in sorted(self.inputs.items())
        ]
        record["outputs"] = [
            [number, shard.url, [list(part) for part in shard.parts]] for number, shard in sorted(self.outputs.items())
        ]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ShardJob":
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

    def __reduce__(self) -> tuple[Any, ...]:
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


def _restore_job(record: Mapping[str, Any], pickled: bytes) -> ShardJob:
    return ShardJob.from_json(record).with_objects(pickled)


@functools.lru_cache(maxsize=8)
def _unpickle_objects(pickled: bytes) -> tuple[Callable[..., Any] | None, Any]:
    """Return what the driver sent; the same bytes give the same function, so that it is set up once a process."""
    import cloudpickle  # noqa: PLC0415  for functions by value alone

    function, options = cloudpickle.loads(pickled)
    return function, options


def _pickle_objects(function: Callable[..., Any] | None, options: object) -> bytes:
    import pickle  # noqa: PLC0415  for what is sent alone

    from webdataset.flow.pickling import pickle_by_value  # noqa: PLC0415

    try:
        return pickle_by_value((function, options))
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UsageError(
            f"the function cannot be sent to another process: {error}. Put it into a module that the processes can "
            "import, and what it needs into setup() of a class"
        ) from error


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(part) for name, part in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


def make_job(
    function: Callable[..., Any] | str,
    inputs: Mapping[int, InputShard],
    outputs: Mapping[int, OutputShard],
    *,
    params: Mapping[str, Any] | None = None,
    version: str | None = None,
    manifest: str | None = None,
    **options: Any,
) -> ShardJob:
    """Return a job: the function is described, and the key computed.

    Args:
        function: the function, or its import name ``module:name``.
        inputs: number to input.
        outputs: number to output, all of them.
        params: keyword arguments of the function.
        version: what the user declares about the function.
        manifest: folder of the job's records; by default beside the first output.
        **options: further fields of :class:`ShardJob`.

    Raises:
        UsageError: arguments that make no sense; the message says which.
    """
    from webdataset.cluster.mapped_functions import load_named, refuse_form  # noqa: PLC0415  it imports this module

    called = load_named(function) if isinstance(function, str) else function
    described = describe_function(called, version)
    kept = _check_params(params or {})
    policy = options.get("on_sample_error", "raise")
    if policy not in get_args(OnSampleError):
        raise UsageError(f"on_sample_error={policy!r} is none of {', '.join(map(repr, get_args(OnSampleError)))}")
    if options.get("trust") not in (None, "name"):
        raise UsageError(f"trust={options['trust']!r} is neither 'name' nor None")
    refuse_form(called, policy)
    urls = [shard.url for _, shard in sorted(outputs.items())]
    _check_urls(urls, [shard.url for shard in inputs.values()])
    what = {
        "fn": [described.name, described.code, described.holds, version],
        "params": kept,
        "inputs": [shard.url for _, shard in sorted(inputs.items())],
        "outputs": urls,
        "options": [options.get("compress"), options.get("level"), options.get("assignment"), policy],
    }
    key = digest_record(what)
    folder = manifest or f"{urls[0].rpartition('/')[0] or '.'}/_wds/{key}"
    by_name = isinstance(function, str) or _is_importable(called)
    name = function if isinstance(function, str) else described.name
    return ShardJob(
        {**described.to_json(), "name": name},
        kept,
        inputs,
        outputs,
        len(outputs),
        folder.rstrip("/"),
        key,
        unseen=described.unseen,
        callable=None if by_name else called,
        **options,
    )


def _check_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters that receipts can hold.

    Raises:
        UsageError: they are not plain, or one is named as a secret is.
    """
    for name, value in params.items():
        shown = f"{name}=value"
        if redact(shown) != shown:
            raise UsageError(
                f"the parameter {name!r} is named like a secret, and receipts hold parameters: let the function read "
                "it from the environment"
            )
        if not _is_json(list(value) if isinstance(value, tuple) else value):
            raise UsageError(f"params[{name!r}] is no plain value (number, text, list, dict), which receipts can hold")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def _check_urls(outputs: Sequence[str], inputs: Sequence[str]) -> None:
    if not outputs:
        raise UsageError("there is nothing to write: name at least one output")
    twice = sorted({url for url in outputs if outputs.count(url) > 1}) if len(set(outputs)) < len(outputs) else []
    if twice:
        raise UsageError(f"several outputs would have one name: {redact(twice[0])}")
    both = set(outputs) & set(inputs)
    if both:
        raise UsageError("an output would replace an input: choose another folder", url=sorted(both)[0])
    for url in outputs:
        if url == "-" or url.startswith("pipe:") or not file_name(url):
            raise UsageError("a job's outputs are files or objects that can be looked at again", url=url)
    _refuse_strict_commands(inputs)


def _refuse_strict_commands(inputs: Sequence[str]) -> None:
    if trust_level(None) == "strict" and any(url.startswith("pipe:") for url in inputs):
        raise UsageError("trust is strict: commands (pipe:) cannot be inputs")


def _is_importable(function: Any) -> bool:
    """Tell whether another process finds this very function under its name."""
    if not hasattr(function, "__qualname__") or "<" in function.__qualname__:
        return False
    module, _, name = name_function(function).partition(":")
    if module == "__main__" or module not in sys.modules:
        return False
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is function
