"""The expression language: what it says about samples, what it refuses, and that nothing in it runs for long."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.core.errors import SampleError, UsageError
from webdataset.inspection.expression import Expression

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x02"
SAMPLE = {
    "json": json.dumps({"width": 640, "a": {"b c": [1, 2, {"d": "x"}]}, "tags": ["cat", "dog"], "no": None}).encode(),
    "txt": b"A Cat sat",
    "cls": b"7",
    "seg.png": PNG,
    "seg": b"q",
    "png": PNG,
    "meta.json": b'{"size": 5}',
}


def value(text, sample=None):
    """What an expression is for the sample above."""
    return Expression(text).evaluate(SAMPLE if sample is None else sample, key="k1", shard="s.tar")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("json.width >= 512 and 'cat' in txt.lower()", True),
        ("json.a['b c'][2].d == 'x'", True),
        ("json.a['b c'][-1].d", "x"),
        ("json.a['b c'][9]", None),
        ("json.none.deeper > 3", False),
        ("json.no is None and json.none is None and json.width is not None", True),
        ("cls == 7 and 1 < cls < 9 and cls in (7, 8) and cls not in [1]", True),
        ("-cls + 2 * 3 - 9 // 2 + 7 % 4 - 1 / 2", -2.5),
        ("png.width * png.height", 6),
        ("seg.png.width", 3),
        ("seg.size", 1),
        ("size('seg.png')", len(PNG)),
        ("size('none') is None and width('none') is None", True),
        ("size() > 100", True),
        ("has('png') and not has('jpg')", True),
        ("meta.json.size", 5),
        ("field('meta.json')['size']", 5),
        ("text('json').startswith('{')", True),
        ("any(t == 'dog' for t in json.tags)", True),
        ("[len(t) for t in json.tags if t != 'cat']", [3]),
        ("all(t.isdigit() for t in json.none)", True),
        ("key == 'k1' and shard == 's.tar'", True),
        ("'txt' in fields and len(fields) == 7", True),
        ("like(txt, 'A*s?t') and not like(txt, 'a*')", True),
        ("like(none, '*')", False),
        ("txt[2:5] + '!'", "Cat!"),
        ("'big' if json.width > 100 else 'small'", "big"),
        ("max(1, cls) + min([3, 2]) + sum([1, 2]) + abs(-1) + int('4') + round(2.6)", 20),
        ("str(cls) + str(1.5)", "71.5"),
        ("float('0.5')", 0.5),
        ("txt.split()[0]", "A"),
        ("none", None),
        ("True", True),
    ],
)
def test_values(text, expected):
    """Paths, fields, sizes, operators, functions and loops mean what the module says."""
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os')", "no function"),
        ("().__class__.__mro__", None),
        ("txt.__class__", None),
        ("txt.format(1)", "methods are"),
        ("open('x')", "no function"),
        ("(lambda: 1)()", "methods are"),
        ("lambda: 1", "Lambda is not allowed"),
        ("2 ** 9", "Pow is not allowed"),
        ("1 << 9", "LShift is not allowed"),
        ("(x := 1)", "NamedExpr is not allowed"),
        ("f'{txt}'", "JoinedStr is not allowed"),
        ("{'a': 1}", "Dict is not allowed"),
        ("b'x'", "bytes is not allowed"),
        ("1j", "complex is not allowed"),
        ("like(*txt)", "plain arguments"),
        ("max(json.tags, key=len)", "plain arguments"),
        ("int(key, 99)", r"int\(\) takes 1 argument, not 2"),
        ("has()", r"has\(\) takes 1 argument, not 0"),
        ("like(txt)", r"like\(\) takes 2 arguments, not 1"),
        ("round(1, 2, 3)", r"round\(\) takes 1 or 2 arguments, not 3"),
        ("size('txt', 'jpg')", r"size\(\) takes 0 or 1 arguments, not 2"),
        ("min()", r"min\(\) takes at least 1 argument, not 0"),
        ("[x for x in txt for y in txt]", "one 'for'"),
        ("[x for x, y in txt]", "one variable"),
        ("[key for key in txt]", "name of its own"),
        ("txt[::2]", "a step"),
        ("cls is 7", "before None alone"),
        ("9" * 90, "too large"),
        ("a." * 100 + "b", "at most 60 names"),
        ("1 +", "no expression"),
        ("x = 1", "no expression"),
        ("(" * 300, "no expression"),
        ("-" * 5000 + "1", None),
        ("a" * 20_000, "longer than"),
    ],
)
def test_what_is_refused(text, said):
    """Everything that is not on the list is refused when the expression is read, with its column."""
    if said is None:
        with pytest.raises((UsageError, SampleError)):
            value(text)
    else:
        with pytest.raises(UsageError, match=said):
            Expression(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("txt < 3", "have no order"),
        ("txt * 3", r"'\*' takes numbers"),
        ("'%s' % txt", "'%' takes numbers"),
        ("json.width / 0", "division by zero"),
        ("json.tags + json.tags", r"'\+' takes numbers"),
        ("json.tags.cat", "a list has no 'cat'"),
        ("png.depth", "no 'depth'"),
        ("3 in txt", "takes a text"),
        ("any(x for x in 3)", "gone through"),
        ("round(1, -100000000)", "at most 30 digits"),
        ("int(txt + '1')", "invalid literal"),
        ("str(json)", "takes a number"),
        ("size(3)", "is a text"),
        ("json.x.y", None),
    ],
)
def test_errors_name_the_sample(text, said):
    """An operation that makes no sense for a sample is an error with its key; a missing path is none."""
    if said is None:
        assert value(text) is None
        return
    with pytest.raises(SampleError, match=said) as caught:
        value(text)
    assert caught.value.key == "k1"


def test_json_that_is_none_is_an_error_of_the_sample():
    """A field that should be JSON and is not names itself."""
    with pytest.raises(SampleError, match="is no JSON"):
        value("json.width", {"json": b"{"})


HOSTILE = json.dumps(list(range(300_000))).encode()
NESTED = b"[" * 500 + b"]" * 500


@pytest.mark.parametrize(
    "text",
    [
        "any(any(any(a == b + c for a in json) for b in json) for c in json)",
        "any(json == field('b.json') for x in json)",
        "any(json in [field('b.json')] for x in json)",
        "any(max(json) == x for x in json)",
        "any(len([y for y in json]) == x for x in json)",
        "any('zz' in txt for x in json)",
        "any(txt.lower() == x for x in json)",
        "any(like(txt, '*a*a*a*a*b') for x in json)",
        "any(txt[1:] == x for x in json)",
        "like(txt, '" + "*a" * 500 + "*b')",
    ],
)
def test_hostile_expressions_end(text):
    """Loops in loops, long texts and deep comparisons run into the budget, after a bounded amount of work."""
    sample = {"json": HOSTILE, "b.json": HOSTILE, "txt": b"a" * 200_000}
    with pytest.raises(SampleError, match="steps"):
        value(text, sample)


@pytest.mark.parametrize("text", ["any(size() == x for x in json)", "len([fields for x in json]) == 0"])
def test_hostile_samples_end(text):
    """What looks at every field of a sample takes steps by their number."""
    sample = {"json": HOSTILE, **{f"f{number}": b"" for number in range(20_000)}}
    with pytest.raises(SampleError, match="steps"):
        value(text, sample)


def test_numbers_stay_small():
    """Products cannot grow beyond 256 bits, texts not beyond a megabyte."""
    with pytest.raises(SampleError, match="256 bits"):
        value(" * ".join(["9999999999999999999"] * 8))
    with pytest.raises(SampleError, match="characters"):
        value("(txt + txt) + (txt + txt)", {"txt": b"a" * 300_000})


def test_deep_json_is_looked_into():
    """JSON nested deeply is no danger."""
    assert value("json[0][0][0] is not None", {"json": NESTED}) is True


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_expression_or_refused(text):
    """Whatever is typed, nothing but the two typed errors comes out."""
    try:
        value(text)
    except (UsageError, SampleError):
        pass
    assert text is not None


WORDS = (
    "json|.width|txt|cls|(|)|[|]|any| for x in |x|1|'a'|+|*| and | in |like|,|size|max|==|<|-| not |len"
    "| if | else |None|[0]|.lower()"
).split("|")


@given(st.lists(st.sampled_from(WORDS), max_size=25))
@settings(max_examples=500, deadline=None)
def test_any_words_are_an_expression_or_refused(words):
    """Texts near to expressions raise nothing but the two typed errors either."""
    try:
        value("".join(words))
    except (UsageError, SampleError):
        pass
    assert words is not None
