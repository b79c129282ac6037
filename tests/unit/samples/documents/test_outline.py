"""What the JSON of a document says, in its three forms, and what it may not say."""

import pytest

from webdataset.core.errors import SampleError
from webdataset.samples.documents.outline import parse_outline

ENTRY = {"image_name": "a.png", "matched_text_index": 1, "matched_sim": 0.25, "raw_url": "u", "face_detections": None}
MMC4 = {"url": "u", "text_list": ["x", "y"], "image_info": [ENTRY], "similarity_matrix": [[1, 2]]}


def slots(outline):
    """Name, number of texts before it, and matched text of each slot."""
    return [(slot.name, slot.position, slot.text) for slot in outline.slots]


def test_mmc4_gives_slots_texts_and_the_rest():
    """Names, places and similarities are taken, and everything else is kept, per image and per document."""
    outline = parse_outline(MMC4)
    assert (outline.texts, slots(outline)) == (["x", "y"], [("a.png", 1, 1)])
    assert outline.slots[0].similarity == 0.25
    assert outline.slots[0].rest == {"raw_url": "u", "face_detections": None}
    assert outline.rest == {"url": "u"}
    assert outline.matrix == [[1, 2]]


def test_an_image_may_stand_behind_its_text():
    """place='after' puts one text more before it."""
    assert slots(parse_outline(MMC4, "after")) == [("a.png", 2, 1)]


def test_parallel_lists_give_the_order():
    """OBELICS: null stands where the other modality is; an image's text is the next one, or the last."""
    outline = parse_outline(
        {"texts": [None, "x", None, "y", None], "images": ["a", None, "b", None, {"image_name": "c"}]}
    )
    assert outline.texts == ["x", "y"]
    assert outline.ordered
    assert slots(outline) == [("a", 0, 0), ("b", 1, 1), ("c", 2, 1)]


def test_places_where_both_lists_are_null_are_nothing():
    """Both null: neither a text nor an image; an empty text is one."""
    outline = parse_outline({"texts": [None, ""], "images": [None, None]})
    assert (outline.texts, outline.slots) == ([""], [])


def test_image_metadata_belongs_to_the_images_where_it_is_as_long():
    """MINT-1T's metadata goes to the images; a list of another length stays where it is."""
    record = {"texts": [None, "x"], "images": ["a", None]}
    assert parse_outline({**record, "image_metadata": [{"page": 3}]}).slots[0].rest == {"page": 3}
    assert parse_outline({**record, "image_metadata": [{}, {}]}).rest == {"image_metadata": [{}, {}]}


@pytest.mark.parametrize("matched", ["matched_text_index", "matched_text_indices"])
@pytest.mark.parametrize("texts", ["text_list", "texts"])
def test_columns_give_slots_without_names(matched, texts):
    """Energon's form: one index for each image."""
    outline = parse_outline({texts: ["x", "y"], matched: [1, 0], "matched_sim": [0.5, None], "more": 1})
    assert slots(outline) == [(None, 1, 1), (None, 0, 0)]
    assert outline.rest == {"more": 1}
    assert [slot.similarity for slot in outline.slots] == [0.5, None]


def test_a_matrix_of_another_size_stays_in_the_rest():
    """Rows that do not stand for the images are not taken for theirs."""
    outline = parse_outline({**MMC4, "similarity_matrix": [[1], [2]]})
    assert outline.matrix is None
    assert outline.rest["similarity_matrix"] == [[1], [2]]


@pytest.mark.parametrize("record", [None, [], "x", 3, {}, {"text_list": ["a"]}, {"image_info": []}, {"images": []}])
def test_other_json_is_no_document(record):
    """JSON without the lists of a document is none, and no error."""
    assert parse_outline(record) is None


def with_entry(**changes):
    """MMC4 with its image changed."""
    return {**MMC4, "image_info": [{**ENTRY, **changes}]}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (with_entry(matched_text_index=2), "image_info[0].matched_text_index"),
        (with_entry(matched_text_index=-1), "image_info[0].matched_text_index"),
        (with_entry(matched_text_index=True), "image_info[0].matched_text_index"),
        (with_entry(matched_text_index=0.5), "image_info[0].matched_text_index"),
        (with_entry(matched_sim="high"), "image_info[0].matched_sim"),
        (with_entry(image_name=3), "image_info[0].image_name"),
        (with_entry(image_base64=3), "image_info[0].image_base64"),
        ({**MMC4, "image_info": [{"image_name": "a"}]}, "image_info[0].matched_text_index"),
        ({**MMC4, "image_info": [None]}, "image_info[0]"),
        ({**MMC4, "image_info": {}}, "image_info"),
        ({**MMC4, "text_list": ["a", None]}, "text_list[1]"),
        ({**MMC4, "text_list": "ab"}, "text_list"),
        ({"texts": ["a"], "images": ["b"]}, "images[0]"),
        ({"texts": ["a"], "images": []}, "images"),
        ({"texts": [3], "images": [None]}, "texts[0]"),
        ({"texts": [None], "images": [3]}, "images[0]"),
        ({"texts": ["a"], "matched_text_index": [1]}, "matched_text_index[0]"),
        ({"texts": ["a"], "matched_text_index": [0], "matched_sim": []}, "matched_sim"),
    ],
)
def test_contradictions_are_errors_that_name_the_place(record, field):
    """An index out of range, lists that do not fit, values of another kind: never a guess."""
    with pytest.raises(SampleError) as caught:
        parse_outline(record)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("texts", "words"), [(["a"], "there is 1 text"), (["a", "b"], "there are 2 texts"), ([], "there are 0 texts")]
)
def test_counts_of_texts_are_said_in_their_number(texts, words):
    """One text, and several."""
    record = {"text_list": texts, "image_info": [{"image_name": "a.jpg", "matched_text_index": 9}]}
    with pytest.raises(SampleError, match=f"and {words} "):
        parse_outline(record)
