"""``wds simulate``: what a training job over many hosts will do."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import click

from webdataset.cli import console
from webdataset.cli.datasets import dataset_options

_NUMBER: Final[console.JsonSchema] = {"type": "number", "minimum": 0}
_MAYBE: Final[console.JsonSchema] = {"type": ["number", "null"], "minimum": 0}
_NAMED: Final[console.JsonSchema] = {"type": "object", "additionalProperties": _NUMBER}
_FORECAST: Final[console.JsonSchema] = {
    "bottleneck": {"type": "string", "description": "the resource that limits the speed"},
    "samples_per_second": {**_NUMBER, "description": "of all ranks; samples of the shards"},
    "rows_per_second": {**_NUMBER, "description": "the same in what the dataset gives: rows, where it packs samples"},
    "allowed": {**_NAMED, "description": "resource to samples a second that it allows"},
    "trainer_waits": {**_MAYBE, "description": "share of the time; null without --samples-per-second"},
    "bytes_per_second": _NUMBER,
    "requests_per_second": _NUMBER,
    "requests_per_prefix": _NUMBER,
    "epoch_seconds": _NUMBER,
    "epoch_bytes": {"type": "integer", "minimum": 0},
    "uneven": {**_NUMBER, "description": "samples of the process that reads most, over the mean"},
    "memory_bytes": {**_NUMBER, "description": "of a host, without the interpreters"},
    "state_bytes": {**_NUMBER, "description": "of all streams; 0 of a dataset that is not elastic"},
    "start_seconds": _NUMBER,
    "start_steps": {**_NAMED, "description": "step to seconds"},
    "start_refused": {"type": "integer", "minimum": 0, "description": "requests that the store refuses at the start"},
    "start_failed": {"type": "integer", "minimum": 0, "description": "of these, requests that are given up"},
    "resume_seconds": _NUMBER,
    "failures_per_day": _NUMBER,
    "goodput": {**_NUMBER, "description": "share of the time whose work is kept"},
    "advice": {"type": "array", "items": {"type": "string"}},
}
SCHEMAS: Final[console.JsonSchema] = {
    "simulate": {
        "description": "One object.",
        "type": "object",
        "required": list(_FORECAST),
        "properties": _FORECAST,
        "additionalProperties": False,
    },
}
_Command: TypeAlias = Callable[..., Any]
# of the options that make the dataset
_OF_DATASET: Final = {"streams", "shuffle", "shuffle_initial"}


def _job_options(command: _Command) -> _Command:
    """Give a command an option for each setting of a job."""
    from webdataset.cluster.training_job import list_settings  # noqa: PLC0415  light

    for setting in reversed(list_settings()):
        if setting.name in _OF_DATASET:
            continue
        name = "--" + setting.name.replace("_", "-")
        if setting.kind is bool:
            option = click.option(name, is_flag=True, help=setting.text)
        else:
            least = int(setting.least)
            kind: click.IntRange | click.FloatRange = (
                click.IntRange(min=least) if setting.kind is int else click.FloatRange(min=least)
            )
            shown = not setting.optional
            option = click.option(name, default=setting.default, type=kind, show_default=shown, help=setting.text)
        command = option(command)
    return command


@click.command("simulate")
@dataset_options
@_job_options
@click.option("--counts", metavar="FILE", help="Numbers of samples: JSON of url to number, or a wids index.")
@click.option(
    "--pretend-shards", type=click.IntRange(min=1), help="So many, like those of the rates, for the dataset's."
)
@click.option("--rates", metavar="FILE", help="Costs that were measured before; else they are measured now.")
@click.option("--save-rates", metavar="FILE", help="Keep the measured costs in a file.")
@click.option(
    "--measure-seconds",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Of each turn of the measurement.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema simulate'.")
def simulate_command(
    dataset: _Command,
    *,
    seed: int | None,
    counts: str | None,
    pretend_shards: int | None,
    rates: str | None,
    save_rates: str | None,
    measure_seconds: float,
    as_json: bool,
    **settings: Any,
) -> None:
    """Forecast a training job: speed and what limits it, requests, memory, states, start-up, resuming, failures.

    DATASET is as for 'wds plan'. Its costs are measured on this machine for some seconds (--save-rates keeps them), or
    come from --rates. The job's shards are split as they will be; only time is modelled.

    Examples:
      wds simulate train-{000..099}.tar --ranks 64 --workers 8 --samples-per-second 400
      wds simulate 's3://bucket/train-*.tar' --listed --ranks 1024 --requests-per-second 5500 --save-rates rates.json
      wds simulate train:make_dataset --rates rates.json --ranks 10000 --pretend-shards 100000 --json
    """
    from webdataset.cli.plan import find_counts  # noqa: PLC0415  after --help
    from webdataset.cluster.reader_shares import find_job_settings, read_shard_table  # noqa: PLC0415
    from webdataset.cluster.training_forecast import describe_forecast, forecast_training  # noqa: PLC0415
    from webdataset.cluster.training_job import TrainingJob  # noqa: PLC0415
    from webdataset.cluster.training_rates import TrainingRates, measure_rates  # noqa: PLC0415

    source = dataset(by_sample=settings["by_sample"])
    del seed  # a shuffle of shards changes no size
    if rates is not None:
        found = TrainingRates.load(rates)
    else:
        with console.Progress("measuring", 4) as progress:
            found = measure_rates(
                source,
                batch_size=settings["batch_size"],
                seconds=measure_seconds,
                advance=lambda step: progress.advance(detail=step),
            )
    if save_rates is not None:
        found.save(save_rates)
    known = find_counts(source, counts, count=False)
    table = read_shard_table(source, found, known, pretend=pretend_shards)
    job = TrainingJob.from_settings({**settings, **find_job_settings(source)})
    forecast = forecast_training(table, job, found)
    if as_json:
        console.write_json(forecast.to_json())
        return
    console.write_table(describe_forecast(forecast, job))
    for advice in forecast.advice:
        console.say(f"advice: {advice}")
