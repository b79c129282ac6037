"""``wds.map_shards``: maps shards to shards by a function, on any engine, again and again until all are done."""

from collections import Counter
from collections.abc import Callable
from typing import Unpack, cast

from webdataset.cluster.death_records import forget_deaths
from webdataset.cluster.function_digest import AnyFunction
from webdataset.cluster.job_definition import JobOptions, check_places, make_job
from webdataset.cluster.job_engines import JobEngine, open_engine
from webdataset.cluster.job_planning import (
    choose_numbers,
    common_compression,
    count_inputs,
    identify_inputs,
    identify_needed,
    list_inputs,
    map_threads,
    name_outputs,
    plan_ranges,
    plan_whole,
)
from webdataset.cluster.job_reports import JobReport, failure_url, note_failure, write_report
from webdataset.cluster.receipts import Decision, decide
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.shard_tasks import remove_task_files
from webdataset.cluster.stored_files import Record, forget_listings, format_record, read_record, write_small_file
from webdataset.cluster.task_results import TaskResult, fail_result
from webdataset.core.errors import SourceError, UsageError

Progress = Callable[[TaskResult], None]


class MapOptions(JobOptions, total=False):
    """What ``map_shards`` may further be given; with the options of :class:`JobOptions`.

    Args:
        output_shards: make so many outputs of equal ranges of all samples; None makes one of each input.
        task: (i, n) makes the outputs j with j mod n = i only, and looks at their inputs only.
        compress: of the outputs: ``gz``, ``bz2``, ``xz``, ``zst`` or False; None goes by their names.
        manifest: folder of the job's records; by default ``_wds/KEY`` beside the first output.
        storage_options: what inputs are opened with.
    """

    output_shards: int | None
    task: tuple[int, int] | None
    compress: bool | str | None
    manifest: str | None
    storage_options: object


def map_shards(
    fn: AnyFunction | str,
    inputs: object,
    outputs: object,
    *,
    engine: object = "serial",
    jobs: int | None = None,
    retries: int = 3,
    progress: Progress | None = None,
    check: bool = True,
    **options: Unpack[MapOptions],
) -> JobReport:
    """Map shards to shards by a function; outputs that are done already are not made again.

    An output appears under its name when it is complete, with a receipt beside it that says what it was made of. It
    is made again where the function, what it holds, the parameters or an input have changed. The bytes of an output
    depend on nothing else, as far as the function does not.

    Args:
        fn: takes a sample ``{"__key__", "__url__", field: bytes}`` and returns one, None or a list; or marked by
            :func:`stream_function`; or a class whose objects are called, with ``setup`` and ``teardown``; or the import
            name ``module:name`` of one of these.
        inputs: shards, as for ``WebDataset``: a text with braces or wildcards, a path, or a list.
        outputs: names: a list, a folder (``small/``), or a pattern with ``%06d``, braces, ``{name}`` or ``{stem}``.
        engine: ``serial``, ``processes``, ``dask`` or ``ray``; an executor of ``concurrent.futures``, or a function
            that makes one; a client of Dask; or an engine object.
        jobs: how many processes; by default one a processor.
        retries: attempts after the first one, for errors of storage.
        progress: called with each result.
        check: raise where outputs failed; else the report says so.
        **options: ``params``, ``version``, ``on_sample_error``, ``max_errors``, ``output_shards``, ``task`` and more:
            see :class:`MapOptions` and :class:`JobOptions`.

    Returns:
        The report, which is also in the manifest.

    Raises:
        UsageError: arguments that make no sense; the message says which.
        JobFailed: outputs failed; the others are done. ``report`` says which.
        SourceError: inputs cannot be looked at, or records cannot be written.
    """
    runner = open_engine(engine, jobs)
    job = plan_job(fn, inputs, outputs, engine=runner.name, **options)
    task = options.get("task")
    numbers = choose_numbers(job.count, task)
    report = run_job(job, runner, numbers, retries=retries, progress=progress)
    write_report(report, "report" if task is None else f"report-{task[0]}-of-{task[1]}")
    if check:
        report.raise_failures()
    return report


