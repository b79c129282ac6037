"""Warns once where a pass has another length than the one declared with ``with_length``.

Theory. ``with_length(n)`` says what ``len()`` returns, and trainers go by it: what a pass gives beyond it is never
trained on, epoch after epoch. Only a process that sees a whole pass can compare: the only process of a job, or the
one that reads from a loader. A worker or a rank sees its share of what the length counts, and says nothing. Trainers
stop at the length and never see the end, so where the pipeline is known to end, one more item is drawn before the
last one is given; its result is reported when the pass ends or is given up.

Costs nothing where no length was declared.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from webdataset.core.distributed import is_single_worker, thread_context, worker_info
from webdataset.core.tracebacks import warn_user
from webdataset.flow.run import ENDLESS, item_bound
from webdataset.shards.lists import SimpleShardList
from webdataset.stages.base import Stage

if TYPE_CHECKING:
    from webdataset.flow.pipeline import DataPipeline

_END: Any = object()


def warn_of_length(holder: object, declared: int, given: int, *, more: bool = False) -> None:
    """Warn, once for each pipeline, that a pass had another length than was declared."""
    if (given == declared and not more) or holder.__dict__.get("_length_told"):
        return
    holder.__dict__["_length_told"] = True
    count = f"at least {given}" if more else str(given)
    effect = (
        "who goes by the length leaves out the rest" if given > declared else "who goes by the length waits for more"
    )
    warn_user(
        f"with_length({declared}): this pass has {count} items; {effect}. Declare what a pass gives, or bound it with "
        f"with_epoch({declared}); with_length(n, silent=True) says nothing",
    )


def compare_items(pipeline: object, items: Iterator[Any], declared: int, *, looks: bool) -> Iterator[Any]:
    """Yield the items of a whole pass, and compare their number with the length that was declared.

    Args:
        pipeline: it is told of.
        items: of the pass.
        declared: the length.
        looks: look for one item more before the last one of the length is given.
    """
    given, further = 0, _END
    failed: Exception | None = None
    try:
        for item in items:
            given += 1
            if given == declared and looks:
                try:
                    further = next(items, _END)
                except Exception as error:  # noqa: BLE001  the user's code: raised where it would have been
                    failed = error
            yield item
            if failed is not None:
                raise failed
            if further is not _END:
                given += 1
                yield further
                further = _END
    except GeneratorExit:  # a trainer that has all it asked for
        if further is not _END and given == declared:
            warn_of_length(pipeline, declared, given + 1, more=True)
        raise
    warn_of_length(pipeline, declared, given)


def iterate_pipeline(pipeline: "DataPipeline", begin: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """Begin to iterate over a pipeline that has a length, and compare where all of a pass is seen."""
    stages, whole = pipeline.pipeline, not pipeline.resumes()
    items = begin(pipeline)
    if not stages or pipeline.silent or not whole or pipeline.size is None:
        return items
    if getattr(pipeline, "streams", None):  # its run knows whose streams it reads, and what they gave before
        run: Any = items
        run.declared = pipeline, pipeline.size
        return items
    if (
        worker_info() is not None
        or thread_context.worker is not None
        or not (is_single_worker() or _is_loader(stages[0]))
    ):
        return items
    looks = item_bound(pipeline) is not None or (pipeline.repetitions < ENDLESS and _is_finite(stages))
    return compare_items(pipeline, items, pipeline.size, looks=looks and not _is_elastic(stages[0]))


def iterate_loader(loader: "DataPipeline", items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of a loader; those of a dataset that has a length, all of which come through it, are compared.

    Args:
        loader: a pipeline that begins with a DataLoader, and that does not continue after a state.
        items: of the loader.
    """
    source, *stages = loader.pipeline
    dataset = source.dataset
    declared = getattr(dataset, "size", None)
    passes = stages or source.batch_size is not None or not source.num_workers or loader.size is not None
    if passes or declared is None or dataset.silent or not is_single_worker() or not counts_once(dataset):
        return items
    return compare_items(dataset, items, declared, looks=False)


def counts_once(dataset: object) -> bool:
    """Tell whether several workers together give what one of them would: no bound that counts in each of them."""
    return item_bound(dataset) is None or bool(getattr(dataset, "streams", None))


def _is_finite(stages: Sequence[Any]) -> bool:
    """Tell whether stages are known to end, and can be asked for one item more than is needed."""
    first, *others = stages
    if not all(isinstance(stage, Stage) or _is_own_function(stage) for stage in others):
        return False
    if isinstance(first, list | tuple) or type(first) is SimpleShardList:
        return True
    dataset: Any = first.dataset if _is_loader(first) else None
    inner = getattr(dataset, "pipeline", None)
    if not isinstance(inner, list) or not inner:
        return False
    return item_bound(dataset) is not None or (dataset.repetitions < ENDLESS and _is_finite(inner))


def _is_own_function(function: object) -> bool:
    return str(getattr(function, "__module__", "")).startswith("webdataset.")


def _is_loader(source: object) -> bool:
    return hasattr(source, "num_workers") and hasattr(source, "dataset")


def _is_elastic(source: object) -> bool:
    """Tell whether there is a state after each item, which an item that is looked for would move."""
    return bool(getattr(getattr(source, "dataset", None), "streams", None))
