"""Datasets for commands that run one: a function of the user's, or shards with a few options."""

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from webdataset.cli.inputs import expand_inputs, storage_options_of
from webdataset.core.errors import FlowError, UsageError, WebDatasetError

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def dataset_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument ``DATASET...`` and the options that make a dataset; it gets ``dataset``.

    The keyword is a function without arguments, so that what is wrong with other options is told first.

    Args:
        command: takes ``dataset`` and ``seed`` as keywords.
    """

    @functools.wraps(command)
    def call(*arguments: Any, dataset: tuple[str, ...], **rest: Any) -> Any:
        names = ("shard_shuffle", "shuffle", "batch", "streams", "storage_profile", "split")
        options = {name: rest.pop(name) for name in names}
        make = functools.partial(load_dataset, dataset, seed=rest["seed"], **options)
        with translate_failures("the dataset"):
            return command(*arguments, dataset=make, **rest)

    count = click.IntRange(min=1)
    for option in (
        click.option("--streams", type=count, help="Of shards: make it elastic, with this many virtual streams."),
        click.option("--batch", type=count, help="Of shards: batches of this many samples, made in the dataset."),
        click.option("--shuffle", type=count, help="Of shards: a shuffle buffer of this many samples."),
        click.option("--shard-shuffle", type=count, help="Of shards: shuffle them, as shardshuffle=N does."),
        click.option("--seed", type=int, help="The seed of the run, where neither dataset nor state has one."),
    ):
        call = option(call)
    return storage_options_of(click.argument("dataset", nargs=-1, required=True, metavar="DATASET...")(call))


def load_dataset(  # noqa: PLR0917  one value for each option
    arguments: tuple[str, ...],
    seed: int | None = None,
    shard_shuffle: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    streams: int | None = None,
    storage_profile: str | None = None,
    split: str | None = None,
    *,
    by_sample: bool = False,
) -> Any:
    """Return the dataset that arguments name.

    Args:
        arguments: ``module:function``, which is called without arguments; or shards, as for every command.
        seed: of the dataset.
        shard_shuffle: as ``shardshuffle`` of ``WebDataset``.
        shuffle: samples in a buffer.
        batch: samples in a batch.
        streams: of an elastic dataset.
        storage_profile: that shards are opened with.
        split: of a dataset specification.
        by_sample: cut shards between workers.

    Raises:
        UsageError: a function that cannot be called, or options that belong to shards.
    """
    if len(arguments) == 1 and is_function_name(arguments[0]):
        options = (shard_shuffle, shuffle, batch, streams, storage_profile, split)
        if by_sample or any(option is not None for option in options):
            raise UsageError(f"{arguments[0]} makes the dataset itself: leave out the options that are for shards")
        return call_function(arguments[0])
    from webdataset.fluent.dataset import WebDataset  # noqa: PLC0415  after --help
    from webdataset.shards.split import split_by_node, split_by_sample  # noqa: PLC0415

    inputs = expand_inputs(arguments, storage_profile=storage_profile, split=split)
    # streams are shared out without a splitter; a state of the usual dataset is then one of this dataset
    splitting: dict[str, Any] = {"nodesplitter": split_by_node, "empty_check": False} if streams is None else {}
    splitting |= {"nodesplitter": split_by_sample, "workersplitter": None} if by_sample else {}
    splitting |= {"shardshuffle": shard_shuffle or False, "seed": seed, "storage_options": inputs.storage_options}
    dataset: Any = WebDataset(list(inputs.urls), **splitting)
    dataset = dataset if shuffle is None else dataset.shuffle(shuffle)
    dataset = dataset if batch is None else dataset.batched(batch, collation_fn=None)
    return dataset if streams is None else dataset.elastic(streams)


def is_function_name(argument: str) -> bool:
    """Tell whether an argument is ``module:function`` and no url.

    Args:
        argument: as typed.
    """
    return _FUNCTION.fullmatch(argument) is not None and not os.path.lexists(argument)


def call_function(name: str) -> Any:
    """Import a module from the working directory or the installed packages, and call a function of it.

    Args:
        name: ``module:function``.

    Raises:
        UsageError: there is no such module or function.
    """
    function = import_function(name)
    with translate_failures(name):
        return function()


def import_function(name: str) -> Callable[..., Any]:
    """Import a module from the working directory or the installed packages, and return a function of it.

    Args:
        name: ``module:function``.

    Raises:
        UsageError: there is no such module or function.
        FlowError: the module failed.
    """
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()  # noqa: PTH109  sys.path holds text
    if here not in sys.path:
        sys.path.insert(0, here)
    with translate_failures(f"the module {module_name!r}"):
        module = _import_module(module_name, here)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"the module {module_name!r} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # it is callable


def _import_module(name: str, here: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {name!r} in {here} or among the installed packages (a dataset is named "
            "module:function, or by its shards)"
        ) from error


@contextmanager
def translate_failures(what: str) -> Iterator[None]:
    """Turn what code of the user's raises in the block into an error of this library.

    Args:
        what: runs, for the message.

    Raises:
        FlowError: it failed; the cause is chained.
    """
    try:
        yield
    except (WebDatasetError, OSError):
        raise
    except Exception as error:  # code of the user's may raise anything
        raise FlowError(
            f"{what} failed: {type(error).__name__}: {error}. WDS_FULL_TRACEBACKS=1 shows where it did"
        ) from error