def plan_job(
    fn: AnyFunction | str, inputs: object, outputs: object, *, engine: str = "serial", **options: Unpack[MapOptions]
) -> ShardJob:
    """Return a job: inputs are looked at, outputs named, and the function described; nothing is made.

    Args:
        fn: see :func:`map_shards`.
        inputs: likewise.
        outputs: likewise.
        engine: name of the engine, for receipts.
        **options: see :class:`MapOptions`.

    Raises:
        UsageError: arguments that make no sense.
        SourceError: inputs cannot be looked at.
    """
    several, task = options.get("output_shards"), options.get("task")
    storage, manifest = options.get("storage_options"), options.get("manifest")
    urls = list_inputs(inputs, storage)
    if several is not None and several < 1:
        raise UsageError(f"output_shards={several}: make at least one")
    names = name_outputs(outputs, urls, several)
    check_places(names, urls)
    if several is None:
        planned = plan_whole(names)
        shards = identify_needed(planned, choose_numbers(len(names), task), urls, storage)
    else:
        base = manifest or f"{names[0].rpartition('/')[0] or '.'}/_wds"
        counted = count_inputs(identify_inputs(urls, storage), f"{base}/counts", storage)
        planned = plan_ranges(names, [shard.samples or 0 for shard in counted])
        shards = dict(enumerate(counted))
    return make_job(
        fn,
        shards,
        planned,
        manifest=manifest,
        compress=common_compression(names, options.get("compress")),
        assignment="1:1" if several is None else "N:M",
        storage_options=storage,
        engine=engine,
        **cast("JobOptions", {name: each for name, each in options.items() if name in JobOptions.__annotations__}),
    )


def run_job(
    job: ShardJob,
    engine: JobEngine,
    numbers: list[int],
    *,
    retries: int = 3,
    progress: Progress | None = None,
) -> JobReport:
    """Make the outputs of a job that are not done, and look at all of them again at the end.

    Args:
        job: the job.
        engine: where tasks run.
        numbers: of the outputs.
        retries: attempts after the first one, for errors that may pass.
        progress: called with each result.

    Raises:
        SourceError: a store refuses, or does not answer.
    """
    forget_listings()
    decisions = dict(zip(numbers, look_at_outputs(job, numbers), strict=True))
    done = [number for number in numbers if decisions[number].done and not job.recompute]
    results = {}
    for number in done:
        receipt = decisions[number].receipt or {}
        results[number] = TaskResult(number, "skipped", counts=receipt.get("counts", {}))
        if progress is not None:
            progress(results[number])
    wanted = [number for number in numbers if number not in results]
    # a task of several has looked at its own inputs only
    if wanted and len(numbers) == job.count:
        write_small_file(f"{job.manifest}/job.json", format_record(job.describe()) + b"\n")
    for result in engine.run(job, wanted, retries) if wanted else ():
        results[result.number] = result
        if result.state == "failed":
            note_failure(job, result)
        if progress is not None:
            progress(result)
    report = JobReport(job, _check_results(job, wanted, results).values())
    forget_deaths(job, {result.number for result in (*report.done, *report.skipped)})
    # an engine may repeat a task itself when a process dies, just after the folders were listed
    forget_listings()
    for number in wanted:
        remove_task_files(job, number)
    return report


def look_at_outputs(job: ShardJob, numbers: list[int]) -> list[Decision]:
    """Return for each output whether it is done.

    Args:
        job: the job.
        numbers: of the outputs.

    Raises:
        SourceError: a store refuses, or does not answer.
    """
    return map_threads(lambda number: decide(job, number), numbers)


def _check_results(job: ShardJob, wanted: list[int], results: dict[int, TaskResult]) -> dict[int, TaskResult]:
    """Return the results, with those as failures whose output is not there after all."""
    made = [number for number in wanted if number in results and results[number].state != "failed"]
    for number, decision in zip(made, look_at_outputs(job, made), strict=True):
        if not decision.done and decision.reason != "input":
            error = SourceError(
                f"the output was made, and is not done now ({decision.reason}): something else removes or replaces it",
                url=job.outputs[number].url,
            )
            results[number] = fail_result(results[number], error)
    for number in wanted:
        if number not in results:
            error = SourceError("the engine gave no result: run the job again", url=job.outputs[number].url)
            results[number] = fail_result(TaskResult(number, "failed"), error)
    return results


def choose_outputs_to_retry(job: ShardJob, numbers: list[int]) -> list[int]:
    """Return the outputs of which samples failed, and those that are not done.

    Args:
        job: the job.
        numbers: of the outputs to look at.

    Raises:
        SourceError: a store refuses, or does not answer.
    """
    decisions = zip(numbers, look_at_outputs(job, numbers), strict=True)
    return [number for number, found in decisions if not found.done or (found.receipt or {})["counts"].get("errors")]


def describe_state(job: ShardJob, numbers: list[int]) -> Record:
    """Return how many outputs are done, why the others are not, and what failed, as JSON.

    Args:
        job: the job.
        numbers: of the outputs to look at.

    Raises:
        SourceError: a store refuses, or does not answer.
    """
    decisions = dict(zip(numbers, look_at_outputs(job, numbers), strict=True))
    missing = [number for number in numbers if not decisions[number].done]
    failures = {number: read_record(failure_url(job, number)) for number in missing}
    return {
        "key": job.key,
        "manifest": job.manifest,
        "outputs": len(numbers),
        "done": len(numbers) - len(missing),
        "reasons": dict(sorted(Counter(decisions[number].reason for number in missing).items())),
        "failed": {job.outputs[number].url: found.get("reason") for number, found in failures.items() if found},
    }
