"""The jobs of ``wds map``: shards to shards, with receipts, by one task or one of many."""

import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs
from webdataset.cli.outputs import ShardOutputs
from webdataset.core import settings
from webdataset.core.errors import UsageError

if TYPE_CHECKING:
    from webdataset.cluster.shard_jobs import OnSampleError, ShardJob
    from webdataset.cluster.task_results import TaskResult

MAPPED: Final[dict[str, object]] = {
    "description": "One line an output of a job; with --status, --explain and -n, one line about the job.",
    "oneOf": [
        {
            "type": "object",
            "required": ["shard", "number", "state", "reason", "counts", "seconds"],
            "properties": {
                "shard": {"type": "string"},
                "number": {"type": "integer", "minimum": 0},
                "state": {"enum": ["done", "skipped", "failed"]},
                "counts": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
            },
        },
        {
            "type": "object",
            "required": ["key", "manifest", "outputs", "done", "reasons", "failed"],
            "properties": {
                "outputs": {"type": "integer", "minimum": 0},
                "done": {"type": "integer", "minimum": 0},
                "reasons": {"type": "object"},
                "failed": {"type": "object"},
            },
        },
    ],
}
"""The schema of what a job prints with ``--json``."""

F = TypeVar("F", bound=Callable[..., int])
_GRACE_SECONDS: Final = 24 * 3600.0
_OPTIONS: Final = [
    click.option(
        "--shards", "count", type=click.IntRange(min=1), metavar="M", help="A job: M outputs, equal parts of all."
    ),
    click.option("--task", type=click.IntRange(min=0), metavar="I", help="Make the outputs j with j mod N = I only."),
    click.option("--of", "tasks", type=click.IntRange(min=1), metavar="N", help="How many tasks share the job."),
    click.option(
        "--on-sample-error",
        type=click.Choice(["raise", "skip", "quarantine"]),
        default="raise",
        show_default=True,
        help="What a job does about a sample for which the function fails.",
    ),
    click.option(
        "--max-errors", type=float, metavar="X", help="Samples, or a share below 1, that may fail in an output."
    ),
    click.option(
        "--param", "params", multiple=True, metavar="NAME=VALUE", help="An argument of the function; JSON, or text."
    ),
    click.option("--declare", metavar="TEXT", help="A version of all that the function's source does not show."),
    click.option(
        "--retries", type=click.IntRange(min=0), default=3, show_default=True, help="After errors of storage."
    ),
    click.option("--manifest", metavar="FOLDER", help="The job's records; by default _wds/KEY beside the outputs."),
    click.option("--status", "action", flag_value="status", help="Say what is done, and make nothing."),
    click.option("--explain", "action", flag_value="explain", help="Say what would be made, and why."),
    click.option("--verify", "action", flag_value="verify", help="Read what is done, too, and compare digests."),
    click.option("--sweep", "action", flag_value="sweep", help="Remove partial files of tasks that were killed."),
    click.option("--retry-quarantined", "action", flag_value="retry", help="Make outputs with failed samples again."),
    click.option(
        "--print",
        "scheduler",
        type=click.Choice(["slurm", "k8s", "kueue", "argo", "skypilot"]),
        help="Print the script or manifest that runs this command as --of N tasks, and make nothing.",
    ),
    click.option("--image", help="With --print: the container image."),
    click.option("--queue", help="With --print kueue: the local queue."),
    click.option("--parallel", type=click.IntRange(min=1), metavar="P", help="With --print: tasks at a time."),
]


@dataclass(frozen=True)
class JobCall:
    """The options of a job, as they were typed."""

    count: int | None
    task: int | None
    tasks: int | None
    on_sample_error: "OnSampleError"
    max_errors: float | None
    params: tuple[str, ...]
    declare: str | None
    retries: int
    manifest: str | None
    action: str | None
    scheduler: str | None
    image: str | None
    queue: str | None
    parallel: int | None

    def is_asked_for(self, output: ShardOutputs) -> bool:
        """Tell whether the command line asks for a job: an output for each input, or ``--shards``."""
        target = output.target or ""
        return self.count is not None or target.endswith("/") or "{name}" in target or "{stem}" in target

    def refuse_elsewhere(self) -> None:
        """Raise where options of jobs are given to a stream of samples.

        Raises:
            UsageError: it says what makes a job.
        """
        given = (self.task, self.tasks, self.max_errors, self.declare, self.manifest, self.action, self.scheduler)
        if any(option is not None for option in given) or self.params or self.on_sample_error != "raise":
            raise UsageError(
                "--task, --of, --status and the other options of jobs need -o FOLDER/ or -o 'new/{stem}.tar', for one "
                "shard of each input, or --shards M -o new-%06d.tar"
            )


