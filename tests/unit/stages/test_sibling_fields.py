"""Siblings as fields of the sample whose JSON names them."""

import json

import pytest

from webdataset import filters
from webdataset.core.errors import DecodingError, DuplicateField
from webdataset.stages.interleaved_documents import list_named_files


def samples(*keys, **records):
    """A sample of one image for each key; of JSON where there is a record for the key."""
    return [
        {
            "__key__": key,
            "__url__": "u",
            **({"json": json.dumps(records[key]).encode()} if key in records else {"jpg": key}),
        }
        for key in keys
    ]


def fields(found):
    """Key and fields of samples."""
    return [(s["__key__"], *(name for name in s if not name.startswith("__"))) for s in found]


@pytest.mark.parametrize(
    "record",
    [
        {"image_info": [{"image_name": "x/0.png"}, {"image_name": "1.png"}]},
        {"image_name_list": ["0.jpg", "a7-1.jpg"]},
        {"image": ["0", "1"], "input_ids": [1]},
        {"images": [None, "0", {"name": "1"}]},
        {"videos": ["0.jpg"], "image": "1"},
    ],
)
def test_what_the_json_lists_becomes_fields(record):
    """In either order; the names are those of the fork's readers; what is not listed stays by itself."""
    for order in (["a7", "a7-0", "a7-1", "a7-2"], ["a7-0", "a7-1", "a7-2", "a7"], ["a7-1", "a7", "a7-2", "a7-0"]):
        found = fields(filters.sibling_fields()(samples(*order, a7=record)))
        assert sorted(found) in (
            [("a7", "json", "0.jpg", "1.jpg"), ("a7-2", "jpg")],
            [("a7", "json", "1.jpg", "0.jpg"), ("a7-2", "jpg")],
        )


def test_unnamed_siblings_on_demand():
    """named=False takes whatever begins with the key."""
    found = filters.sibling_fields(named=False)(samples("a7-2", "a7", "a7-x-y", "a8", a7={}, a8=[]))
    assert fields(found) == [("a7", "json", "2.jpg", "x-y.jpg"), ("a8", "json")]


def test_a_sibling_comes_with_all_its_fields():
    """An image and its caption, under one name."""
    found = list(filters.sibling_fields()([
        {"__key__": "7-0", "jpg": b"i", "txt": b"t"}, {"__key__": "7", "json": b'{"image": ["0"]}'},
    ]))  # fmt: skip
    assert found == [{"__key__": "7", "json": b'{"image": ["0"]}', "0.jpg": b"i", "0.txt": b"t"}]


def test_samples_without_siblings_are_untouched():
    """The same objects, not copies."""
    given = samples("p", "q", q={"image": []})
    assert all(after is before for after, before in zip(filters.sibling_fields()(given), given, strict=True))


def test_errors_name_the_sample():
    """JSON that is none, and a name that is a field already."""
    with pytest.raises(DecodingError) as caught:
        list(filters.sibling_fields()([{"__key__": "7", "json": b"{"}]))
    assert (caught.value.key, caught.value.stage) == ("7", "sibling_fields")
    both = [{"__key__": "7", "json": b'{"image": ["0"]}', "0.jpg": b""}, {"__key__": "7-0", "jpg": b""}]
    with pytest.raises(DuplicateField, match=r"0\.jpg"):
        list(filters.sibling_fields()(both))


def test_names_in_other_json_are_none():
    """Numbers, lists and null list nothing."""
    assert [list(list_named_files(record)) for record in (3, None, [], {"image": 3}, {"images": [[]]})] == [[]] * 5
