"""Small helpers of the published ``utils`` and ``filters``; calls in older argument orders, and texts as flags.

:func:`legacy_argument_order` accepts positional arguments in an older order where a type tells the two orders apart;
a call in the present order passes unchanged. No helper executes text.
"""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.core.tracebacks import trim_traceback, warn_user

Marked = TypeVar("Marked", bound=Callable[..., Any])


class ObsoleteException(Exception):
    """What webdataset 1.0 raises for a name that it has given up; nothing raises it here."""


def safe_eval(s: str, expr: str = "{}") -> object:
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


def deprecated(arg: Callable[..., Any] | str | None = None) -> Callable[..., Any]:
    """Mark a function or class: each call warns.

    Args:
        arg: the function or class (``@deprecated``), or the reason (``@deprecated("use g")``).
    """
    if arg is None or isinstance(arg, str):
        return functools.partial(_mark, reason=arg)
    return _mark(arg, reason=None)


def obsolete(func: Callable[..., Any] | None = None, *, reason: str | None = None) -> Callable[..., Any]:
    """Mark a function or class as given up: it still works, and each call warns.

    Args:
        func: the function or class; None where the decorator is called with a reason.
        reason: what to use instead.
    """
    return functools.partial(_mark, reason=reason) if func is None else _mark(func, reason=reason)


def _mark(target: Marked, *, reason: str | None) -> Marked:
    message = f"Call to deprecated function {target.__name__}." + (f" Reason: {reason}" if reason else "")
    if not inspect.isclass(target):
        return cast("Marked", _warn_on_call(target, message))
    kind: Any = target
    kind.__init__ = _warn_on_call(kind.__init__, message)
    return target


def _warn_on_call(function: Callable[..., Any], message: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def warned(*args: object, **kw: object) -> object:
        warn_user(message, DeprecationWarning)
        return function(*args, **kw)

    return warned


def compute_sample_weights(n_w_pairs: Sequence[tuple[float, float]]) -> object:
    """Return how often each source is to be drawn from, so that its samples have the weight asked for.

    Args:
        n_w_pairs: for each source, its number of samples and the weight of one of them.

    Returns:
        float64[N]: number times weight, the largest being 1.

    Raises:
        UsageError: no sources.
    """
    import numpy as np  # noqa: PLC0415  the compatibility modules load without numpy

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


T = TypeVar("T")


class PipelineStage:
    """Base of pipeline stages written as classes: a pipeline calls ``run(source)``.

    Subclasses define ``run``, or ``invoke``, which ``run`` calls.
    """

    if TYPE_CHECKING:
        # any signature: subclasses name their source
        invoke: Callable[..., Any]
        run: Callable[..., Any]

    else:

        def invoke(self, *args: object, **kw: object) -> object:
            """Return an iterator over the results.

            Args:
                *args: the iterator before this stage; nothing for a first stage.
                **kw: none.

            Raises:
                NotImplementedError: the subclass defines neither this nor ``run``.
            """
            raise NotImplementedError(f"{type(self).__name__} defines neither run nor invoke")

        def run(self, *args: object, **kw: object) -> object:
            """Run the stage; arguments as for ``invoke``."""
            return self.invoke(*args, **kw)


def identity(x: T) -> T:
    """Return the argument."""
    return x


def is_iterable(obj: object) -> bool:
    """Tell whether something can be iterated and is not a text or bytes.

    Args:
        obj: anything.
    """
    return isinstance(obj, Iterable) and not isinstance(obj, str | bytes)


def lookup_sym(sym: str, modules: Iterable[str]) -> object:
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


def guess_batchsize(batch: Sized) -> int:
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


P = ParamSpec("P")
R = TypeVar("R")


def legacy_argument_order(place: int, kind: type, names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function be called in an older order too: known by the type of one argument.

    Args:
        place: which positional argument tells, from 0, ``self`` included.
        kind: its type in the older order; the present order never has that type there.
        names: what that argument and those after it are called, in the older order, separated by spaces.

    Returns:
        A decorator. The function's signature stays the present one.
    """
    older = names.split()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def either(*args: P.args, **kw: P.kwargs) -> R:
            if len(args) > place and isinstance(args[place], kind):
                if len(args) - place > len(older):
                    raise TypeError(f"{function.__qualname__}() got {len(args)} positional arguments: too many")
                named = dict(zip(older, args[place:], strict=False))
                if twice := named.keys() & kw.keys():
                    raise TypeError(f"{function.__qualname__}() got multiple values for argument {min(twice)!r}")
                reordered: Callable[..., R] = function
                return reordered(*args[:place], **kw, **named)
            try:
                return function(*args, **kw)
            except WebDatasetError as error:
                trim_traceback(error)
                raise

        return either

    return decorate


def check_flags(**flags: object) -> None:
    """Raise where a text stands for True or False, as from a command line or a file: every text counts as True.

    Args:
        **flags: values of arguments, by name.

    Raises:
        UsageError: it names the argument.
    """
    for name, value in flags.items():
        if isinstance(value, str | bytes):
            raise UsageError(
                f"{name}={value!r:.60} is a text, which counts as True whatever it says: write {name}=True or False"
            )