def job_options(command: F) -> F:
    """Add the options of jobs; the command gets them by name, for :class:`JobCall`.

    Args:
        command: takes keywords.
    """
    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


def find_task(call: JobCall) -> tuple[int, int] | None:
    """Return which task this is, of how many; None for the whole job.

    Args:
        call: ``--task`` and ``--of``, which come before the variables of SLURM and Kubernetes. ``--of 1`` is the whole.

    Raises:
        UsageError: one is given without the other, or the variables contradict each other.
    """
    if call.task is not None:
        if call.tasks is None:
            raise UsageError("--task I needs --of N")
        return call.task, call.tasks
    if call.tasks == 1:
        return None
    number, several = settings.SLURM_ARRAY_TASK_ID.get(), settings.SLURM_ARRAY_TASK_COUNT.get()
    if number is not None and several is not None:
        place, rest = divmod(number - settings.SLURM_ARRAY_TASK_MIN.get(), settings.SLURM_ARRAY_TASK_STEP.get())
        if rest or not 0 <= place < several or call.tasks not in (None, several):
            raise UsageError(
                f"task {number} of a SLURM array of {several} cannot be placed: use an array without gaps "
                "(--array=0-N), or pass --task and --of"
            )
        console.say(f"task {place} of {several}, by SLURM_ARRAY_TASK_ID (--of 1 makes all)")
        return place, several
    index = settings.JOB_COMPLETION_INDEX.get()
    if call.tasks is not None and index is not None:
        return index, call.tasks
    if call.tasks is not None:
        raise UsageError("--of N needs --task I, or JOB_COMPLETION_INDEX in the environment")
    return None


def parse_params(texts: tuple[str, ...]) -> dict[str, object]:
    """Return arguments of the function.

    Args:
        texts: each ``NAME=VALUE``; a value is JSON, or else text.

    Raises:
        UsageError: another form.
    """
    params: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--param {text!r} is not of the form NAME=VALUE")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params


def run_map_job(function: str, inputs: Inputs, *, output: ShardOutputs, call: JobCall, jobs: int) -> int:
    """Run a job, or say how it stands; return the exit status.

    Args:
        function: ``module:function``.
        inputs: the shards.
        output: where shards are written, and how.
        call: options of jobs.
        jobs: how many processes.
    """
    _refuse_stream_options(output)
    from webdataset.cluster.map_shards import plan_job  # noqa: PLC0415  after --help

    if call.scheduler is not None:
        return _print_manifest(call)
    task = find_task(call)
    engine = "serial" if jobs == 1 else "processes"
    job = plan_job(
        function,
        list(inputs),
        output.target,
        engine=engine,
        output_shards=call.count,
        task=task,
        params=parse_params(call.params),
        version=call.declare,
        on_sample_error=call.on_sample_error,
        max_errors=call.max_errors,
        manifest=call.manifest,
        compress=output.compress,
        level=output.level,
        recompute=output.force,
        verify=call.action == "verify",
        storage_options=inputs.storage_options,
    )
    if call.action in ("status", "explain") or output.dry_run:
        return _say_state(job, task, call, as_json=output.as_json)
    if call.action == "sweep":
        return _sweep(job)
    with end_by_sigterm():
        return _run(job, engine, jobs, task, call, as_json=output.as_json)


# options of this printing, and how many words each has
_PRINTED: Final = {"--print": 2, "--image": 2, "--queue": 2, "--parallel": 2, "--of": 2}


