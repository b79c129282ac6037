"""rename_keys and extract_keys: fields by pattern."""

import pytest

from webdataset.core.error_handlers import ignore_and_continue
from webdataset.core.errors import DuplicateField, MissingField, UsageError
from webdataset.stages.fields import extract_keys, rename_keys

SAMPLE = {"__key__": "k", "left/A.JPG": 1, "b.txt": 2}


def test_rename_keys_matches_the_last_component_in_lower_case():
    """Folders and capitals do not matter; what no rule matches is dropped."""
    assert list(rename_keys(image="*.jpg")([SAMPLE])) == [{"image": 1}]
    assert list(rename_keys(("image", "a.*"))([SAMPLE])) == [{"image": 1}]


def test_the_last_rule_counts():
    """Later rules override earlier ones."""
    (sample,) = rename_keys(("x", "*.*"), ("y", "*.txt"))([SAMPLE])
    assert sample == {"x": 1, "y": 2}


def test_keep_unselected_keeps_the_rest():
    """The key too."""
    (sample,) = rename_keys(image="*.jpg", keep_unselected=True)([SAMPLE])
    assert sample == {"__key__": "k", "image": 1, "b.txt": 2}


def test_every_rule_must_name_a_field():
    """Unless must_match is off."""
    with pytest.raises(MissingField, match=r"'\*.png'") as caught:
        list(rename_keys(image="*.png", text="*.txt")([SAMPLE]))
    assert caught.value.key == "k"
    assert list(rename_keys(image="*.png", text="*.txt", must_match=False)([SAMPLE])) == [{"text": 2}]
    assert list(rename_keys(image="*.png", handler=ignore_and_continue)([SAMPLE])) == []


def test_two_fields_under_one_name_are_an_error():
    """Among the renamed, and between a renamed and a kept one; otherwise the first counts."""
    with pytest.raises(DuplicateField, match="'x'"):
        list(rename_keys(x="*.*")([SAMPLE]))
    with pytest.raises(DuplicateField, match=r"'b.txt'"):
        list(rename_keys(("b.txt", "*.jpg"), keep_unselected=True)([SAMPLE]))
    assert list(rename_keys(x="*.*", duplicate_is_error=False)([SAMPLE])) == [{"x": 1}]


def test_rules_are_pairs():
    """Anything else is refused."""
    with pytest.raises(UsageError, match="pair"):
        list(rename_keys("x")([SAMPLE]))  # type: ignore[arg-type]


def test_extract_keys_matches_with_and_without_a_dot():
    """Names as they are, capitals matter."""
    sample = {"__key__": "k", "jpg": 1, "cls": 2}
    for patterns in (("*.jpg", "*.cls"), (".jpg", ".cls"), ("jpg", "cls"), ("png;jpg", ["x", "cls"])):
        assert list(extract_keys(*patterns)([sample])) == [(1, 2)]
    with pytest.raises(MissingField, match=r"\*.JPG") as caught:
        list(extract_keys("*.JPG")([sample]))
    assert caught.value.stage == "extract_keys"


def test_extract_keys_wants_exactly_one():
    """None is an error unless ignored, several are unless the first will do."""
    sample = {"a.x": 1, "b.x": 2}
    with pytest.raises(DuplicateField):
        list(extract_keys("*.x")([sample]))
    assert list(extract_keys("*.x", duplicate_is_error=False)([sample])) == [(1,)]
    assert list(extract_keys("*.y", "a.x", ignore_missing=True)([sample])) == [(1,)]
    assert list(extract_keys("*.x", handler=ignore_and_continue)([sample])) == []


def test_many_names_do_not_fill_the_memory():
    """Matching is remembered for a bounded number of names."""
    samples = [{f"{n}.x": n} for n in range(9000)]
    assert list(extract_keys("*.x")(samples)) == [(n,) for n in range(9000)]
