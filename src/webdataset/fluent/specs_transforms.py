"""Stages by name, as specifications ask for them.

Flows in: a name and an argument. Flows out: a stage. Names are those below, or entry points of installed packages in
``webdataset.stages``; ``module:function`` is imported, which ``load_spec`` allows under full trust only.
"""

import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from webdataset import filters
from webdataset.ground.errors import SpecError, UsageError
from webdataset.stages import augmenting

ENTRY_POINTS = "webdataset.stages"

Maker = Callable[..., Any]


def _makers() -> dict[str, Maker]:
    """Return the stages that go by a name of ours; those of ``filters`` as they are there now."""
    own: dict[str, Maker] = {
        name: getattr(augmenting, name) for name in ("scale", "scaleprob", "rotprob", "gray", "noise", "patches")
    }
    names = ("batched", "listed", "rename", "rename_keys", "rsample", "shuffle", "slice", "to_tuple",
             "unbatched", "unlisted")  # fmt: skip
    return {**own, **{name: getattr(filters, name) for name in names}}


def stage_of(name: Any, argument: Any, source: str, *, network: bool = False) -> Any:
    """Return the stage that a specification names.

    Args:
        name: a name, ``module:function``, or a function of one sample.
        argument: a mapping gives keywords, a list positions, anything else one position; None gives nothing.
        source: the name of the source, for messages.
        network: the specification came over the network: only names of ours will do.

    Raises:
        SpecError: no such name, or arguments that its stage does not take.
    """
    if callable(name):
        return filters.map(name)
    try:
        if ":" in name and not network:
            return filters.map(_function(name, argument))
        return _called(_maker(name, network=network), argument)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        raise SpecError(f"source {source!r}: transform {name!r} with {argument!r}: {error}") from error


def _maker(name: str, *, network: bool) -> Maker:
    makers = _makers()
    if name in makers:
        return makers[name]
    if not network:
        from importlib.metadata import entry_points  # noqa: PLC0415  20 ms, for a name that is not ours

        for point in entry_points(group=ENTRY_POINTS):
            if point.name == name:
                maker: Maker = point.load()
                return maker
    near = difflib.get_close_matches(name, makers, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(makers))}"
    raise UsageError(f"no transform of this name; {hint} (more come from entry points in {ENTRY_POINTS!r})")


def _called(maker: Maker, argument: Any) -> Any:
    if argument is None:
        return maker()
    if isinstance(argument, dict):
        return maker(**argument)
    return maker(*argument) if isinstance(argument, list | tuple) else maker(argument)


def _function(name: str, argument: Any) -> Callable[[Any], Any]:
    module, _, path = name.partition(":")
    found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    if not callable(found):
        raise UsageError(f"{name} is no function")
    if argument is None:
        return found  # type: ignore[no-any-return]
    if not isinstance(argument, dict):
        raise UsageError("a function takes its arguments as a mapping from name to value")
    return functools.partial(found, **argument)