def _print_manifest(call: JobCall) -> int:
    from webdataset.cluster.job_manifests import ClusterJob, format_job  # noqa: PLC0415  after --help

    if call.tasks is None or call.task is not None:
        raise UsageError("--print needs --of N, the number of tasks, and no --task")
    words, rest = [], iter(sys.argv[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in _PRINTED:
            words.append(word)
        elif not equals:
            next(rest, None)
    job = ClusterJob(("wds", *words), call.tasks, image=call.image, queue=call.queue, parallel=call.parallel)
    console.write_line(format_job(call.scheduler or "", job).rstrip("\n"))
    return exit_status.DONE


def _refuse_stream_options(output: ShardOutputs) -> None:
    if output.target is None:
        raise UsageError("name what to write: -o FOLDER/, -o 'new/{stem}.tar', or --shards M -o new-%06d.tar")
    if output.max_count or output.max_size or output.rekey:
        raise UsageError("--max-count, --max-size and --rekey are for a stream of samples: in a job, use --shards M")


def _run(job: "ShardJob", engine: str, jobs: int, task: tuple[int, int] | None, call: JobCall, *, as_json: bool) -> int:
    import dataclasses  # noqa: PLC0415  as below

    from webdataset.cluster.job_engines import open_engine  # noqa: PLC0415  after --help
    from webdataset.cluster.job_planning import choose_numbers  # noqa: PLC0415
    from webdataset.cluster.job_reports import write_report  # noqa: PLC0415
    from webdataset.cluster.map_shards import choose_outputs_to_retry, run_job  # noqa: PLC0415

    numbers = choose_numbers(job.count, task)
    if call.action == "retry":
        numbers = choose_outputs_to_retry(job, numbers)
        job = dataclasses.replace(job, recompute=True)
    with console.Progress("mapping shards", total=len(numbers)) as progress:

        def show(result: "TaskResult") -> None:
            url = job.outputs[result.number].url
            if as_json:
                console.write_json({"shard": url, **result.to_json()})
            if result.state == "failed":
                console.say(f"failed: {console.show_url(url)}: {result.reason}")
            progress.advance(detail=url)

        runner = open_engine(engine, jobs)
        report = run_job(job, runner, numbers, retries=call.retries, progress=show)
    write_report(report, "report" if task is None else f"report-{task[0]}-of-{task[1]}")
    console.say(str(report))
    return exit_status.NONE_FOUND if report.failed else exit_status.DONE


def _say_state(job: "ShardJob", task: tuple[int, int] | None, call: JobCall, *, as_json: bool) -> int:
    """Say which outputs are done; with ``--explain``, why the others are not, and what is not seen."""
    from webdataset.cluster.job_planning import choose_numbers  # noqa: PLC0415  after --help
    from webdataset.cluster.map_shards import describe_state  # noqa: PLC0415

    state = describe_state(job, choose_numbers(job.count, task))
    if as_json:
        console.write_json(state)
    else:
        console.write_line(f"{state['done']} of {state['outputs']} outputs are done; manifest {job.manifest}")
        for reason, count in state["reasons"].items():
            console.write_line(f"  {count} to make: {reason}")
        for url, reason in state["failed"].items():
            console.write_line(f"  failed: {console.show_url(url)}: {reason}")
    if call.action == "explain" and not as_json:
        function = job.function
        console.write_line(f"function {function['name']}: code {function['code']}, values {function['holds']}")
        for name in job.unseen:
            console.write_line(f"  not seen: {name}; declare it with --declare")
    return exit_status.DONE if state["done"] == state["outputs"] else exit_status.NONE_FOUND


def _sweep(job: "ShardJob") -> int:
    from webdataset.cluster.receipts import receipt_url  # noqa: PLC0415  after --help
    from webdataset.cluster.stored_files import remove_partial_files  # noqa: PLC0415

    urls = [url for shard in job.outputs.values() for url in (shard.url, receipt_url(shard.url))]
    removed = sum(remove_partial_files(url, grace_seconds=_GRACE_SECONDS) for url in urls)
    console.say(f"removed {removed} partial files")
    return exit_status.DONE


class _Preempted(BaseException):
    """SIGTERM came."""


@contextmanager
def end_by_sigterm() -> Iterator[None]:
    """End with status 75 where SIGTERM comes: the scheduler takes the machine, and the job is to be run again."""

    def stop(*_: object) -> None:
        raise _Preempted

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _Preempted:
        console.say("ended by SIGTERM: what is done stays; run the job again")
        sys.exit(exit_status.TRY_AGAIN)
    finally:
        signal.signal(signal.SIGTERM, before)
