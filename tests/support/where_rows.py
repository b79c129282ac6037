"""Shards of rows with missing and null values, expressions over them, and what each means in plain Python."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

import webdataset as wds

COLUMNS = "json.a, json.lang, json.deep.b"
Row = dict[str, Any] | None
"""The JSON of a sample; None of one that has no such field."""


class Clause(NamedTuple):
    """An expression, and its meaning.

    Args:
        text: the expression.
        holds: the same of a key and a row.
    """

    text: str
    holds: Callable[[str, Row], bool]


def look_up(row: Row, *path: str) -> Any:
    """Return a part of a row; None where something on the way to it is missing."""
    found: Any = row
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


numbers = st.one_of(st.integers(-3, 9), st.sampled_from([0.5, 2.0, 7.25]))
rows = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.one_of(st.none(), numbers),
            "lang": st.sampled_from([None, "de", "en", "fr", "ü"]),
            "deep": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"b": st.one_of(st.none(), numbers)})),
        },
    ),
)

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


@st.composite
def _orders(draw: st.DrawFn) -> Clause:
    path = draw(st.sampled_from([("a",), ("deep", "b"), ("missing",)]))
    sign, number = draw(st.sampled_from(sorted(_ORDERS))), draw(numbers)

    def holds(_key: str, row: Row) -> bool:
        value = look_up(row, *path)
        return value is not None and _ORDERS[sign](value, number)

    return Clause(f"json.{'.'.join(path)} {sign} {number!r}", holds)


@st.composite
def _keys(draw: st.DrawFn) -> Clause:
    key = f"{draw(st.integers(0, 30)):04d}"
    return Clause(f"key >= {key!r}", lambda own, _row: own >= key)


_plain = st.sampled_from(
    [
        Clause("json.lang == 'de'", lambda _key, row: look_up(row, "lang") == "de"),
        Clause("json.lang != 'de'", lambda _key, row: look_up(row, "lang") != "de"),
        Clause("json.lang in ('de', 'ü')", lambda _key, row: look_up(row, "lang") in ("de", "ü")),
        Clause("json.lang not in ('de', 'en')", lambda _key, row: look_up(row, "lang") not in ("de", "en")),
        Clause("json.lang is None", lambda _key, row: look_up(row, "lang") is None),
        Clause("json.a is not None", lambda _key, row: look_up(row, "a") is not None),
        Clause("has('json')", lambda _key, row: row is not None),
        Clause("len(json.lang) == 2", lambda _key, row: len(look_up(row, "lang") or "") == 2),
        Clause("size('bin') > 1200", lambda key, _row: size_of(key) > 1200),
        Clause("'lang' in json", lambda _key, row: "lang" in (row or {})),
        Clause("json.a", lambda _key, row: bool(look_up(row, "a"))),
        Clause("json.deep.b == json.a", lambda _key, row: look_up(row, "deep", "b") == look_up(row, "a")),
    ]
)


def _join(parts: st.SearchStrategy[Clause]) -> st.SearchStrategy[Clause]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda pair: Clause(f"({pair[0].text}) and ({pair[1].text})",
                                      lambda key, row: pair[0].holds(key, row) and pair[1].holds(key, row))),
        pairs.map(lambda pair: Clause(f"({pair[0].text}) or ({pair[1].text})",
                                      lambda key, row: pair[0].holds(key, row) or pair[1].holds(key, row))),
        parts.map(lambda part: Clause(f"not ({part.text})", lambda key, row: not part.holds(key, row))),
    )  # fmt: skip


clauses = st.recursive(st.one_of(_orders(), _keys(), _plain), _join, max_leaves=5)


def key_of(number: int) -> str:
    """Return the key of a sample."""
    return f"{number:04d}"


def size_of(key: str) -> int:
    """Return the bytes of the field ``bin`` of a sample."""
    return 200 + 611 * int(key) % 2000


def write_rows(path: Path, found: Sequence[Row], first: int = 0) -> None:
    """Write a shard of rows.

    Args:
        path: of the shard.
        found: its rows.
        first: number of the first sample.
    """
    with wds.TarWriter(str(path)) as sink:
        for number, row in enumerate(found, first):
            sample: dict[str, Any] = {"__key__": key_of(number), "bin": b"b" * size_of(key_of(number))}
            if row is not None:
                sample["json"] = json.dumps(row).encode()
            sink.write(sample)


def set_columns(shard: str, *, there: bool) -> None:
    """Put the columns file of a shard in place, or take it away; it is kept beside it under another name."""
    path, kept = Path(shard).with_suffix(".parquet"), Path(shard).with_suffix(".kept")
    if not kept.exists():
        wds.write_columns(shard, COLUMNS)
        path.rename(kept)
    path.unlink(missing_ok=True)
    if there:
        shutil.copy(kept, path)
