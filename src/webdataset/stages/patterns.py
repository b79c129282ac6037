"""Fields chosen by file name patterns: rename_keys, extract_keys.

Flows in: samples that are dictionaries. Flows out: dictionaries under new names, or tuples. Patterns are those of
``fnmatch``. Upstream's two ways of matching differ, and both are kept: ``rename_keys`` looks at the last path component
in lower case, ``extract_keys`` at the name as it is, with and without a dot before it.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from webdataset.ground.errors import DuplicateField, UsageError
from webdataset.ground.policies import Handler, reraise_exception

from .base import transform
from .blame import applied
from .fields import missing


def _rules(pairs: tuple[Any, ...], named: Mapping[str, str]) -> list[tuple[str, str]]:
    rules = [*pairs, *named.items()]
    for rule in rules:
        if len(rule) != 2 or not all(isinstance(part, str) for part in rule):
            raise UsageError(f"a rule is a pair (new name, pattern) of strings, not {rule!r}")
    return [(new, pattern) for new, pattern in rules]


def _rename_keys(
    source: Iterator[Any],
    /,
    *args: tuple[str, str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    handler: Handler = reraise_exception,
    **kw: str,
) -> Iterator[dict[str, Any]]:
    """Give new names to the fields that match patterns.

    Args:
        source: samples that are dictionaries.
        *args: rules (new name, pattern). A pattern is compared with the last path component in lower case; where
            several match, the last rule counts.
        keep_unselected: keep fields that no rule matches; otherwise drop them, ``__key__`` too.
        must_match: every rule must name a field of every sample.
        duplicate_is_error: two fields must not get the same name, kept ones included; otherwise the first one counts.
        handler: what to do about a sample that breaks these: true skips it, false ends the stage.
        **kw: more rules, new=pattern.

    Yields:
        New dictionaries.

    Raises:
        MissingField: a pattern that matches no field.
        DuplicateField: two fields under one new name.
        UsageError: a rule that is none.

    Flow: in order; holds nothing; resumes exactly.
    """
    rules = _rules(args, kw)
    patterns = {pattern for _, pattern in rules}
    new_names = _memoised(lambda name: _new_name(name, rules))

    def renamed(sample: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        matched: set[str] = set()
        for name, value in sample.items():
            new, by = new_names(name)
            matched.add(by)
            if not by:
                if not keep_unselected:
                    continue
                new = name
            if new not in result:
                result[new] = value
            elif duplicate_is_error:
                raise _twice(sample, f"two fields are renamed to {new!r}", new)
        if must_match and not patterns <= matched:
            raise missing([pattern for _, pattern in rules if pattern not in matched], sample, "no field matches")
        return result

    return applied(source, renamed, handler, "rename_keys")


def _new_name(name: str, rules: list[tuple[str, str]]) -> tuple[str, str]:
    """Return a field's new name and the pattern that gave it: the last that matches; two empty strings for none."""
    last = name.rpartition("/")[2].lower()
    return next(((new, pattern) for new, pattern in reversed(rules) if fnmatchcase(last, pattern)), ("", ""))


def _memoised(function: Callable[[str], Any], limit: int = 4096) -> Callable[[str], Any]:
    """Remember the results for field names: there are few of them, and patterns are slow."""
    known: dict[str, Any] = {}

    def look(name: str) -> Any:
        found = known.get(name)
        if found is None:
            if len(known) >= limit:
                known.clear()
            found = known[name] = function(name)
        return found

    return look


def _extract_keys(
    source: Iterator[Any],
    *patterns: str | list[str] | tuple[str, ...],
    duplicate_is_error: bool = True,
    ignore_missing: bool = False,
    handler: Handler = reraise_exception,
) -> Iterator[tuple[Any, ...]]:
    """Take the fields that match patterns out of samples, as tuples.

    Args:
        source: samples that are dictionaries.
        *patterns: one field each: ``"*.jpg"``, ``"*.jpg;*.png"``, or a list. A pattern is compared with the field's
            name, and with the name after a dot.
        duplicate_is_error: no more than one field may match; otherwise the first one counts.
        ignore_missing: leave out what matches no field, so that tuples may be shorter.
        handler: what to do about a sample that breaks these: true skips it, false ends the stage.

    Yields:
        Tuples of values.

    Raises:
        MissingField: a pattern that matches no field.
        DuplicateField: several fields match one pattern.

    Flow: in order; holds nothing; resumes exactly.
    """
    wanted = [pattern.split(";") if isinstance(pattern, str) else list(pattern) for pattern in patterns]
    places = _memoised(lambda name: [place for place, any_of in enumerate(wanted) if _matches(name, any_of)])

    def extracted(sample: Mapping[str, Any]) -> tuple[Any, ...]:
        found: dict[int, Any] = {}
        for name in sample if wanted else ():
            for place in places(name):
                if place not in found:
                    found[place] = sample[name]
                elif duplicate_is_error:
                    raise _twice(sample, f"several fields match {wanted[place]}", ";".join(wanted[place]))
        if len(found) < len(wanted) and not ignore_missing:
            absent = next(wanted[place] for place in range(len(wanted)) if place not in found)
            raise missing(absent, sample, "no field matches")
        return tuple([found[place] for place in sorted(found)])

    return applied(source, extracted, handler, "extract_keys")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase("." + name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


def _twice(sample: Mapping[str, Any], why: str, field: str) -> DuplicateField:
    return DuplicateField(
        f"{why}; the sample has {', '.join(map(str, sample))}", field=field, key=sample.get("__key__")
    )


rename_keys = transform(_rename_keys)
extract_keys = transform(_extract_keys)
