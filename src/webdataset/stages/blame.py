"""Who is to blame when a user's function fails: the stage, the function and the sample are named on its error.

Flows in: an error, the sample it was about, the function that raised it. Flows out: the same error, located. Never
called unless something failed.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.policies import Handler, located
from webdataset.ground.skips import goes_on


def named(function: Any) -> str:
    """Return a function's name and where it is written, as ``name (file.py:12)``."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def titled(stage: str, *functions: Any) -> str:
    """Return what a stage is called in reports, as ``map(augment at train.py:12)``.

    Args:
        stage: its name.
        *functions: the user's functions that it calls; functions of this library are not told.
    """
    shown = [_called(each) for each in functions if not str(getattr(each, "__module__", "")).startswith("webdataset.")]
    return f"{stage}({', '.join(shown)})" if shown else stage


def _called(function: Any) -> str:
    function = inspect.unwrap(function) if inspect.isroutine(function) else function
    if isinstance(function, functools.partial):
        return _called(function.func)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition(".<locals>.")[2]
    return name if code is None else f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"  # noqa: PTH119


def blamed(exn: Exception, stage: str, sample: Any, function: Any = None) -> Exception:
    """Say on an error which stage, function and sample it came from.

    Args:
        exn: what was raised.
        stage: name of the stage.
        sample: the item that the stage worked on.
        function: the user's function, if there is one.

    Returns:
        The same error.
    """
    where = stage if function is None else f"{stage}: {named(function)}"
    known = sample if isinstance(sample, dict) else {}
    key, url, path = known.get("__key__"), known.get("__url__"), known.get("__local_path__")
    return located(exn, stage=where, key=key, url=None if url is None else str(url), path=path)


def collated(collate: Callable[[list[Any]], Any], samples: list[Any], stage: str) -> Any:
    """Return one batch; a failure says the stage, the function, and the key and url of the batch's first sample.

    Args:
        collate: from a list of samples to a batch.
        samples: the samples of one batch.
        stage: name of the stage, for the error.

    Raises:
        Exception: whatever ``collate`` raises.
    """
    try:
        return collate(samples)
    except Exception as exn:  # user code: located and raised again
        blamed(exn, stage, samples[0] if samples else None, collate)
        raise


def applied(source: Iterator[Any], f: Callable[[Any], Any], handler: Handler, stage: str) -> Iterator[Any]:
    """Yield ``f(sample)`` for each sample; a failure goes to the handler.

    Args:
        source: the samples.
        f: any function of one sample.
        handler: what to do when ``f`` fails: true skips the sample, false ends the stage.
        stage: name of the stage, for the error.
    """
    for sample in source:
        try:
            value = f(sample)
        except Exception as exn:  # noqa: BLE001  user code: the handler decides
            if goes_on(handler, blamed(exn, stage, sample), stage):
                continue
            return
        yield value
