"""Fields that do not decode: what a finding says about their content."""

import io

import pytest

from webdataset.inspection.field_checks import check_field, find_field_check

Image = pytest.importorskip("PIL.Image")


def encode(kind):
    """A small image."""
    content = io.BytesIO()
    Image.new("RGB", (40, 30), (9, 99, 199)).save(content, kind)
    return content.getvalue()


def message(field, data):
    """What is wrong with a field."""
    check = find_field_check(field)
    assert check is not None
    fault = check_field(check, data)
    return None if fault is None else f"{fault.code}: {fault.message}"


@pytest.mark.parametrize(("field", "kind"), [("jpg", "jpeg"), ("seg.png", "png")])
def test_a_cut_image_does_not_decode(field, kind):
    """Its start is right, so that the finding says what the decoder says."""
    whole = encode(kind)
    assert message(field, whole) is None
    said = message(field, whole[: len(whole) // 3])
    assert said is not None
    assert said.startswith("bad-image: it does not decode: ")
    assert "its content" not in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<!DOCTYPE html><html>Sign in</html>", "bad-image: its content is an HTML page, and its extension is 'jpg'"),
        (b"PK\x03\x04" + bytes(100), "bad-image: its content is a zip archive, and its extension is 'jpg'"),
        (b'{"error": 404}', "bad-image: its content is JSON, and its extension is 'jpg'"),
        (b"", "bad-image: the jpg field has no bytes"),
    ],
)
def test_other_content_is_named(data, said):
    """Without the advice that is about shards."""
    assert message("jpg", data) == said
