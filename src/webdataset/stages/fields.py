"""Chooses and renames fields of samples: by name, by pattern or by suffix.

``to_tuple``, ``rename``, ``associate`` and ``getfirst`` take names. A field that is absent is an error that names it,
the sample, the fields that are there, and the nearest of their names.

``rename_keys`` and ``extract_keys`` take patterns of ``fnmatch``. Upstream's two ways of matching differ, and both
are kept: ``rename_keys`` looks at the last path component in lower case, ``extract_keys`` at the name unchanged, with
and without a dot before it.

``to_dict`` (also ``interleaved_to_dict``) takes suffixes, and drops ``__key__`` and other metadata.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

from webdataset.core.error_handlers import Handler, reraise_exception
from webdataset.core.errors import DuplicateField, MissingField, UsageError
from webdataset.stages.argument_checks import make_flag_check
from webdataset.stages.base import Result, Sample, map_items, transform

# names of fields in a message
_MOST_SHOWN = 20

Spec = str | list[str] | tuple[str, ...]
Pick = Callable[[Mapping[str, object]], tuple[object, ...]]


def alternatives(spec: Spec) -> list[str]:
    """Return the field names of one specification, in the order in which they are tried.

    Raises:
        UsageError: spaces within a specification, or something that is no name.
    """
    if isinstance(spec, str):
        if " " in spec:
            raise UsageError(f"field names cannot hold spaces: {spec!r}; alternatives are joined by ';'")
        return spec.split(";")
    if not isinstance(spec, list | tuple) or not spec or not all(isinstance(name, str) for name in spec):
        raise UsageError(f"a field is named by a string or a list of strings, not by {spec!r:.60}: write 'jpg;png'")
    return list(spec)


def _check_fields(specs: object) -> None:
    """Raise UsageError where a tuple of specifications, or a dictionary of them, holds one that names no field."""
    given = list(specs.values()) if isinstance(specs, dict) else list(specs) if isinstance(specs, tuple) else []
    # a single string with spaces names several
    for spec in given[0].split() if len(given) == 1 and isinstance(given[0], str) else given:
        alternatives(spec)


def parse_field_spec(fields: Iterable[Spec]) -> list[list[str]]:
    """Split each of several specifications at ``;``; lists stay as they are."""
    return [field.split(";") if isinstance(field, str) else list(field) for field in fields]


def _list_names(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def missing(names: list[str], sample: object, why: str = "no field") -> MissingField:
    """Return the error for a sample without any of the fields ``names``."""
    if not isinstance(sample, Mapping):
        return MissingField(f"{why} {names}: the sample is a {type(sample).__name__}, not a dictionary of fields")
    present = [str(name) for name in sample]
    near = [match for name in names for match in get_close_matches(name, present, n=1)]
    hint = f"; did you mean {near[0]!r}?" if near and near[0] not in names else ""
    longer = [each for each in present for name in names if each.endswith(f".{name}")]
    if longer:
        hint = f"; did you mean {longer[0]!r}? A field is all that follows the first dot of the file's name"
    wanted = " or ".join(map(repr, names))
    url, key = sample.get("__url__"), sample.get("__key__")
    if isinstance(key, str) and "/" in key and len([name for name in present if not name.startswith("__")]) == 1:
        hint += (
            f"; all members of a sample share their path up to the first dot of the file's name, folders included: "
            f"{key}.jpg and {key}.txt"
        )
    return MissingField(
        f"{why} {wanted}; the sample has {_list_names(present)}{hint}",
        field=";".join(names),
        key=key,
        url=None if url is None else str(url),
    )


def getfirst(
    a: Mapping[str, Any],
    keys: Spec,
    default: object = None,
    missing_is_error: bool = True,  # noqa: FBT001, FBT002  positional upstream
) -> Any:
    """Return the first of several fields that a sample has.

    Args:
        a: the sample.
        keys: ``"jpg;png"``, or a list of names.
        default: what to return where there is none.
        missing_is_error: raise where there is none.

    Raises:
        MissingField: none of them is there.
        UsageError: spaces in ``keys``.
    """
    names = alternatives(keys)
    for name in names:
        if name in a:
            return a[name]
    if missing_is_error:
        raise missing(names, a)
    return default


def _to_tuple(
    source: Iterator[Sample],
    *args: Spec,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Iterator[tuple[object, ...]]:
    """Take fields out of samples, as tuples.

    Args:
        source: samples that are dictionaries.
        *args: one field each: ``"cls"``, ``"jpg;png"`` (the first that is there), ``["jpg", "png"]``. A single string
            with spaces names several: ``"jpg cls"``.
        handler: what to do about a sample without a field: true skips it, false ends the stage.
        missing_is_error: otherwise an absent field gives None.
        none_is_error: whether a field that is there, but None (as JSON ``null`` is), is an error.

    Yields:
        Tuples with one value for each argument.

    Raises:
        MissingField: a field is absent, or is None with ``none_is_error``.
        UsageError: an argument that names no field.

    Flow: in order; holds nothing; resumes exactly.
    """
    if len(args) == 1 and isinstance(args[0], str):
        args = tuple(args[0].split())
    specs = [alternatives(spec) for spec in args]
    pick = _make_picker(specs, missing_is_error=missing_is_error, none_is_error=bool(none_is_error))
    return map_items(source, pick, handler, "to_tuple")


def _make_picker(specs: list[list[str]], *, missing_is_error: bool, none_is_error: bool) -> Pick:
    """Return the function that takes the fields out of one sample."""

    def pick(sample: Mapping[str, object]) -> tuple[object, ...]:
        values = []
        for names in specs:
            value = None
            for name in names:
                if name in sample:
                    value = sample[name]
                    break
            else:
                if missing_is_error:
                    raise missing(names, sample)
            if value is None and none_is_error:
                raise missing(names, sample, "nothing (None) in field")
            values.append(value)
        return tuple(values)

    if len(specs) == 1 and len(specs[0]) == 1:
        return _pick_one(specs[0][0], pick)
    if len(specs) == 2 and all(len(names) == 1 for names in specs):
        return _pick_two(specs[0][0], specs[1][0], pick)
    if len(specs) > 1 and all(len(names) == 1 for names in specs):
        return _pick_many(itemgetter(*[names[0] for names in specs]), pick)
    return pick


def _pick_one(name: str, pick: Pick) -> Pick:
    def quick(sample: Mapping[str, object]) -> tuple[object, ...]:
        try:
            value = sample[name]
        except (KeyError, TypeError):
            return pick(sample)
        return (value,) if value is not None else pick(sample)

    return quick


def _pick_two(name: str, other: str, pick: Pick) -> Pick:
    def quick(sample: Mapping[str, object]) -> tuple[object, ...]:
        try:
            value, second = sample[name], sample[other]
        except (KeyError, TypeError):
            return pick(sample)
        return (value, second) if value is not None and second is not None else pick(sample)

    return quick


def _pick_many(get: Pick, pick: Pick) -> Pick:
    def quick(sample: Mapping[str, object]) -> tuple[object, ...]:
        try:
            values: tuple[object, ...] = get(sample)
        except (KeyError, TypeError):
            return pick(sample)
        for value in values:
            if value is None:
                return pick(sample)
        return values

    return quick


def _rename(
    source: Iterator[Sample],
    /,
    handler: Handler = reraise_exception,
    keep: bool = True,  # noqa: FBT001, FBT002  positional upstream
    **kw: Spec,
) -> Iterator[Sample]:
    """Give fields new names.

    Args:
        source: samples that are dictionaries.
        handler: what to do about a sample without a field: true skips it, false ends the stage.
        keep: keep the other fields; otherwise (``keep=False``) drop them all, ``__key__`` too.
        **kw: new=old, where old is ``"jpg"``, ``"jpg;png"`` (the first that is there) or a list of names. All old
            names are gone afterwards; one old field may feed several new ones.

    Yields:
        New dictionaries.

    Raises:
        MissingField: none of a new field's old names is there.
        UsageError: an argument that names no field.

    Flow: in order; holds nothing; resumes exactly.
    """
    specs = [(new, alternatives(old)) for new, old in kw.items()]
    used = {name for _, names in specs for name in names}

    def rename_fields(sample: Mapping[str, object]) -> Sample:
        result = {name: sample[name] for name in sample if name not in used} if keep else {}
        for new, names in specs:
            for name in names:
                if name in sample:
                    result[new] = sample[name]
                    break
            else:
                raise missing(names, sample)
        return result

    return map_items(source, rename_fields, handler, "rename")


def _associate(
    source: Iterator[Sample],
    /,
    associator: Mapping[str, Mapping[str, object]] | Callable[[str], Mapping[str, object] | None],
    handler: Handler = reraise_exception,
    **kw: object,  # noqa: ARG001  ignored, as upstream ignores it
) -> Iterator[Sample]:
    """Add fields that are found by the sample's ``__key__``, in place.

    Args:
        source: samples that are dictionaries.
        associator: a dictionary from key to fields (keys that it lacks add nothing), or a function of the key.
        handler: what to do when the function raises: true skips the sample, false ends the stage.
        **kw: ignored.

    Yields:
        The same dictionaries, updated.

    Raises:
        KeyError: a sample without ``__key__``.

    Flow: in order; holds nothing; resumes exactly.
    """
    look = associator if callable(associator) else associator.get

    def update(sample: Sample) -> Sample:
        sample.update(look(sample["__key__"]) or {})
        return sample

    return map_items(source, update, handler, "associate")


def _check_associator(associator: object) -> None:
    if not callable(associator) and not hasattr(associator, "get"):
        raise UsageError(
            f"associate takes a dictionary from key to fields, or a function of the key, not {associator!r:.60}"
        )


_check_missing, _check_none = map(make_flag_check, ("missing_is_error", "none_is_error"))
to_tuple = transform(
    _to_tuple, state_name="_to_tuple", args=_check_fields, missing_is_error=_check_missing, none_is_error=_check_none
)
rename = transform(_rename, state_name="_rename", kw=_check_fields, keep=make_flag_check("keep"))
associate = transform(_associate, state_name="_associate", associator=_check_associator)


def _parse_rules(pairs: tuple[tuple[str, str], ...], named: Mapping[str, str]) -> list[tuple[str, str]]:
    rules = [*pairs, *named.items()]
    for rule in rules:
        if not isinstance(rule, Sequence) or len(rule) != 2 or not all(isinstance(part, str) for part in rule):
            raise UsageError(f"a rule is a pair (new name, pattern) of strings, not {rule!r}")
    return [(new, pattern) for new, pattern in rules]


def _rename_keys(
    source: Iterator[Sample],
    /,
    *args: tuple[str, str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    handler: Handler = reraise_exception,
    **kw: str,
) -> Iterator[Sample]:
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
    rules = _parse_rules(args, kw)
    patterns = {pattern for _, pattern in rules}
    new_names = _memoise(lambda name: _new_name(name, rules))

    def rename_matches(sample: Mapping[str, object]) -> Sample:
        result: Sample = {}
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
                raise _duplicate_field_error(sample, f"two fields are renamed to {new!r}", new)
        if must_match and not patterns <= matched:
            raise missing([pattern for _, pattern in rules if pattern not in matched], sample, "no field matches")
        return result

    return map_items(source, rename_matches, handler, "rename_keys")


def _new_name(name: str, rules: list[tuple[str, str]]) -> tuple[str, str]:
    """Return a field's new name and the pattern that gave it: the last that matches; two empty strings for none."""
    last = name.rpartition("/")[2].lower()
    return next(((new, pattern) for new, pattern in reversed(rules) if fnmatchcase(last, pattern)), ("", ""))


