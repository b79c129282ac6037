"""Fields chosen by how their names end: ``to_dict``, known as ``interleaved_to_dict`` too.

Flows in: samples. Flows out: dictionaries of the chosen fields, without ``__key__`` and other metadata.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.ground.errors import MissingField
from webdataset.ground.policies import Handler, reraise_exception

from .base import transform
from .blame import applied
from .fields import Spec, alternatives


def _to_dict(
    source: Iterator[Any],
    *args: Spec,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Iterator[dict[str, Any]]:
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

    def chosen(sample: Mapping[str, Any]) -> dict[str, Any]:
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

    return applied(source, chosen, handler, "to_dict")


to_dict = transform(_to_dict)
interleaved_to_dict = to_dict
