"""Statistics: exact where indexes tell, sampled where not, and bars that are filters."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.media_fields import encode_wav
from support.view_sides import make_side, make_view, png_bytes, read_bytes, write_shard
from webdataset.core.errors import SampleError, UsageError
from webdataset.inspection.expression import Expression
from webdataset.viewer.search import Budget, EntryFields
from webdataset.viewer.statistics import collect_statistics, make_histogram, spread_positions


def list_bars(found):
    """Return the expression and the count of each bar and value."""
    histograms = [each["size"] for each in found["fields"]]
    histograms += [each[side] for each in found["images"] for side in ("width", "height")]
    histograms += [each["histogram"] for each in (*found["labels"], *found["durations"])]
    for histogram in histograms:
        if histogram is not None:
            assert len(histogram["edges"]) == len(histogram["counts"]) + 1 == len(histogram["where"]) + 1
            yield from zip(histogram["where"], histogram["counts"], strict=True)
    for label in found["labels"]:
        yield from ((each["where"], each["count"]) for each in label["values"])
    for each in found["fields"]:
        yield each["where"], each["count"]
        yield each["where_missing"], each["missing"]


def count_where(view, where):
    """Count the samples for which an expression holds; where it fails, it does not."""
    parsed, found = Expression(where), 0
    for number in range(len(view)):
        shard = view.shard(number)
        for _, entry in shard.samples():
            try:
                found += parsed.holds(EntryFields(shard, entry), key=entry.key)
            except SampleError:
                continue
    return found


@pytest.mark.parametrize("index", [False, True])
def test_bars_select_what_they_count(tmp_path, index):
    """Each bar and each value counts the samples for which its expression holds."""
    view = make_side(tmp_path, index=index)
    found = collect_statistics(view, budget=Budget(seconds=60))
    bars = list(list_bars(found))
    assert len(bars) > 60
    for where, count in bars:
        assert count_where(view, where) == count, where
    assert {label["field"] for label in found["labels"]} >= {"cls", "json.width", "json.tag", "json.deep.x"}


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
    | st.sampled_from(["'", '"', "\\", "\n", "\ud800", "a' or 1 or '", "1", 1e308, -0.0, 5e-324])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(["a", "a.b", '"', "]"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "json": VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=9),
                "cls": st.binary(max_size=12) | st.integers().map(lambda n: str(n).encode()),
                "png": st.binary(max_size=40) | st.builds(png_bytes, st.integers(1, 90), st.integers(1, 90)),
                "a.json": VALUES.map(lambda value: json.dumps(value).encode()),
            },
        ).filter(bool),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_bars_of_hostile_values(tmp_path_factory, fields):
    """The same with JSON of any kind, fields that are broken, and numbers and texts that are hard to write."""
    folder = tmp_path_factory.mktemp("shards")
    view = make_view("a", [write_shard(folder / "x.tar", [(f"k{number}", each) for number, each in enumerate(fields)])])
    found = collect_statistics(view, budget=Budget(seconds=60))
    json.dumps(found, allow_nan=False)
    for where, count in list_bars(found):
        assert count_where(view, where) == count, where


@example([1.920984361309525e124, 1.0685830212377442e-184])
@example([-1.7e308, 1.7e308])
@given(st.lists(st.integers(-(2**62), 2**62) | st.integers(-9, 9), min_size=1) | st.lists(st.floats(), min_size=1))
def test_histograms_hold_every_number(values):
    """Edges rise, and every finite number stands in one bar: in the one that its expression says."""
    finite = [value for value in values if math.isfinite(value)]
    found = make_histogram(np.array(values), "x")
    if not finite:
        assert found is None
        return
    assert found is not None
    assert sum(found["counts"]) == len(finite)
    assert found["edges"] == sorted(found["edges"])
    for where, count in zip(found["where"], found["counts"], strict=True):
        assert sum(eval(where, {"x": value}) for value in finite) == count


@given(st.integers(1, 3000), st.data())
def test_positions_are_spread(total, data):
    """Positions are different numbers below the total, as many as were wanted."""
    wanted = data.draw(st.integers(1, total))
    found = list(spread_positions(total, wanted))
    assert len(set(found)) == len(found) == wanted
    assert set(found) <= set(range(total))


def test_durations(tmp_path):
    """Sound is counted by its duration; a bar selects what it counts; what tells none is left out."""
    samples = [(f"k{number}", {"wav": encode_wav(np.zeros((800 * number, 1), np.int16))}) for number in range(1, 9)]
    view = make_view("a", [write_shard(tmp_path / "x.tar", [*samples, ("k9", {"wav": b"RIFF"}), ("q", {"mp4": b""})])])
    found = collect_statistics(view, budget=Budget(seconds=60))
    (durations,) = found["durations"]
    assert durations["field"] == "wav"
    assert sum(durations["histogram"]["counts"]) == 8
    assert (durations["histogram"]["edges"][0], durations["histogram"]["edges"][-1]) == (0.1, 0.8)
    for where, count in list_bars(found):
        assert count_where(view, where) == count, where
    assert {each["name"]: each["kind"] for each in found["fields"]} == {"wav": "audio", "mp4": "video"}


def test_says_what_it_rests_on(tmp_path):
    """Without indexes the first samples; with them all counts and sizes, and contents spread over all shards."""
    (tmp_path / "plain").mkdir()
    plain = collect_statistics(make_side(tmp_path / "plain"), samples=25, budget=Budget(seconds=60))
    assert plain["exact"] is False
    assert plain["basis"] == "first 25 samples of 2 shards"
    assert plain["total"] is None
    assert plain["samples"] == 25
    view = make_side(tmp_path, index=True)
    found = collect_statistics(view, samples=10, budget=Budget(seconds=60))
    assert found["exact"] is True
    assert (found["basis"], found["samples"], found["total"]) == ("index of 3 shards", 60, 60)
    assert found["contents"] == {"samples": 10, "seen": 10, "basis": "10 samples spread over 3 shards"}
    texts = next(each for each in found["fields"] if each["name"] == "txt")
    assert (texts["count"], texts["missing"]) == (48, 12)
    assert [each["samples"] for each in found["shards"]] == [20, 20, 20]


def test_filter(tmp_path):
    """With an expression, only the samples for which it holds count, and the answer says that these are not all."""
    view = make_side(tmp_path, index=True)
    found = collect_statistics(view, where='json.tag == "dog"', budget=Budget(seconds=60))
    assert found["samples"] == 20
    assert found["exact"] is True
    part = collect_statistics(view, where='json.tag == "dog"', samples=30, budget=Budget(seconds=60))
    assert part["exact"] is False
    assert "fit the filter" in part["basis"]
    with pytest.raises(UsageError):
        collect_statistics(view, where="import os")


def test_counts_read_no_payload(tmp_path):
    """One sample's contents, and the indexes of all: the payloads of the others stay where they are."""
    samples = [(f"k{n}", {"npy": bytes(500_000), "png": png_bytes(3, 3) + bytes(500_000)}) for n in range(6)]
    view = make_view("a", [write_shard(tmp_path / "x.tar", samples, index=True)])
    found = collect_statistics(view, samples=6, budget=Budget(seconds=60))
    assert found["exact"] is True
    assert found["images"][0]["points"] == [[3, 3, 6]]
    assert read_bytes(view) < 100_000


