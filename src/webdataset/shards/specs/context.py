"""The context of a specification that is being read: its origin, what it may name, and the mistakes so far.

It gives resolved, checked urls and nested specifications. It opens specifications, never shards.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from webdataset.core import trust as trust_levels
from webdataset.core.errors import SpecError, UnsafeSpec, WebDatasetError
from webdataset.shards.lists import ShardList
from webdataset.shards.specs.mix import Mix, Source
from webdataset.shards.specs.origin import SpecOrigin, escape_braces, expand_names, split_expression
from webdataset.shards.specs.spec import DatasetSpec
from webdataset.shards.specs.syntax import SpecProblems, SpecTree

Made = TypeVar("Made")

MAX_NESTED = 20
MAX_FILES = 1000


@dataclass(frozen=True)
class SpecContext:
    """One specification that is being read.

    Args:
        origin: where it came from.
        trust: the trust level in force.
        load: reads another specification: url and the context that names it.
        problems: mistakes of all specifications that are being read together.
        around: those that are being read around this one, itself included.
        within: reads a specification that stands within this one.
        files: those that all of them together have named so far.
        listed: the list of shards that the document is, where it says no more than that.
    """

    origin: SpecOrigin
    trust: str
    load: "Callable[[str, SpecContext], DatasetSpec]"
    problems: SpecProblems = field(default_factory=SpecProblems)
    around: tuple[str, ...] = ()
    within: "Callable[[SpecTree, SpecContext], DatasetSpec] | None" = None
    files: list[str] = field(default_factory=list)
    listed: list[ShardList] = field(default_factory=list)

    def shards(self, tree: SpecTree, expressions: tuple[str, ...]) -> tuple[str, ...]:
        """Return expressions of shards made whole, each url they stand for checked."""
        found = [self.attempt(tree, partial(self._whole, text)) or () for text in expressions]
        return tuple(url for urls in found for url in urls)

    def _whole(self, expression: str) -> list[str]:
        whole = [self.origin.resolve(part) for part in split_expression(expression)]
        for part in whole:
            for url in expand_names(part):
                self.origin.check(url)
        return whole

    def take_urls(self, tree: SpecTree, urls: Iterable[str]) -> tuple[str, ...]:
        """Return urls that are whole already as expressions that stand for just these, each checked.

        Args:
            tree: where they stand.
            urls: nothing in them is expanded, and nothing is joined to them.
        """
        return self.attempt(tree, lambda: tuple(escape_braces(self.origin.check(url)) for url in urls)) or ()

    def place_of(self, tree: SpecTree, name: str) -> str | None:
        """Return a url or path of another file, made whole and checked; None with the mistake noted."""
        found: str | None = self.attempt(tree, lambda: str(self.origin.check(self.origin.resolve(name))))
        return found

    def load_inner(self, tree: SpecTree, name: str) -> DatasetSpec | None:
        """Return another specification that this one names; None with the mistake noted."""
        url = self.place_of(tree, name)
        if url is None:
            return None
        if url == "-":
            self.problems.add(tree.place, "'-' is the standard input, which a specification cannot name: write a file")
            return None
        if len(self.around) > MAX_NESTED:
            self.problems.add(tree.place, f"specifications nested more than {MAX_NESTED} deep")
            return None
        if len(self.files) >= MAX_FILES:
            self.problems.add(tree.place, f"more than {MAX_FILES} other specifications are named")
            return None
        self.files.append(url)
        identity = os.path.realpath(url)
        if identity in self.around:
            self.problems.add(tree.place, f"specifications name each other in a circle: {' -> '.join(self.around)}")
            return None
        inner = replace(self, around=(*self.around, identity))
        found: DatasetSpec | None = self.attempt(tree, lambda: self.load(url, inner))
        return found

    def allowed_function(self, tree: SpecTree, name: str) -> None:
        """Note a mistake unless this specification may name a function of a module."""
        if self.origin.network:
            self.problems.add(tree.place, f"a specification from the network cannot name the function {name!r}",
                              unsafe=True)  # fmt: skip
        elif self.trust != "full":
            self.problems.add(
                tree.place,
                f"{name!r} names a function, which would be imported and run: pass trust='full' if you trust "
                "its author",
                unsafe=True,
            )

    def attempt(self, tree: SpecTree, make: Callable[[], Made]) -> Made | None:
        """Return what a function makes, or None with its errors noted as mistakes.

        Once a specification has asked for what it may not have, nothing is opened on its behalf any more.
        """
        if self.problems.unsafe:
            return None
        try:
            return make()
        except SpecError as error:
            if error.problems:
                self.problems.found += [text for text in error.problems if text not in self.problems.found]
                self.problems.unsafe |= isinstance(error, UnsafeSpec)
            else:
                self.problems.add(tree.place, error.message, unsafe=isinstance(error, UnsafeSpec))
        except WebDatasetError as error:
            self.problems.add(tree.place, str(error))
        return None


def current_trust(asked: str | None) -> str:
    """Return the trust level in force."""
    return trust_levels.trust_level(asked)


def name_sources(sources: list[Source], trees: list[SpecTree], problems: SpecProblems) -> tuple[Source, ...]:
    """Return sources with a name each, two of a name noted as a mistake."""
    seen: dict[str, str] = {}
    named = []
    for number, (source, tree) in enumerate(zip(sources, trees, strict=True)):
        name = source.name or f"source-{number}"
        if name in seen:
            problems.add(tree.place, f"two sources are called {name!r}: the other stands at {seen[name]}")
        seen[name] = tree.place
        named.append(replace(source, name=name))
    return tuple(named)


def check_mix(mix: Mix, tree: SpecTree, problems: SpecProblems) -> Mix:
    """Return a mix, what cannot go together noted as mistakes."""
    if not mix.sources:
        problems.add(tree.place, "a mix without sources")
    elif mix.how == "interleave" and all(source.weight == 0 for source in mix.sources):
        problems.add(tree.place, "at least one weight must be above 0")
    return mix
