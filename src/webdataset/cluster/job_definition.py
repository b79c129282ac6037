"""Makes a job of what a user gives: checks it, describes the function, and computes the key."""

import importlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack, get_args

from webdataset.cluster.function_digest import AnyFunction, describe_function, name_function
from webdataset.cluster.mapped_functions import refuse_form
from webdataset.cluster.shard_jobs import InputShard, OnSampleError, OutputShard, ShardJob
from webdataset.cluster.stored_files import Record, digest_record, file_name
from webdataset.core.errors import UsageError
from webdataset.core.redaction import redact
from webdataset.core.trust import trust_level
from webdataset.reshaping.processing import load_function
from webdataset.storage.same_file import InputFiles, find_place


class JobOptions(TypedDict, total=False):
    """What a job may further be given.

    Args:
        params: keyword arguments of the function (of a class, when it is made): plain values.
        version: what the user declares about all that the function's source does not show: models, packages.
        on_sample_error: where the function fails for a sample, ``raise`` (the output fails), ``skip`` it, or keep it
            aside in a ``quarantine``.
        max_errors: an output fails when more samples (a count), or a larger share of them (below 1), failed.
        level: of the compression.
        trust: ``name`` takes inputs that do not say which version they are (commands) for unchanged.
        recompute: make outputs that are done, too.
        verify: read outputs that are done, and compare their digests.
    """

    params: Mapping[str, object] | None
    version: str | None
    on_sample_error: OnSampleError
    max_errors: float | None
    level: int | None
    trust: str | None
    recompute: bool
    verify: bool


def make_job(
    function: AnyFunction | str,
    inputs: Mapping[int, InputShard],
    outputs: Mapping[int, OutputShard],
    *,
    manifest: str | None = None,
    compress: str | None = None,
    assignment: str = "1:1",
    storage_options: object = None,
    engine: str = "serial",
    **options: Unpack[JobOptions],
) -> ShardJob:
    """Return a job: the function is described, and the key computed.

    Args:
        function: the function, or its import name ``module:name``.
        inputs: number to input.
        outputs: number to output, all of them.
        manifest: folder of the job's records; by default beside the first output.
        compress: compression of the outputs; None for none.
        assignment: ``1:1`` or ``N:M``.
        storage_options: what inputs are opened with.
        engine: name of the engine.
        **options: see :class:`JobOptions`.

    Raises:
        UsageError: arguments that make no sense; the message says which.
    """
    called: AnyFunction = load_function(function) if isinstance(function, str) else function
    policy = options.get("on_sample_error", "raise")
    _check_options(options)
    refuse_form(called, policy)
    version, params = options.get("version"), _check_params(options.get("params") or {})
    described = describe_function(called, version)
    urls, sources = [outputs[place].url for place in sorted(outputs)], [inputs[place].url for place in sorted(inputs)]
    level = options.get("level")
    key = digest_record([described.to_json(), params, sources, urls, [compress, level, assignment, policy]])
    folder = manifest or f"{urls[0].rpartition('/')[0] or '.'}/_wds/{key}"
    by_name = isinstance(function, str) or _is_importable(called)
    return ShardJob(
        {**described.to_json(), "name": function if isinstance(function, str) else described.name},
        params,
        inputs,
        outputs,
        len(outputs),
        folder.rstrip("/"),
        key,
        compress=compress,
        level=level,
        assignment=assignment,
        on_sample_error=policy,
        max_errors=options.get("max_errors"),
        trust=options.get("trust"),
        recompute=options.get("recompute", False),
        verify=options.get("verify", False),
        engine=engine,
        unseen=described.unseen,
        callable=None if by_name else called,
        storage_options=storage_options,
    )


def _check_options(options: JobOptions) -> None:
    policy, trust, most = options.get("on_sample_error", "raise"), options.get("trust"), options.get("max_errors")
    if policy not in get_args(OnSampleError):
        raise UsageError(f"on_sample_error={policy!r} is none of {', '.join(map(repr, get_args(OnSampleError)))}")
    if trust not in (None, "name"):
        raise UsageError(f"trust={trust!r} is neither 'name' nor None")
    if most is not None and not (isinstance(most, int | float) and most >= 0 and (most < 1 or most == int(most))):
        raise UsageError(f"max_errors={most!r} is neither a count nor a share below 1 of the samples")


def _check_params(params: Mapping[str, object]) -> Record:
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


def check_places(outputs: Sequence[str], inputs: Sequence[str]) -> None:
    """Refuse outputs that would replace each other or an input, whatever the names are that lead there.

    Args:
        outputs: urls of them.
        inputs: urls of them.

    Raises:
        UsageError: it says which.
    """
    if not outputs:
        raise UsageError("there is nothing to write: name at least one output")
    for url in outputs:
        if url == "-" or url.startswith("pipe:") or not file_name(url):
            raise UsageError("a job's outputs are files or objects that can be looked at again", url=url)
    places = Counter(map(find_place, outputs))
    read = InputFiles(inputs)
    for url in outputs:
        if places[find_place(url)] > 1:
            raise UsageError("several outputs would have this name", url=url)
        read.refuse(url)
    _refuse_strict_commands(inputs)


def _refuse_strict_commands(inputs: Sequence[str]) -> None:
    if trust_level(None) == "strict" and any(url.startswith("pipe:") for url in inputs):
        raise UsageError("trust is strict: commands (pipe:) cannot be inputs")


def _is_importable(function: AnyFunction) -> bool:
    """Tell whether another process finds this very function under its name."""
    if not hasattr(function, "__qualname__") or "<" in function.__qualname__:
        return False
    module, _, name = name_function(function).partition(":")
    if module == "__main__" or module not in sys.modules:
        return False
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is function


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(part) for name, part in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)