def _memoise(function: Callable[[str], Result], limit: int = 4096) -> Callable[[str], Result]:
    """Remember the results for field names: there are few of them, and patterns are slow."""
    known: dict[str, Result] = {}

    def look(name: str) -> Result:
        found = known.get(name)
        if found is None:
            if len(known) >= limit:
                known.clear()
            found = known[name] = function(name)
        return found

    return look


def _extract_keys(
    source: Iterator[Sample],
    *patterns: str | list[str] | tuple[str, ...],
    duplicate_is_error: bool = True,
    ignore_missing: bool = False,
    handler: Handler = reraise_exception,
) -> Iterator[tuple[object, ...]]:
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
    places = _memoise(lambda name: [place for place, any_of in enumerate(wanted) if _matches(name, any_of)])

    def extract_matches(sample: Mapping[str, object]) -> tuple[object, ...]:
        found: dict[int, object] = {}
        for name in sample if wanted else ():
            for place in places(name):
                if place not in found:
                    found[place] = sample[name]
                elif duplicate_is_error:
                    raise _duplicate_field_error(
                        sample, f"several fields match {wanted[place]}", ";".join(wanted[place])
                    )
        if len(found) < len(wanted) and not ignore_missing:
            absent = next(wanted[place] for place in range(len(wanted)) if place not in found)
            raise missing(absent, sample, "no field matches")
        return tuple([found[place] for place in sorted(found)])

    return map_items(source, extract_matches, handler, "extract_keys")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase("." + name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


def _duplicate_field_error(sample: Mapping[str, Any], why: str, field: str) -> DuplicateField:
    return DuplicateField(
        f"{why}; the sample has {', '.join(map(str, sample))}", field=field, key=sample.get("__key__")
    )


def _check_renames(rules: object) -> None:
    _parse_rules(rules if isinstance(rules, tuple) else (), rules if isinstance(rules, dict) else {})


def _check_patterns(patterns: object) -> None:
    for pattern in patterns if isinstance(patterns, tuple) else ():
        names = [pattern] if isinstance(pattern, str) else pattern
        if not isinstance(names, Collection) or not names or not all(isinstance(name, str) for name in names):
            raise UsageError(f"extract_keys takes patterns of field names, not {pattern!r:.60}: write '*.jpg;*.png'")


rename_keys = transform(_rename_keys, state_name="_rename_keys", args=_check_renames, kw=_check_renames)
extract_keys = transform(_extract_keys, state_name="_extract_keys", patterns=_check_patterns)


def _to_dict(
    source: Iterator[Sample],
    *args: Spec,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Iterator[Sample]:
    """Keep the fields whose names end in one of some suffixes, as a dictionary.

    Args:
        source: samples that are dictionaries.
        *args: suffixes: ``"json;jpg;png"``, or several of these. They are compared with the end of the name, so ``jpg``
            keeps ``0.jpg``, ``1.jpg`` and ``jpg``. A single string with spaces names several.
        handler: what to do about a sample with other fields: true skips it, false ends the stage.
        missing_is_error: whether fields with other endings, and values that are None, are errors.
        none_is_error: the same, where it is given. Otherwise such fields are there, and are None.

    Yields:
        Dictionaries, without fields whose names begin with ``__``.

    Raises:
        MissingField: a field (a ValueError) that has another ending, or is None.
        UsageError: an argument that names no suffix.

    Flow: in order; holds nothing; resumes exactly.
    """
    if len(args) == 1 and isinstance(args[0], str):
        args = tuple(args[0].split())
    endings = tuple(ending for spec in args for ending in alternatives(spec))
    strict = missing_is_error if none_is_error is None else none_is_error

    def chosen(sample: Mapping[str, object]) -> Sample:
        kept = {
            name: value if name.endswith(endings) else None
            for name, value in sample.items()
            if not name.startswith("__")
        }
        if strict:
            empty = [name for name, value in kept.items() if value is None]
            if empty:
                raise MissingField(
                    f"nothing in {', '.join(empty)}: these fields end in none of {', '.join(endings)}, or are None; "
                    "name their endings too, or pass none_is_error=False",
                    field=empty[0],
                )
        return kept

    return map_items(source, chosen, handler, "to_dict")


to_dict = transform(
    _to_dict, state_name="_to_dict", args=_check_fields, missing_is_error=_check_missing, none_is_error=_check_none
)
interleaved_to_dict = to_dict
