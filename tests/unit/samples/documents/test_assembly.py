"""Where each image of a document is looked for."""

import pytest

from webdataset.core.errors import SampleError
from webdataset.samples.documents.assembly import locate_images
from webdataset.samples.documents.document import DocumentRules
from webdataset.samples.documents.outline import parse_outline


def found(names, *fields, key="D", layout="auto", match="name", **more):
    """The places of images of these names (None: without), for a sample with these fields."""
    entries = [{"matched_text_index": 0, **({} if name is None else {"image_name": name})} for name in names]
    for entry in entries:
        entry.update(more)
    outline = parse_outline({"text_list": ["t"], "image_info": entries})
    sample = {"__key__": key, "json": b"", **dict.fromkeys(fields, b"")}
    return [
        (place.kind, *place.names)
        for place in locate_images(sample, outline, DocumentRules(layout=layout, match=match))
    ]


def test_base64_comes_first():
    """An image in the JSON needs nothing else."""
    assert found(["a.jpg"], "0.jpg", image_base64="eA==") == [("inline",)]


def test_fields_are_found_by_name_whatever_their_extension():
    """The stem decides, in either case; the whole name decides between two."""
    assert found(["b.png", "x/A.gif"], "a.jpg", "b.jpg") == [("field", "b.jpg"), ("field", "a.jpg")]
    assert found(["a.png"], "a.jpg", "a.png") == [("field", "a.png")]


def test_two_fields_of_one_name_are_an_error():
    """Neither is taken by guess."""
    with pytest.raises(SampleError, match=r"may be any of a\.jpg, a\.webp"):
        found(["a.png"], "a.jpg", "a.webp")


def test_numbered_fields_are_sorted_as_numbers():
    """10 stands behind 9; zeros before a number do not matter, nor does the number that they start from."""
    names = [f"n{k}.jpg" for k in range(11)]
    fields = [f"{k}.jpg" for k in range(11)]
    assert found(names, *sorted(fields)) == [("field", field) for field in fields]
    assert found(names[:2], "002.jpg", "001.png") == [("field", "001.png"), ("field", "002.jpg")]


def test_a_gap_in_numbers_from_zero_is_a_missing_image():
    """The others keep their numbers."""
    assert found(["x.jpg", "y.jpg", "z.jpg"], "0.jpg", "2.jpg", layout="fields") == [
        ("field", "0.jpg"), ("nowhere",), ("field", "2.jpg"),
    ]  # fmt: skip


def test_numbers_that_do_not_tell_are_an_error():
    """Counted from 1 and with one missing, any image might be the missing one."""
    with pytest.raises(SampleError, match="do not tell which is which"):
        found(["x.jpg", "y.jpg", "z.jpg"], "1.jpg", "3.jpg")
    with pytest.raises(SampleError, match="stands in two fields"):
        found(["x.jpg"], "0.jpg", "0.png")


def test_names_and_numbers_are_not_mixed():
    """Where one image is found by name, a number is no place for another."""
    assert found(["x.jpg", "y.jpg"], "x.jpg", "1.jpg", layout="fields") == [("field", "x.jpg"), ("nowhere",)]


def test_siblings_are_wanted_by_name_or_number():
    """By the stem of the name, with or without the document's key; by number where there is no name, or only a url."""
    assert found(["x/a.png", "D-b.png", None, "https://e.org/c.jpg"]) == [
        ("sibling", "a"), ("sibling", "D-b", "b"), ("sibling", "2"), ("sibling", "3"),
    ]  # fmt: skip
    assert found(["a.b.png"], member="other.jpg") == [("sibling", "other")]


def test_names_may_be_left_aside():
    """match='number': members are numbered, whatever the JSON calls the images."""
    assert found(["a.png", "b.png"], match="number") == [("sibling", "0"), ("sibling", "1")]
    assert found(["1.png", "0.png"], "0.jpg", "1.jpg", match="number") == [("field", "0.jpg"), ("field", "1.jpg")]


def test_other_layouts_want_no_siblings():
    """A forced layout looks in one place."""
    for layout in ("inline", "fields", "pages"):
        assert found(["a.png"], layout=layout) == [("nowhere",)]
    assert found(["a.png"], "a.jpg", layout="siblings") == [("sibling", "a")]


def test_pages_of_a_tiff_field():
    """All images are pages of the one TIFF field; a single image may be the one image field."""
    assert found(["a", "b"], "tiff") == [("page", "tiff"), ("page", "tiff")]
    assert found(["D.png"], "jpg") == found([None], "jpg") == [("page", "jpg")]
    assert found(["a"], "jpg") == [("sibling", "a")]
    assert found(["a", "b"], "jpg") == [("sibling", "a"), ("sibling", "b")]
