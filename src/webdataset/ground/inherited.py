"""Small functions of the published ``utils`` that programs import, and nothing here needs.

Flows in and out: whatever the caller has. No stage uses them; none executes text.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from webdataset.ground.tracebacks import warn_user

from .errors import UsageError


class ObsoleteException(Exception):
    """What webdataset 1.0 raises for a name that it has given up; nothing raises it here."""


def safe_eval(s: str, expr: str = "{}") -> Any:
    """Refuse: text is not executed here.

    Args:
        s: the text that webdataset 0.2 and 1.0 put into ``expr`` and evaluated.
        expr: the template.

    Raises:
        UsageError: always; it names what to write.
    """
    raise UsageError(
        f"safe_eval({s!r}, {expr!r}) would execute text: write ast.literal_eval(text) for a number or another literal, "
        "or getattr(module, name) for a name"
    )


def deprecated(arg: Any = None) -> Any:
    """Mark a function or class: each call warns.

    Args:
        arg: the function or class (``@deprecated``), or the reason (``@deprecated("use g")``).
    """
    if arg is None or isinstance(arg, str):
        return functools.partial(_marked, reason=arg)
    return _marked(arg, reason=None)


def obsolete(func: Any = None, *, reason: str | None = None) -> Any:
    """Mark a function or class as given up: it still works, and each call warns.

    Args:
        func: the function or class; None where the decorator is called with a reason.
        reason: what to use instead.
    """
    return functools.partial(_marked, reason=reason) if func is None else _marked(func, reason=reason)


def _marked(target: Any, *, reason: str | None) -> Any:
    message = f"Call to deprecated function {target.__name__}." + (f" Reason: {reason}" if reason else "")
    if not inspect.isclass(target):
        return _warning(target, message)
    kind: Any = target
    kind.__init__ = _warning(kind.__init__, message)
    return kind


def _warning(function: Callable[..., Any], message: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def warned(*args: Any, **kw: Any) -> Any:
        warn_user(message, DeprecationWarning)
        return function(*args, **kw)

    return warned


def compute_sample_weights(n_w_pairs: Sequence[tuple[float, float]]) -> Any:
    """Return how often each source is to be drawn from, so that its samples have the weight asked for.

    Args:
        n_w_pairs: for each source, its number of samples and the weight of one of them.

    Returns:
        float64[N]: number times weight, the largest being 1.

    Raises:
        UsageError: no sources.
    """
    import numpy as np  # noqa: PLC0415  the doors load without numpy

    if not len(n_w_pairs):
        raise UsageError("compute_sample_weights([]) has no sources to weigh")
    masses = np.array([number * weight for number, weight in n_w_pairs], dtype=np.float64)
    return masses / masses.max()


def repeatedly0(loader: Iterable[Any], nepochs: int | None = None, nbatches: int | None = None) -> Iterator[Any]:
    """Iterate over a loader again and again, at most ``nbatches`` batches in each pass.

    Args:
        loader: what to iterate; a pass that gives nothing ends the repetition.
        nepochs: number of passes; None for no end.
        nbatches: the most batches of one pass.

    Yields:
        Batches.
    """
    for _ in itertools.count() if nepochs is None else range(nepochs):
        empty = True
        for batch in itertools.islice(loader, nbatches):
            empty = False
            yield batch
        if empty:
            return