def test_no_time(tmp_path):
    """Without time it looks at one sample, and still counts by the indexes."""
    found = collect_statistics(make_side(tmp_path, index=True), budget=Budget(seconds=0))
    assert found["contents"]["seen"] <= 1


def test_counts_every_field_and_place_that_it_does_not_show(tmp_path):
    """Of hundreds of fields 200 are listed, of places in JSON those of several samples; the others are counted."""
    fields = {f"f{number:03d}.txt": b"x" * 100 for number in range(230)}
    samples = []
    for number in range(2):
        value = {"tag": "a", **{f"own{number}-{each}": each for each in range(70)}}
        samples.append((f"s{number}", {**fields, "json": json.dumps(value).encode()}))
    found = collect_statistics(make_view("a", [write_shard(tmp_path / "a.tar", samples)]))
    assert len(found["fields"]) == 200
    assert found["other_fields"] == 31
    assert found["size_bytes"] == sum(len(payload) for _, each in samples for payload in each.values())
    assert {(field["least"], field["most"]) for field in found["fields"]} == {(100, 100)}
    # the JSON is the last of 231 fields: read, and beyond the list
    assert [label["field"] for label in found["labels"]] == ["json.tag"]
    assert found["other_labels"] == 140


def test_one_sample_is_told_whole(tmp_path):
    """Where there is one sample, its values are no noise."""
    samples = [("only", {"json": json.dumps({"tag": "a", "width": 3}).encode()})]
    found = collect_statistics(make_view("a", [write_shard(tmp_path / "a.tar", samples)]))
    assert [label["field"] for label in found["labels"]] == ["json.tag", "json.width"]
    assert found["other_labels"] == 0
