"""What an expression excludes by columns: never a sample for which it holds, and no more than is known."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.where_rows import clauses, rows
from webdataset.core.errors import SampleError, UsageError
from webdataset.inspection.column_filter import ColumnFilter, RowFields, RowScope, check_value, parse_columns
from webdataset.inspection.expression import Expression

ALL = ["json.a", "json.lang", "json.deep.b", "json.missing", "len(json.lang)", "json"]


def make_row(columns, payloads, *, fields=True):
    """Return the row of a sample, with columns as they would be written."""
    values = {name: Expression(name).evaluate(payloads, key="0007") for name in columns}
    sizes = {name: len(payload) for name, payload in payloads.items()} if fields else None
    return RowScope(RowFields(sizes), "0007", "", values)


def payloads_of(row):
    """Return the fields of a sample with such JSON."""
    return {"bin": bytes(700), **({} if row is None else {"json": json.dumps(row).encode()})}


@given(rows, clauses, st.sets(st.sampled_from(ALL)), st.booleans())
def test_a_sample_for_which_it_holds_is_never_excluded(row, clause, columns, fields):
    """Whatever part of a sample is known, what matches stays; where all of it is known, nothing else does."""
    payloads = payloads_of(row)
    expression = Expression(clause.text)
    chosen = ColumnFilter(expression, sorted(columns))
    excluded = chosen.excludes(make_row(sorted(columns), payloads, fields=fields))
    holds = expression.holds(payloads, key="0007")
    assert not (excluded and holds)
    assert set(chosen.used) <= columns
    everything = ColumnFilter(expression, ALL)
    assert everything.excludes(make_row(ALL, payloads)) is not holds


@pytest.mark.parametrize(("text", "excluded"), [
    ("json.a > 5", True),
    ("json.a > 5 and json.b == 1", True),
    ("json.b == 1 and json.a > 5", False),
    ("json.a < 5 and json.b == 1", False),
    ("json.a < 5 or json.b == 1", False),
    ("json.a + 'x' == 1", False),
    ("json.a.b == 1", False),
    ("any(json.a > 5 for json in fields)", False),
    ("any(x.a > 5 for x in json.a)", False),
    ("has('png')", True),
    ("has('bin')", False),
    ("size('bin') > 800", True),
    ("bin.size > 800", True),
    ("size() > 8000", True),
    ("png.width > 5", True),
    ("bin.width > 5", False),
    ("text('bin') == ''", False),
    ("'png' in fields", True),
    ("key == '0008'", True),
    ("shard == 'other'", True),
])  # fmt: skip
def test_what_is_not_known_excludes_nothing(text, excluded):
    """Only what comes out false before anything unknown is met is excluded; a failure decides nothing."""
    payloads = {"bin": bytes(700), "json": b'{"a": 3}'}
    assert ColumnFilter(Expression(text), ["json.a"]).excludes(make_row(["json.a"], payloads)) is excluded


def test_fields_that_are_not_known_exclude_nothing():
    """Without names and sizes of fields, questions about them are left to the sample."""
    row = RowScope(RowFields(None), "0007", "", {"json.a": 3})
    for text in ("has('png')", "size() > 8000", "'png' in fields", "png", "png.size > 5", "len(fields) == 0"):
        assert not ColumnFilter(Expression(text), ["json.a"]).excludes(row)


def test_columns_are_parsed_as_a_list():
    """Expressions stand between commas, each once and in normal form; commas within them stay."""
    assert parse_columns(" json.a,json['b  c'] , len( txt ),json.a, like(txt, 'a,b') ,") == [
        "json.a", "json['b  c']", "len(txt)", "like(txt, 'a,b')",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", ",", "json.a json.b", "a,import os", "open('x')", "key", "wds_offset", "*json", "len(shard)", "a," * 6000],
)
def test_what_is_no_list_of_columns_is_refused(text):
    """Nothing that is no expression, that every file has, or that differs between urls becomes a column."""
    with pytest.raises(UsageError):
        parse_columns(text)


def test_a_field_of_bytes_is_no_value():
    """A column of bytes is refused with what to write instead."""
    value = Expression("jpg").evaluate({"jpg": b"x"})
    with pytest.raises(UsageError, match=r"'jpg' is a field of bytes.*jpg.size"):
        check_value(value, "jpg")
    with pytest.raises(UsageError, match="a field of bytes"):
        check_value([1, [value]], "[1, [jpg]]")
    assert check_value(None, "jpg") is None
    assert check_value([1, ["x"]], "json") == [1, ["x"]]


def test_expressions_are_equal_by_their_meaning():
    """Blanks, brackets and quotes make no difference; copies in other processes are equal."""
    one, other = Expression('json.a>5  and (txt == "x")'), Expression("json.a > 5 and txt == 'x'")
    assert (one == other, hash(one) == hash(other), one.normal) == (True, True, other.normal)
    assert one != Expression("json.a > 6")
    assert one != "json.a > 5"
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(SampleError):
        pickle.loads(pickle.dumps(one)).holds({"json": b"["})
