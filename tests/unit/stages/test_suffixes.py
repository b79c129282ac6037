"""Fields chosen by how their names end."""

import pytest

import webdataset as wds
from webdataset import filters
from webdataset.core.errors import MissingField, UsageError
from webdataset.testing.stages import Samples

SAMPLE = {"__key__": "7", "__url__": "u", "json": {"a": 1}, "0.jpg": b"0", "x.png": b"1"}


def test_fields_by_ending_without_metadata():
    """No dot is needed before the ending; the order of fields is kept."""
    for specs in (["json;jpg;png"], ["json jpg png"], ["json", "jpg;png"], [["json", "g"]]):
        assert list(filters.to_dict(*specs)([SAMPLE])) == [{"json": {"a": 1}, "0.jpg": b"0", "x.png": b"1"}]


def test_other_fields_are_errors():
    """A ValueError that names them, with key and url; a handler may skip the sample."""
    with pytest.raises(MissingField, match=r"nothing in x\.png") as caught:
        list(filters.to_dict("json;jpg")([SAMPLE]))
    assert (caught.value.key, caught.value.url, caught.value.field) == ("7", "u", "x.png")
    assert isinstance(caught.value, ValueError)
    assert list(filters.to_dict("json;jpg", handler=wds.ignore_and_continue)([SAMPLE])) == []


@pytest.mark.parametrize("options", [{"missing_is_error": False}, {"none_is_error": False}])
def test_other_fields_may_be_none(options):
    """Where that is no error they stay, and are None."""
    assert list(filters.to_dict("json;jpg", **options)([SAMPLE])) == [{"json": {"a": 1}, "0.jpg": b"0", "x.png": None}]


def test_none_itself_is_an_error_too():
    """JSON null, for instance, unless it is allowed."""
    with pytest.raises(MissingField):
        list(filters.to_dict("json", missing_is_error=False, none_is_error=True)([{"json": None}]))
    assert list(filters.to_dict("json", none_is_error=False)([{"json": None}])) == [{"json": None}]


def test_known_under_both_names():
    """Where existing code imports it from, and as a method."""
    assert wds.interleaved_to_dict is wds.to_dict is filters.interleaved_to_dict is filters.to_dict
    assert list(wds.DataPipeline(Samples([SAMPLE]), wds.interleaved_to_dict("json;jpg;png"))) == [
        {"json": {"a": 1}, "0.jpg": b"0", "x.png": b"1"}
    ]
    with pytest.raises(UsageError):
        list(filters.to_dict(3)([SAMPLE]))  # type: ignore[arg-type]
