"""Which fields a sample has and what they are called: to_tuple, rename, associate, getfirst.

Flows in: samples that are dictionaries. Flows out: tuples, or dictionaries under other names. A field that is absent is
an error that names it, the sample, the fields that are there, and the nearest of their names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from operator import itemgetter
from typing import Any

from webdataset.ground.errors import MissingField, UsageError
from webdataset.ground.policies import Handler, reraise_exception

from .base import transform
from .blame import applied

Spec = str | list[str] | tuple[str, ...]


def alternatives(spec: Spec) -> list[str]:
    """Return the field names of one specification, in the order in which they are tried.

    Args:
        spec: ``"jpg;png"``, or a list of names.

    Raises:
        UsageError: spaces within a specification, or something that is no name.
    """
    if isinstance(spec, str):
        if " " in spec:
            raise UsageError(f"field names cannot hold spaces: {spec!r}; alternatives are joined by ';'")
        return spec.split(";")
    if not isinstance(spec, list | tuple) or not all(isinstance(name, str) for name in spec):
        raise UsageError(f"a field is named by a string or a list of strings, not by {spec!r}")
    return list(spec)


def parse_field_spec(fields: Iterable[Spec]) -> list[list[str]]:
    """Split each of several specifications at ``;``; lists stay as they are."""
    return [field.split(";") if isinstance(field, str) else list(field) for field in fields]


def missing(names: list[str], sample: Any, why: str = "no field") -> MissingField:
    """Return the error for a sample without any of the fields ``names``."""
    if not isinstance(sample, Mapping):
        return MissingField(f"{why} {names}: the sample is a {type(sample).__name__}, not a dictionary of fields")
    present = [str(name) for name in sample]
    near = [match for name in names for match in get_close_matches(name, present, n=1)]
    hint = f"; did you mean {near[0]!r}?" if near and near[0] not in names else ""
    wanted = " or ".join(map(repr, names))
    url = sample.get("__url__")
    return MissingField(
        f"{why} {wanted}; the sample has {', '.join(present)}{hint}",
        field=";".join(names),
        key=sample.get("__key__"),
        url=None if url is None else str(url),
    )


def getfirst(
    a: Mapping[str, Any],
    keys: Spec,
    default: Any = None,
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
    source: Iterator[Any],
    *args: Spec,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Iterator[tuple[Any, ...]]:
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
    pick = _picker(specs, missing_is_error=missing_is_error, none_is_error=bool(none_is_error))
    return applied(source, pick, handler, "to_tuple")


def _picker(
    specs: list[list[str]], *, missing_is_error: bool, none_is_error: bool
) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return the function that takes the fields out of one sample."""

    def pick(sample: Mapping[str, Any]) -> tuple[Any, ...]:
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
        return _quick_one(specs[0][0], pick)
    if len(specs) > 1 and all(len(names) == 1 for names in specs):
        return _quick_many(itemgetter(*[names[0] for names in specs]), pick)
    return pick


def _quick_one(name: str, pick: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def quick(sample: Any) -> tuple[Any, ...]:
        try:
            value = sample[name]
        except (KeyError, TypeError):
            return pick(sample)
        return (value,) if value is not None else pick(sample)

    return quick


def _quick_many(get: Callable[[Any], Any], pick: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def quick(sample: Any) -> tuple[Any, ...]:
        try:
            values: tuple[Any, ...] = get(sample)
        except (KeyError, TypeError):
            return pick(sample)
        for value in values:
            if value is None:
                return pick(sample)
        return values

    return quick


def _rename(
    source: Iterator[Any],
    /,
    handler: Handler = reraise_exception,
    keep: bool = True,  # noqa: FBT001, FBT002  positional upstream
    **kw: Spec,
) -> Iterator[dict[str, Any]]:
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

    def renamed(sample: Mapping[str, Any]) -> dict[str, Any]:
        result = {name: sample[name] for name in sample if name not in used} if keep else {}
        for new, names in specs:
            for name in names:
                if name in sample:
                    result[new] = sample[name]
                    break
            else:
                raise missing(names, sample)
        return result

    return applied(source, renamed, handler, "rename")


def _associate(
    source: Iterator[Any],
    /,
    associator: Mapping[Any, Mapping[str, Any]] | Callable[[Any], Mapping[str, Any] | None],
    handler: Handler = reraise_exception,
    **kw: Any,  # noqa: ARG001  ignored, as upstream ignores it
) -> Iterator[dict[str, Any]]:
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

    def update(sample: dict[str, Any]) -> dict[str, Any]:
        sample.update(look(sample["__key__"]) or {})
        return sample

    return applied(source, update, handler, "associate")


to_tuple = transform(_to_tuple)
rename = transform(_rename)
associate = transform(_associate)
