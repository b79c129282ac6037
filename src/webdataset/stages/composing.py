"""Several steps as one.

Flows in: functions or stages. Flows out: one callable that applies them from left to right.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .base import Stage, TransparentFunction

Step = Callable[[Any], Any]


class Composed(Stage):
    """Steps applied from left to right, to a value or to an iterator alike.

    Args:
        *steps: functions of one argument, or stages. A pipeline may take ``steps`` apart and run each by itself.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps: tuple[Step, ...] = tuple(
            inner for step in steps for inner in (step.steps if isinstance(step, Composed) else (step,))
        )
        self.transparent = all(isinstance(step, TransparentFunction) for step in self.steps)

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield what the last step yields."""
        return iter(self(upstream))

    def __call__(self, source: Any) -> Any:
        """Apply all steps; ``source`` may be any value where the steps are plain functions."""
        for step in self.steps:
            source = step(source)
        return source

    def __repr__(self) -> str:
        return f"compose({', '.join(str(step) for step in self.steps)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composed) and self.steps == other.steps

    __hash__ = None


def compose(*args: Step) -> Composed:
    """Join functions or stages into one: ``compose(f, g)(x)`` is ``g(f(x))``.

    Args:
        *args: functions of one argument, applied from left to right; none at all is the identity.

    Returns:
        A stage.

    Flow: that of its steps; resumes exactly where they are maps or selections, by replay otherwise.
    """
    return Composed(*args)


def compose2(f: Step, g: Step) -> Composed:
    """Join two functions: ``compose2(f, g)(x)`` is ``g(f(x))``."""
    return Composed(f, g)


def pipeline(source: Iterable[Any], *args: Step) -> Any:
    """Run ``source`` through the steps.

    Args:
        source: anything that the first step takes.
        *args: steps, from left to right.

    Returns:
        What the last step returns.
    """
    return Composed(*args)(source)
