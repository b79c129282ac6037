"""Small things about iterables that several floors and the ``utils`` door need."""

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class PipelineStage:
    """Base of pipeline stages written as classes: a pipeline calls ``run(source)``.

    Subclasses define ``run``, or ``invoke``, which ``run`` calls.
    """

    def invoke(self, *args: Any, **kw: Any) -> Any:
        """Return an iterator over the results.

        Args:
            *args: the iterator before this stage; nothing for a first stage.
            **kw: none.

        Raises:
            NotImplementedError: the subclass defines neither this nor ``run``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither run nor invoke")

    def run(self, *args: Any, **kw: Any) -> Any:
        """Run the stage; arguments as for ``invoke``."""
        return self.invoke(*args, **kw)


def identity(x: T) -> T:
    """Return the argument."""
    return x


def is_iterable(obj: Any) -> bool:
    """Tell whether something can be iterated and is not a text or bytes.

    Args:
        obj: anything.
    """
    return isinstance(obj, Iterable) and not isinstance(obj, str | bytes)


def lookup_sym(sym: str, modules: Iterable[str]) -> Any:
    """Return the first attribute of some modules that has a name, or None.

    Args:
        sym: the attribute's name.
        modules: dotted names of modules, searched in order.

    Raises:
        ModuleNotFoundError: a module does not exist.
    """
    for module in modules:
        found = getattr(importlib.import_module(module), sym, None)
        if found is not None:
            return found
    return None


def guess_batchsize(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first field (or of the batch, if fields have none).

    Args:
        batch: a tuple, list or dict of fields, or an array.
    """
    first = batch
    if isinstance(batch, dict):
        first = next(iter(batch.values()))
    elif isinstance(batch, tuple | list):
        first = batch[0]
    return len(first)


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Iterate over a source again and again, up to a limit.

    Args:
        source: what to iterate; a pass that gives nothing ends the repetition.
        nepochs: number of passes; None for no end, as for the others.
        nbatches: number of batches in all.
        nsamples: number of samples in all, counted by ``batchsize``; the batch that reaches it is the last.
        batchsize: number of samples in a batch.

    Yields:
        Batches.
    """
    batches = samples = 0
    limits = [limit for limit in (nepochs, nbatches, nsamples) if limit is not None]
    passes = () if 0 in limits else itertools.count(1)
    for epoch in passes:
        before = batches
        for batch in source:
            yield batch
            batches += 1
            if batches == nbatches:
                return
            if nsamples is not None:
                samples += batchsize(batch)
                if samples >= nsamples:
                    return
        if batches == before or epoch == nepochs:
            return
