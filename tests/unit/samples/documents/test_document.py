"""The rule of keys by which siblings become fields."""

import io

import pytest

import webdataset as wds
from webdataset.core.errors import CodecError, DecodingError, MissingExtra
from webdataset.samples.documents.document import Document, SiblingKeys
from webdataset.testing import archives

MEMBERS = [
    ("7.json", b"{}"), ("7-0.jpg", b"0"), ("7-1.seg.png", b"1"), ("7-README", b""), ("70.jpg", b"2"),
    ("8.JSON", b"{}"), ("8-.jpg", b"3"), ("8-0.jpg", b"4"),
]  # fmt: skip


def read(path, **options):
    """Key and fields of samples."""
    samples = wds.WebDataset(str(path), shardshuffle=False, **options)
    return [(s["__key__"], *(name for name in s if not name.startswith("__"))) for s in samples]


def test_siblings_become_fields(tmp_path):
    """Behind a JSON of any case; names without extension, and keys that only begin alike, are no siblings."""
    shard = tmp_path / "a.tar"
    shard.write_bytes(archives.by_hand(MEMBERS))
    assert read(shard, keys=wds.sibling_keys) == [
        ("7", "json", "0.jpg", "1.seg.png"), ("70", "jpg"), ("8", "json"), ("8-", "jpg"), ("8", "0.jpg"),
    ]  # fmt: skip


def test_a_document_does_not_outlive_its_shard(tmp_path):
    """An image at the start of the next shard is nobody's; each reader has a rule of its own."""
    for number, members in enumerate((MEMBERS[:1], MEMBERS[1:2])):
        (tmp_path / f"{number}.tar").write_bytes(archives.by_hand(members))
    assert read(tmp_path / "{0,1}.tar", keys=wds.sibling_keys) == [("7", "json"), ("7-0", "jpg")]
    shards = [{"url": "u", "stream": io.BytesIO(archives.by_hand(members))} for members in (MEMBERS[:1], MEMBERS[1:2])]
    found = wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander(shards), keys=wds.sibling_keys)
    assert [sample["__key__"] for sample in found] == ["7", "7-0"]


def test_reading_resumes_within_such_a_shard(tmp_path):
    """A snapshot after any sample continues with the same fields."""
    shard = tmp_path / "a.tar"
    shard.write_bytes(
        archives.by_hand([(f"{n}{end}", b"{}") for n in range(5) for end in (".json", "-0.jpg", "-1.jpg")])
    )
    from webdataset.testing.stages import check_resume

    check_resume(lambda: wds.WebDataset(str(shard), shardshuffle=False, keys=wds.sibling_keys).pipeline)


def test_the_separator_may_be_another():
    """And the rule says what it is."""
    rule = SiblingKeys("_")
    assert [rule("a.json"), rule("a_1.jpg"), rule("a-1.jpg")] == [("a", "json"), ("a", "1.jpg"), ("a-1", "jpg")]
    assert (repr(rule), repr(wds.sibling_keys)) == ("SiblingKeys('_')", "sibling_keys")
    rule.restart()
    assert rule("a_1.jpg") == ("a_1", "jpg")


@pytest.mark.parametrize("name", ["noextension", ".hidden"])
def test_names_of_no_sample(name):
    """As without this rule."""
    assert SiblingKeys()(name) == (None, None)


class Failing:
    """A decoder that raises for every image."""

    def __init__(self, error):
        self.only = {"images"}
        self.error = error

    def decode(self, sample):
        """Leave fields as they are."""
        return sample

    def decode1(self, key, data):
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    "error", [CodecError("no picture"), MissingExtra("install it"), ArithmeticError("of a handler")]
)
def test_an_image_that_does_not_decode_is_named(error):
    """With url, key and its own name, whatever the decoder raises; never an image that is nothing."""
    image = {"type": "image", "image": b"x", "index": 0, "name": "a-0.jpg", "field": "jpg"}
    document = Document({"__key__": "a", "__url__": "u.tar", "parts": [image], "images": [b"x"], "text_list": []})
    kind = DecodingError if isinstance(error, ArithmeticError) else type(error)
    with pytest.raises(kind) as caught:
        document.decode_with(Failing(error))
    assert (caught.value.url, caught.value.key, caught.value.field) == ("u.tar", "a", "a-0.jpg")
    assert caught.value is error or caught.value.__cause__ is error
