"""info and log_keys: looking at samples as they pass."""

import io

from webdataset.stages.map import info, log_keys

SAMPLES = [{"__key__": f"k{n}", "__worker__": n, "a": "x" * 100} for n in range(5)]


def test_info_shows_fields():
    """The first n, each field cut to its width, the samples untouched."""
    stream = io.StringIO()
    assert list(info(n=1, width=5, stream=stream, name="train")(SAMPLES)) == SAMPLES
    assert stream.getvalue() == "--- train\n__key__ 'k0'\n__worker__ 0\na 'xxxx\n"


def test_info_shows_every_so_many():
    """By a format of fields."""
    stream = io.StringIO()
    list(info(fmt="{__key__}", n=1, every=2, stream=stream)(SAMPLES))
    assert stream.getvalue() == "k0\nk1\nk3\n"


def test_info_shows_tuples_and_values():
    """By position."""
    stream = io.StringIO()
    list(info(stream=stream)([(1, "a"), 7]))
    list(info(fmt="{} {}", n=1, stream=stream)([(1, "a")]))
    assert stream.getvalue() == "--- \n0 1\n1 'a'\n--- \n0 7\n1 a\n"


def test_info_goes_to_standard_error(capsys):
    """The one of the moment, not of import time."""
    list(info(n=1)([{"a": 1}]))
    assert capsys.readouterr() == ("", "--- \na 1\n")


def test_log_keys_appends_lines(tmp_path):
    """Number, worker, rank, key; what is absent is None; no file, no log."""
    log = tmp_path / "keys"
    for _ in range(2):
        assert list(log_keys(log)(SAMPLES[:2])) == SAMPLES[:2]
    assert log.read_text() == "0\t0\tNone\tk0\n1\t1\tNone\tk1\n" * 2
    assert list(log_keys()(SAMPLES)) == SAMPLES
