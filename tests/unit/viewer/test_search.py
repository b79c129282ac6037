"""Search: what is found, in what order, at what cost, and how far a cursor can be trusted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.view_sides import make_samples, make_side, make_view, png_bytes, read_bytes, write_shard
from webdataset.core.errors import UsageError
from webdataset.viewer.search import Budget, SampleQuery, search_samples


def find_all(view, text="", where="", count=7, **options):
    """Search with one cursor after the other; return keys and the single results."""
    keys, results, cursor = [], [], None
    while True:
        query = SampleQuery(text, where)
        found = search_samples(view, query, cursor=cursor, count=count, **options)
        keys += [each.entry.key for each in found.samples]
        results.append(found)
        cursor = found.cursor
        if cursor is None:
            return keys, results


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(
    ("text", "where", "fits"),
    [
        ("KEY001", "", lambda n: n // 10 == 1),
        ("nummer 2", "", lambda n: n % 5 and str(n).startswith("2")),
        ("STRASSE", "", lambda n: n % 5),
        ("dog", "", lambda n: n % 3 == 0),
        ("", "json.width >= 5", lambda n: n % 7 >= 5),
        ("", 'not has("txt")', lambda n: n % 5 == 0),
        ("", 'width("png") == 12 and cls != 2', lambda n: n % 13 == 2 and n % 4 != 2),
        ("dog", "cls == 1", lambda n: n % 3 == 0 and n % 4 == 1),
        ("1", "", lambda n: "1" in str(n) or n % 4 == 1),
        ("no such thing", "", lambda n: False),
        ("", "", lambda n: True),
    ],
)
def test_finds(tmp_path, index, text, where, fits):
    """Texts of keys, captions and JSON, and expressions: each sample once, whatever the cursors cut."""
    view = make_side(tmp_path, index=index)
    keys, _ = find_all(view, text, where)
    wanted = [f"key{n:04d}" for n in range(60) if fits(n)]
    assert sorted(keys) == wanted
    if not (index and text):
        assert keys == wanted


def test_only_one_shard(tmp_path):
    """A shard can be searched alone; ordinals are those of the shard."""
    view = make_side(tmp_path)
    found = search_samples(view, SampleQuery("key002"), shard=1, count=99)
    assert [(each.shard, each.ordinal) for each in found.samples] == [(1, n) for n in range(10)]
    assert found.cursor is None


def test_keys_of_an_index_cost_no_payload(tmp_path):
    """With an index, what keys say comes first, and reads nothing of the shards."""
    view = make_side(tmp_path, index=True)
    for number in range(len(view)):
        view.shard(number).await_index()
    before = read_bytes(view)
    found = search_samples(view, SampleQuery("key0059"), count=1)
    assert [each.entry.key for each in found.samples] == ["key0059"]
    assert read_bytes(view) == before


def test_expression_reads_what_it_looks_at(tmp_path):
    """Sizes cost nothing, the size of an image its head, and no other field is read."""
    large = bytes(600_000)
    samples = [(f"k{n}", {"png": png_bytes(n + 1, 3) + large, "npy": large, "cls": b"1"}) for n in range(4)]
    view = make_view("a", [write_shard(tmp_path / "x.tar", samples, index=True)])
    view.shard(0).await_index()
    for where, most in [('size("npy") == 600000', 0), ('width("png") > 0', 40_000), ("png.width > 0", 40_000)]:
        before = read_bytes(view)
        assert len(find_all(view, where=where)[0]) == 4
        assert read_bytes(view) - before <= most


@pytest.mark.parametrize("index", [False, True])
def test_budget(tmp_path, index):
    """A request without any time looks at one sample, says where to go on, and nothing is lost."""
    view = make_side(tmp_path, shards=2, count=8, index=index)
    keys, results = find_all(view, "dog", budget=Budget(seconds=0))
    assert sorted(keys) == [f"key{n:04d}" for n in range(0, 16, 3)]
    assert len(results) >= 8
    assert {found.samples_seen for found in results} <= {0, 1}


def test_cancelled(tmp_path):
    """Where the client has gone, the search ends."""
    view = make_side(tmp_path)
    found = search_samples(view, SampleQuery("x"), budget=Budget(seconds=60, is_cancelled=lambda: True))
    assert found.samples_seen <= 1
    assert found.cursor is not None


def test_failing_samples_are_counted(tmp_path):
    """An expression that makes no sense for some samples says so, and finds the others."""
    samples = [("a", {"txt": b"x"}), ("b", {"json": b"{"}), ("c", {"json": b'{"w": 1}'}), ("d", {"json": b"[]"})]
    view = make_view("a", [write_shard(tmp_path / "x.tar", samples)])
    found = search_samples(view, SampleQuery(where="json.w == 1"))
    assert [each.entry.key for each in found.samples] == ["c"]
    assert found.failed == 2
    assert "no JSON" in found.problems[0]


def test_damage_is_told(tmp_path):
    """A damaged shard is searched up to the damage, which is told, and the next one follows."""
    make_side(tmp_path, shards=2, count=6)
    path = tmp_path / "a-0.tar"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 3000] = b"?" * 3000
    path.write_bytes(content)
    found = search_samples(make_view("a", [str(path), str(tmp_path / "a-1.tar")]), SampleQuery("key"), count=99)
    assert {each.shard for each in found.samples} == {0, 1}
    assert found.problems


@given(st.text(max_size=30) | st.from_regex(r"[kc]-[0-9٣]{1,12}-[0-9]{1,18}-[0-9a-f]{16}", fullmatch=True))
@settings(max_examples=60, deadline=None)
def test_hostile_cursors(tmp_path_factory, cursor):
    """A cursor that this search did not give is refused."""
    folder = tmp_path_factory.mktemp("shards")
    view = make_side(folder, shards=1, count=2)
    if cursor:
        with pytest.raises(UsageError, match="cursor"):
            search_samples(view, SampleQuery("x"), cursor=cursor)


def test_cursor_of_another_search(tmp_path):
    """Another text, expression, shard: another search."""
    view = make_side(tmp_path)
    cursor = search_samples(view, SampleQuery("key"), count=2).cursor
    assert cursor is not None
    for query, shard in [(SampleQuery("kez"), None), (SampleQuery("key", "cls == 1"), None), (SampleQuery("key"), 1)]:
        with pytest.raises(UsageError, match="cursor"):
            search_samples(view, query, shard=shard, cursor=cursor)
    moved = cursor.replace("-0-", "-7-", 1)
    with pytest.raises(UsageError, match="cursor"):
        search_samples(view, SampleQuery("key"), cursor=moved)


def test_long_texts(tmp_path):
    """A text is found in a field of several pieces, also across their border; deep and broken JSON as text."""
    piece = 1 << 20
    across = b"x" * (piece - 5) + "NÄDEL needle".encode() + b"y" * piece
    deep = b"[" * 100_000 + b'"Needle"'
    samples = [("a", {"txt": across}), ("b", {"json": deep}), ("c", {"json": json.dumps("n\u00e4del").encode()})]
    view = make_view("a", [write_shard(tmp_path / "x.tar", samples)])
    assert find_all(view, "nädel")[0] == ["a", "c"]
    assert find_all(view, "l needle")[0] == ["a"]
    assert find_all(view, "needle")[0] == ["a", "b"]


def test_bad_queries():
    """An expression that is none says where; a text has bounds."""
    with pytest.raises(UsageError, match="at its end"):
        SampleQuery(where="json.width >=")
    with pytest.raises(UsageError, match="at column 3"):
        SampleQuery(where="a b")
    with pytest.raises(UsageError, match="not allowed"):
        SampleQuery(where="lambda: 1")
    with pytest.raises(UsageError, match="at most"):
        SampleQuery("x" * 2000)


def test_name_of_the_shard_has_no_secret(tmp_path):
    """``shard`` in an expression is the name that people see."""
    view = make_view("a", [write_shard(tmp_path / "x.tar", make_samples(1))])
    view.shard(0).name = "https://host/x.tar?sig=***"
    assert find_all(view, where='like(shard, "*sig=[*][*][*]")')[0] == []
    assert find_all(view, where='shard.endswith("sig=***")')[0] == ["key0000"]
