"""YAML fields: plain values, and nothing that runs, nests or multiplies."""

import datetime as dt

import pytest
import yaml

from webdataset.autodecode import Decoder
from webdataset.codecs import default_handlers, encode_based_on_extension1, yaml_codec
from webdataset.core.errors import DecodingError, EncodingError, FieldTooLarge, UnsafeContent


def encode(value, field="yaml"):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


def decode(data, field="yaml"):
    """Decode one field with the basic decoders."""
    return Decoder(["auto"])({"__key__": "k", field: data})[field]


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def _either_loader(request, monkeypatch):
    """Both of PyYAML's loaders: with libyaml and without."""
    if request.param == "python":
        monkeypatch.setattr(yaml_codec, "_Loader", yaml.SafeLoader)
        monkeypatch.setattr(yaml_codec, "_Dumper", yaml.SafeDumper)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML without libyaml")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -(10**40),
        1.5,
        1e300,
        float("inf"),
        "text",
        "é\n\t€ 😀",
        "",
        " ",
        "null",
        "1:30",
        "yes",
        "- a",
        "a: b",
    ]
    + [[], {}, [1, [2, {"a": None}]], {"b": 1, "a": {"c": []}}, {1: 2, None: 3}, dt.date(2024, 5, 6), b"\0\xff"]
    + [{"a"}, dt.datetime(2024, 5, 6, 7, 8, 9)],
    ids=repr,
)
@pytest.mark.parametrize("field", ["yaml", "yml"])
def test_plain_values_come_back(value, field):
    """Every plain value, inside a list (a str alone is text that is written as it is)."""
    assert decode(encode([value], field), field) == [value]


def test_the_order_of_keys_stays():
    """Keys are written and read in their order."""
    assert encode({"b": 1, "a": [1, 2]}) == b"b: 1\na:\n- 1\n- 2\n"
    assert list(decode(b"b: 1\na: 2\n")) == ["b", "a"]


def test_text_is_written_as_it_is():
    """A str is YAML already, as it is for every format of text."""
    assert encode("a: 1\n") == b"a: 1\n"


def test_empty_and_odd_texts():
    """An empty text is None; UTF-16 is read; aliases and merge keys work."""
    assert decode(b"") is None
    assert decode(b"# only a comment\n") is None
    assert decode("a: é".encode("utf-16")) == {"a": "é"}
    assert decode(b"a: &x {c: 1}\nb: {<<: *x, d: 2}\ne: [*x, *x]\n") == {
        "a": {"c": 1},
        "b": {"c": 1, "d": 2},
        "e": [{"c": 1}, {"c": 1}],
    }


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch marker']",
        "!!python/object/new:os.system ['touch marker']",
        "!!python/name:os.system",
        "a: [!!python/module:os ]",
        "!!python/tuple [1, 2]",
        "!own {a: 1}",
        "? !own x\n: 1",
    ],
)
def test_tags_are_refused(text, tmp_path, monkeypatch):
    """A tag that is no plain value is UnsafeContent with its place, and nothing runs."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeContent, match=r"tag.*line \d") as failure:
        decode(text.encode())
    assert (failure.value.key, failure.value.field) == ("k", "yaml")
    assert not list(tmp_path.iterdir())


def multiplied(how, levels=9):
    """Return the text of aliases of aliases, nine times nine times nine."""
    lines = ["a0: &a0 " + ("{x: 1}" if how == "merge" else "[x, x, x, x, x, x, x, x, x]")]
    for level in range(levels):
        aliases = ", ".join([f"*a{level}"] * 9)
        inside = f"{{<<: [{aliases}]}}" if how == "merge" else f"[{aliases}]"
        lines.append(f"a{level + 1}: &a{level + 1} {inside}")
    return "\n".join(lines).encode()


BOMBS = {
    "aliases": multiplied("list"),
    "merge keys": multiplied("merge"),
    "itself": b"&a [*a]",
    "itself by key": b"&a {b: {c: *a}}",
    "brackets": b"[" * 100_000,
    "braces": b"{a: " * 50_000,
    "dashes": b"- " * 5000 + b"a",
    "indents": b"".join(b" " * depth + b"-\n" for depth in range(500)),
    "questions": b"? " * 5000,
    "sixties": b"1:" * 200_000 + b"1",
    "fractions of sixties": b"1:" * 200_000 + b"1.5",
}


@pytest.mark.limited
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name):
    """Aliases that multiply, nesting without end and numbers of quadratic cost are refused, and soon."""
    with pytest.raises(DecodingError) as failure:
        decode(BOMBS[name])
    assert isinstance(failure.value, FieldTooLarge)


def test_honest_documents_pass_the_bounds():
    """Sixty levels, and a large document with a few aliases."""
    deep = "x"
    for _ in range(60):
        deep = [deep]
    assert decode(encode(deep)) == deep
    rows = [{"name": f"row {number}", "at": [number, number + 1]} for number in range(3000)]
    shared = [1, 2, 3]
    value = {"rows": rows, "first": shared, "second": shared}
    data = encode(value)
    assert b"&id" in data
    assert decode(data) == value


@pytest.mark.parametrize("text", [b"a: 1\nb: 2\na: 3\n", b"[{x: 1, x: 2}]", b"{1: a, 1: b}"])
def test_a_key_that_stands_twice_is_an_error(text):
    """YAML forbids it; the loader would drop the first value silently."""
    with pytest.raises(DecodingError, match="stands twice, again in line"):
        decode(text)


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a: [", b"--- 1\n--- 2\n", b"*unknown", b"{[a]: 1}", b"2024-99-99", b"\t- a", b"%YAML 9", b"1" * 5000],
)
def test_what_is_no_yaml_is_an_error(data):
    """Damage is a DecodingError that names key and field."""
    with pytest.raises(DecodingError) as failure:
        decode(data)
    assert (failure.value.key, failure.value.field) == ("k", "yaml")


def test_what_yaml_does_not_have_is_an_error():
    """Objects are refused, not written as tags that nobody reads."""
    for value in ([object()], {"a": {1, object()}}, 1j):
        with pytest.raises(EncodingError):
            encode(value)
