"""``wds recompress``, ``wds proc`` and ``wds map``: shards and samples, changed one by one."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, input_options
from webdataset.cli.map_jobs import MAPPED, JobCall, job_options, run_map_job
from webdataset.cli.outputs import (
    WRITTEN,
    ShardOutputs,
    check_target,
    on_error_option,
    output_options,
    read_inputs,
    shard_output_options,
)
from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.reshaping.processing import (
    OnError,
    Results,
    SampleFunction,
    ShellCommand,
    judge_results,
    load_function,
    map_in_order,
    map_in_processes,
)
from webdataset.reshaping.recompression import KINDS, make_target_name, recompress_shard, refuse_replacements
from webdataset.samples.raw_samples import RawSample

_RECOMPRESSED: Final[console.JsonSchema] = {
    "description": "One line a shard, once it is written.",
    "type": "object",
    "required": ["shard", "stream_bytes"],
    "properties": {
        "shard": {"type": "string"},
        "stream_bytes": {"type": "integer", "minimum": 0, "description": "of the tar stream, not compressed"},
    },
    "additionalProperties": False,
}
SCHEMAS: Final[dict[str, object]] = {
    "proc": WRITTEN,
    "map": {"anyOf": [WRITTEN, MAPPED]},
    "recompress": _RECOMPRESSED,
}


@click.command("recompress")
@input_options
@click.option("-t", "--to", "kind", type=click.Choice(KINDS), required=True, help="The new compression.")
@click.option("-o", "--output", "folder", required=True, metavar="FOLDER", help="Folder or url of the new shards.")
@click.option("--level", type=int, metavar="N", help="Level of the compression.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a shard; see 'wds schema recompress'.")
def recompress_command(
    inputs: Inputs, *, kind: str, folder: str, level: int | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Write each shard in another compression, under its name with the ending of that; the tar stream stays as it is.

    Examples:
      wds recompress --to zst -o new/ 'train-*.tar'
      wds recompress --to none -o plain/ archive.tgz
    """
    base = folder if folder.endswith("/") else f"{folder}/"
    targets = [base + make_target_name(url, kind) for url in inputs]
    if len(set(targets)) < len(targets):
        raise UsageError("two shards would get the same name: recompress them into different folders")
    for target in targets:
        check_target(target, force=force or dry_run)
    if force:
        refuse_replacements(inputs.urls, targets)
    if not dry_run and "://" not in base:
        Path(base).mkdir(parents=True, exist_ok=True)
    with console.Progress("recompressing", total=len(inputs)) as progress:
        for url, target in zip(inputs, targets, strict=True):
            if dry_run:
                console.say(f"would write {target}")
            else:
                size = recompress_shard(url, target, kind, level=level, reading=inputs.reading())
                if as_json:
                    console.write_json({"shard": target, "stream_bytes": size})
            progress.advance(detail=url)


def _write_results(output: ShardOutputs, results: Results, *, on_error: OnError, label: str) -> int:
    """Write what a function makes of samples; tell what failed."""
    failed, report = count_failures(on_error)
    # processes end before the command does, whatever the writer raises
    with contextlib.closing(judge_results(results, on_error, report, _report_drops)) as samples:
        output.write(samples, label)
    return exit_status.PARTIAL if failed else exit_status.DONE


def _report_drops(dropped: int, count: int) -> None:
    console.say(f"the function left out {dropped} of {count} samples: it returned None, or nothing, for them")


def count_failures(on_error: OnError) -> tuple[list[str], Callable[[RawSample, Exception], None]]:
    """Return a list, and what says that a sample failed and puts its key there.

    Args:
        on_error: ``skip`` or ``keep``, for the message.
    """
    failed: list[str] = []

    def report(sample: RawSample, error: Exception) -> None:
        failed.append(sample.key)
        console.say(f"{'kept as it was' if on_error == 'keep' else 'left out'}: {sample.key}: {error}")

    return failed, report


_JOBS_HELP = "How many run at a time; by default one a processor."


@click.command("proc")
@click.argument("command")
@input_options
@click.option("-j", "--jobs", type=click.IntRange(min=1), help=_JOBS_HELP)
@on_error_option("the command", "stop", "skip", "keep")
@click.option("-T", "--temporary", metavar="FOLDER", help="Folder of temporary files.")
@shard_output_options
def proc_command(
    command: str, inputs: Inputs, *, output: ShardOutputs, jobs: int | None, on_error: OnError, temporary: str | None
) -> int:
    """Run a shell COMMAND for each sample, in a folder that holds its fields as sample.FIELD.

    What the command leaves there is the sample: fields are changed, added and removed as files. $WDS_KEY is the key.

    Examples:
      wds proc 'convert sample.jpg -resize 256x256 sample.jpg' -o small.tar train.tar
      wds proc 'wc -w < sample.txt > sample.words; rm sample.txt' --on-error skip -o words.tar train.tar
    """
    from webdataset.core.process_pool import count_processors  # noqa: PLC0415  slow to import

    function = ShellCommand(command, settings.child_environment(), folder=temporary)
    results = map_in_order(function, read_inputs(inputs), jobs or count_processors())
    return _write_results(output, results, on_error=on_error, label="processing")


@click.command("map")
@click.argument("function", metavar="MODULE:FUNCTION")
@input_options
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many processes call it."
)
@click.option("--threads", is_flag=True, help="Call it in threads of one process, which share what it remembers.")
@on_error_option("the function", "stop", "skip", "keep")
@job_options
@shard_output_options
def map_command(
    function: str,
    inputs: Inputs,
    *,
    output: ShardOutputs,
    jobs: int,
    threads: bool,
    on_error: OnError,
    **given: Any,
) -> int:
    """Call a Python function with each sample, and write what it returns.

    It gets {"__key__", "__url__", field: bytes} and returns such a dictionary (other values are encoded by the name of
    their field), a list of them, or None to leave the sample out; how many it left out is said at the end. A function
    that returns None for every sample is an error, and nothing is written. Modules in the working directory are found.

    With -j N, N processes import the function; the order of the samples stays. Where it waits (for a server) or
    remembers what it saw, take --threads. One job, the default, is safe for any function.

    With -o FOLDER/, -o 'new/{stem}.tar' or --shards M it is a job: each output gets a receipt, what is done is not made
    again, and --task I --of N makes a part of the outputs, in any order, on any machine.

    Examples:
      wds map clean:fix_caption -o clean-%06d.tar -s 1GB 'train-*.tar'
      wds map -j 8 images:shrink --on-error skip -o small-%06d.tar train-{000..099}.tar
      wds map -j 8 images:shrink --on-sample-error quarantine -o small/ train-{000..099}.tar
      wds map images:shrink -o s3://bucket/small/ 's3://bucket/train/*.tar' --task 3 --of 16
      wds map images:shrink -o s3://bucket/small/ 's3://bucket/train/*.tar' --of 16 --print slurm > job.sh
    """
    sys.path.insert(0, "")
    # a mistake in the name is told before a process is started
    called = load_function(function)
    call = JobCall(**given)
    if call.is_asked_for(output):
        if threads or on_error != "stop":
            raise UsageError("--threads and --on-error are for a stream of samples: in a job, use --on-sample-error")
        return run_map_job(function, inputs, output=output, call=call, jobs=jobs)
    call.refuse_elsewhere()
    samples = read_inputs(inputs)
    if jobs == 1 or threads:
        results = map_in_order(SampleFunction(called), samples, jobs)
    else:
        results = map_in_processes(function, samples, jobs)
    return _write_results(output, results, on_error=on_error, label="mapping")
