"""Where samples came from, and which of their fields stay."""

import pytest

from webdataset.core.errors import MissingField
from webdataset.stages.map import add_label, keep_fields, keep_first
from webdataset.testing.stages import check_stage

SAMPLES = [{"__key__": str(n), "jpg": n, "seg.png": -n, "cls": 1} for n in range(12)]


def test_labelled():
    """A name and tags of its own for each sample."""
    one, two = add_label("x", {"a": 1})([dict(SAMPLES[0]), dict(SAMPLES[1])])
    assert (one["__source__"], one["__tags__"]) == ("x", {"a": 1})
    assert one["__tags__"] is not two["__tags__"]
    assert "__tags__" not in next(add_label("x")([{}]))


def test_kept():
    """Named fields and metadata stay; what a sample lacks is no error."""
    assert list(keep_fields("jpg", "txt")(SAMPLES[:1])) == [{"__key__": "0", "jpg": 0}]


def test_first_of():
    """The first that is there, under its last component; none is an error that names the sample."""
    assert list(keep_first("nrm.jpg", "seg.png", "jpg")(SAMPLES[:1])) == [{"__key__": "0", "png": 0}]
    with pytest.raises(MissingField, match="did you mean 'jpg'"):
        list(keep_first("jpeg")(SAMPLES))


@pytest.mark.parametrize("stage", [add_label("x", {"a": 1}), keep_fields("jpg"), keep_first("png", "jpg")], ids=repr)
def test_contract(stage):
    """They keep the contract of stages."""
    check_stage(stage, SAMPLES)
