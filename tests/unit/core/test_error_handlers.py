"""Counting what handlers let pass, and what functions drop."""

import threading
import warnings

import pytest

import webdataset as wds
from webdataset.core.error_handlers import (
    SkipCounts,
    count_drop,
    count_skipped,
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    should_continue,
    skip_items,
    warn_and_continue,
    warn_and_stop,
    with_location,
)


def test_what_a_handler_lets_pass_is_counted():
    """True is counted under the stage's name; false and errors are not."""
    skips = SkipCounts()
    with count_skipped(skips):
        assert should_continue(ignore_and_continue, ValueError(), "map") is True
        assert should_continue(lambda error: 1, ValueError(), "map") is True  # type: ignore[arg-type,return-value]
        assert should_continue(ignore_and_stop, ValueError(), "map") is False
        with pytest.raises(ValueError, match="this"):
            should_continue(reraise_exception, ValueError("this"), "map")
    assert should_continue(ignore_and_continue, ValueError(), "map") is True
    assert skips == {"map": 2}


def test_counts_are_of_this_thread_and_the_innermost():
    """Other threads do not count here; what counts within counts alone."""
    outer, inner = SkipCounts(), SkipCounts()
    within = count_skipped(inner)
    with count_skipped(outer):
        for _ in range(2):
            with within:
                should_continue(ignore_and_continue, ValueError(), "inner")
        should_continue(ignore_and_continue, ValueError(), "outer")
        thread = threading.Thread(target=should_continue, args=(ignore_and_continue, ValueError(), "thread"))
        thread.start()
        thread.join()
    assert (outer, inner) == ({"outer": 1}, {"inner": 2})


def test_what_is_dropped_has_a_number_of_its_own():
    """Drops are no failures; who counts failures alone is told of none."""
    skips, drops = SkipCounts(), SkipCounts()
    count_drop("map")
    with count_skipped(skips, drops):
        count_drop("map")
        with count_skipped(skips):
            count_drop("map")
        count_drop("map")
    assert (skips, drops) == ({}, {"map": 2})


def test_what_is_passed_over_was_counted_before():
    """Items that are drawn once more count nothing; the next one does."""
    skips = SkipCounts()

    def items():
        for number in range(4):
            should_continue(ignore_and_continue, ValueError(), "map")
            yield number

    with count_skipped(skips):
        again = items()
        assert skip_items(again, 2) == 2
        assert next(again) == 2
        assert skip_items(again, 5) == 1
    assert skips == {"map": 1}


def test_warnings_that_differ_do_not_add_up():
    """Python keeps the text of each warning: weeks of damaged samples would fill memory."""
    most = 0
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("default")
        for number in range(25_000):
            warn_and_continue(ValueError(f"sample {number}"))
            most = max(most, len(globals()["__warningregistry__"]))
    assert 5000 < most < 12_000


def test_a_failure_is_described_alike_each_time():
    """Where an object lies in memory is no news: Pillow names that of the stream that it could not read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        kept = [object() for _ in range(5)]
        for each in kept:
            warn_and_continue(ValueError(f"cannot identify {each!r}"))
    assert [str(each.message) for each in caught] == ["ValueError('cannot identify <object object>')"]


@pytest.mark.parametrize("handler", [warn_and_continue, warn_and_stop])
def test_warnings_say_where(handler, tmp_path):
    """Of errors of other code, too: the stage, the url and the key, and no secret of the url."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for index in range(4):
            sink.write({"__key__": f"k{index}", "cls": index})

    def refuse(sample):
        if sample["cls"] == b"2":
            raise ZeroDivisionError("none left")
        return sample

    with pytest.warns(UserWarning, match=r"^ZeroDivisionError\('none left'\) in stage='map: .*refuse.*', ") as caught:
        given = list(wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).map(refuse, handler=handler))
    assert len(given) == (3 if handler is warn_and_continue else 2)
    assert f"key='k2', url='{tmp_path}/a.tar'" in str(caught[0].message)
    error = with_location(ValueError("x"), url="s3://key:word@bucket/a.tar", key=None)
    error.add_note("something else")
    with pytest.warns(UserWarning, match="^ValueError") as caught:
        handler(error)
    assert "word" not in str(caught[0].message)
    assert str(caught[0].message).startswith("ValueError('x') in url='s3://")
    assert "something else" not in str(caught[0].message)
