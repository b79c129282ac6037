"""Documents written, as shards and as errors."""

import json

import pytest

import webdataset as wds
from webdataset.core.errors import EncodingError, SampleError, UsageError
from webdataset.testing import archives


def text(words):
    """A text part."""
    return {"type": "text", "text": words}


def image(content, name=None):
    """An image part."""
    return {"type": "image", "image": content, **({} if name is None else {"name": name})}


def document(*parts, **more):
    """A document of these parts."""
    return {"__key__": "7", "parts": list(parts), **more}


def written(path, one, *layout, **options):
    """The members of a shard with one document."""
    with wds.DocumentWriter(str(path), *layout, **options) as sink:
        sink.write(one)
    return [(name, json.loads(data) if name.endswith("json") else data) for name, data in members(path)]


def members(path):
    """Names and payloads."""
    return archives.members_by_tarfile(path.read_bytes())


JPG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"
ONE = document(image(JPG, "a/x.jpg"), text("t"), image(PNG, "y.png"), text("u"), json={"url": "u"})
ENTRIES = [{"image_name": "a/x.jpg", "matched_text_index": 0}, {"image_name": "y.png", "matched_text_index": 1}]


def test_siblings_are_members_behind_the_json(tmp_path):
    """The JSON first, as readers of this layout need it; images under the names that the JSON has."""
    record = {"url": "u", "text_list": ["t", "u"], "image_info": ENTRIES}
    assert written(tmp_path / "a.tar", ONE) == [("7.json", record), ("7-x.jpg", JPG), ("7-y.png", PNG)]


def test_fields_are_members_of_one_key(tmp_path):
    """One sample for any reader of WebDataset."""
    assert [name for name, _ in written(tmp_path / "a.tar", ONE, "fields")] == ["7.json", "7.x.jpg", "7.y.png"]


def test_inline_images_are_base64(tmp_path):
    """As OpenFlamingo's shards have them."""
    ((_, record),) = written(tmp_path / "a.tar", ONE, "inline")
    assert [entry["image_base64"] for entry in record["image_info"]] == ["/9j/IGpwZWc=", "iVBORw0KGgogcG5n"]


def test_an_order_that_mmc4_cannot_say_is_written_in_parallel_lists(tmp_path):
    """An image after the last text; or form='parallel'; form='matched' refuses it."""
    last = document(text("t"), image(JPG, "x.jpg"))
    (_, record), _ = written(tmp_path / "a.tar", last)
    assert record == {"texts": ["t", None], "images": [None, {"image_name": "x.jpg"}]}
    (_, record), *_ = written(tmp_path / "b.tar", ONE, form="parallel")
    assert record["texts"] == [None, "t", None, "u"]
    assert record["images"][2] == {"image_name": "y.png"}
    with (
        pytest.raises(SampleError, match="form='parallel'"),
        wds.DocumentWriter(str(tmp_path / "c.tar"), form="matched") as sink,
    ):
        sink.write(last)


def test_names_that_make_no_members_are_kept_in_the_json(tmp_path):
    """The members are numbered instead, and the JSON says which is whose; images without a name get one."""
    odd = document(image(JPG, "a.b.jpg"), image(PNG), image(JPG, "é.jpg"), text("t"))
    for layout, start in (("siblings", "7-"), ("fields", "7.")):
        *images, (_, record) = sorted(written(tmp_path / f"{layout}.tar", odd, layout), key=_json_last)
        assert [name for name, _ in images] == [f"{start}0.jpg", f"{start}1.png", f"{start}2.jpg"]
        assert [(entry["image_name"], entry.get("member")) for entry in record["image_info"]] == [
            ("a.b.jpg", "0.jpg"), ("1.png", None), ("é.jpg", "2.jpg"),
        ]  # fmt: skip
        found = next(iter(wds.WebDataset(str(tmp_path / f"{layout}.tar")).interleaved()))
        assert found["images"] == [JPG, PNG, JPG]
        assert found["parts"][0]["name"] == "a.b.jpg"


def _json_last(member):
    """Sort by name, the JSON behind all."""
    return (member[0].endswith("json"), member[0])


def test_an_image_in_several_places_is_stored_once(tmp_path):
    """Under one name with the same bytes; with other bytes each has its own member."""
    twice = document(image(JPG, "x.jpg"), text("t"), image(JPG, "x.jpg"), text("u"))
    assert [name for name, _ in written(tmp_path / "a.tar", twice)] == ["7.json", "7-x.jpg"]
    other = document(image(JPG, "x.jpg"), text("t"), image(JPG + b"2", "X.jpg"), text("u"))
    assert [name for name, _ in written(tmp_path / "b.tar", other)] == ["7.json", "7-0.jpg", "7-1.jpg"]


def test_columns_are_understood(tmp_path):
    """images, text_list, matched_text_index and the optional columns, without parts."""
    columns = {
        "__key__": "7", "images": [JPG, PNG], "text_list": ["t", "u"], "matched_text_index": [0, 1],
        "matched_sim": [0.5, None], "image_info": [{"raw_url": "r"}, {}], "similarity_matrix": [[1, 2], [3, 4]],
    }  # fmt: skip
    (_, record), *_ = written(tmp_path / "a.tar", columns)
    assert record["similarity_matrix"] == [[1, 2], [3, 4]]
    assert record["image_info"] == [
        {"image_name": "0.jpg", "matched_text_index": 0, "matched_sim": 0.5, "raw_url": "r"},
        {"image_name": "1.png", "matched_text_index": 1},
    ]


def test_pictures_and_arrays_are_encoded(tmp_path):
    """In the format that was asked for, like any image field."""
    pillow = pytest.importorskip("PIL.Image")
    import numpy as np

    array = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    one = document(image(array), image(pillow.fromarray(array)), text("t"))
    found = written(tmp_path / "a.tar", one, image_format="png")
    assert [name for name, _ in found] == ["7.json", "7-0.png", "7-1.png"]
    assert found[1][1] == found[2][1]
    decoded = next(iter(wds.WebDataset(str(tmp_path / "a.tar")).decode("rgb8").interleaved()))
    assert all((picture == array).all() for picture in decoded["images"])


def test_pages_hold_the_pixels(tmp_path):
    """JSON as MINT-1T has it, one TIFF file, and the same pixels back; what is no image is an error."""
    pillow = pytest.importorskip("PIL.Image")
    import numpy as np

    arrays = [np.full((4 + n, 6, 3), 40 * n, np.uint8) for n in range(3)]
    one = document(text("t"), *(image(pillow.fromarray(array), f"p{n}.png") for n, array in enumerate(arrays)))
    (_, record), (name, _) = written(tmp_path / "a.tar", one, "pages", image_format="png")
    assert name == "7.tiff"
    assert record["texts"] == ["t", None, None, None]
    found = next(iter(wds.WebDataset(str(tmp_path / "a.tar")).interleaved().decode("rgb8")))
    assert [part.get("name") for part in found["parts"]] == [None, "p0.png", "p1.png", "p2.png"]
    assert all((picture == array).all() for picture, array in zip(found["images"], arrays, strict=True))
    assert [name for name, _ in written(tmp_path / "b.tar", document(text("t")), "pages")] == ["7.json"]
    with (
        pytest.raises(EncodingError, match="become a page"),
        wds.DocumentWriter(str(tmp_path / "c.tar"), "pages") as sink,
    ):
        sink.write(ONE)


def test_a_document_never_lies_in_two_shards(tmp_path):
    """The bound maxcount is in documents, maxsize in the payload of all their members."""
    names = []
    with wds.DocumentWriter(str(tmp_path / "%d.tar"), maxcount=2, post=names.append) as sink:
        sizes = [sink.write({**ONE, "__key__": f"{number}"}) for number in range(5)]
    assert [len(members(tmp_path / f"{number}.tar")) for number in range(3)] == [6, 6, 3]
    assert len(set(sizes)) == 1
    assert len(names) == 3
    with wds.DocumentWriter(str(tmp_path / "s%d.tar"), maxsize=sizes[0] + 1) as sink:
        for number in range(4):
            sink.write({**ONE, "__key__": f"{number}"})
    assert len(list(tmp_path.glob("s*.tar"))) == 2


def test_an_open_writer_is_a_target(tmp_path):
    """A TarWriter or ShardWriter with options of its own, which is closed with this one."""
    tar = wds.TarWriter(str(tmp_path / "a.tar"), user="me")
    with wds.DocumentWriter(tar) as sink:
        sink.write(ONE)
    assert tar.closed
    assert len(members(tmp_path / "a.tar")) == 3
    with pytest.raises(UsageError, match="maxcount"):
        wds.DocumentWriter(wds.ShardWriter(str(tmp_path / "%d.tar")), maxcount=2)


def test_nothing_appears_after_an_exception(tmp_path):
    """As with any writer."""
    with pytest.raises(SampleError), wds.DocumentWriter(str(tmp_path / "a.tar")) as sink:
        sink.write(ONE) and sink.write({})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "error", "message"),
    [
        (document(image(None), text("t")), EncodingError, "is None"),
        (document(image(b""), text("t")), EncodingError, "is empty"),
        (document(image(object()), text("t")), EncodingError, "image"),
        (document({"type": "video"}), SampleError, "a part is"),
        (document("text"), SampleError, "a part is"),
        (document(image(JPG) | {"index": 3}, text("t")), SampleError, "index 3"),
        (document(text("t"), text_list=[]), SampleError, "text_list"),
        (document(image(JPG), text("t"), matched_text_index=[5]), SampleError, "do not agree"),
        (document(image(JPG), text("t"), matched_sim=[]), SampleError, "matched_sim"),
        (document(image(JPG), text("t"), image_info=[{"image_name": "x"}]), SampleError, "image_info"),
        (document(image(JPG), text("t"), similarity_matrix=[]), SampleError, "similarity_matrix"),
        (document(text("t"), json={"text_list": []}), SampleError, "json may not hold text_list"),
        (document(text("t"), json={"x": {1, 2}}), EncodingError, "JSON"),
        ({"__key__": "7", "images": []}, SampleError, "has no 'text_list'"),
        ({"__key__": "7", "images": [JPG], "text_list": ["t"], "matched_text_index": []}, SampleError, "1 images"),
        (
            {"__key__": "7", "images": [JPG] * 2, "text_list": ["t"] * 2, "matched_text_index": [1, 0]},
            SampleError, "does not ascend",
        ),
        ({"parts": []}, SampleError, "__key__"),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_written(tmp_path, one, error, message):
    """Nothing of them is written, the error names the key, and the writer goes on."""
    path = tmp_path / "a.tar"
    with wds.DocumentWriter(str(path), check_keys="ignore") as sink:
        sink.write({**ONE, "__key__": "1"})
        with pytest.raises(error, match=message) as caught:
            sink.write(one)
        assert caught.value.key == one.get("__key__")
        sink.write({**ONE, "__key__": "2"})
    assert [name for name, _ in members(path)] == [f"{n}{end}" for n in (1, 2) for end in (".json", "-x.jpg", "-y.png")]


@pytest.mark.parametrize("options", [{"layout": "zip"}, {"form": "x"}, {"place": "over"}, {"image_format": "npy"}])
def test_arguments_that_mean_nothing(tmp_path, options):
    """Refused before a file is opened."""
    with pytest.raises(UsageError, match=next(iter(options))):
        wds.DocumentWriter(str(tmp_path / "a.tar"), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_field_in_the_place_of_an_image_is_refused(tmp_path):
    """A further field with the name of an image's member would hide one of the two."""
    sink = wds.DocumentWriter(str(tmp_path / "a.tar"), "fields")
    with pytest.raises(SampleError, match=r"has a field 'x\.jpg' already"):
        sink.write(document(image(JPG, "x.jpg"), text("t"), **{"x.jpg": b""}))
    sink.abort()


def test_images_behind_their_texts_round_trip(tmp_path):
    """place='after' on both sides."""
    one = document(text("t"), image(JPG, "x.jpg"), text("u"), matched_text_index=[0])
    written(tmp_path / "a.tar", one, place="after")
    found = next(iter(wds.WebDataset(str(tmp_path / "a.tar")).interleaved(place="after")))
    assert [part["type"] for part in found["parts"]] == ["text", "image", "text"]
    assert found["matched_text_index"] == [0]


def test_a_document_is_written_whole_or_not_at_all(tmp_path):
    """A name that the format cannot hold is refused before the JSON is written; so with a series of shards."""
    import tarfile

    long = {**document(image(JPG, "x" * 60 + ".jpg"), text("t")), "__key__": "k" * 60}
    for number, name in enumerate(("a.tar", "b%d.tar")):
        with wds.DocumentWriter(str(tmp_path / name), format=tarfile.USTAR_FORMAT) as sink:
            with pytest.raises(SampleError, match="ustar"):
                sink.write(long)
            sink.write(ONE)
        assert len(members(tmp_path / ("a.tar", "b0.tar")[number])) == 3


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (document(text(None)), "text 0 is of type NoneType"),
        ({"__key__": "7", "parts": 3}, "parts is of type int"),
        ({"__key__": "7", "images": [JPG], "text_list": ["t"], "matched_text_index": [None]}, "whole numbers"),
        ({"__key__": "7", "images": [JPG], "text_list": ["t"], "matched_text_index": ["0"]}, "whole numbers"),
        ({"__key__": "7", "images": [JPG], "text_list": ["t"], "matched_text_index": [1]}, "from 0 to 0"),
        (document(text("t"), json=[1]), "json is of type list"),
        ({**ONE, "__key__": "a.b"}, "a dot in the last part"),
        (document(image(JPG, "0.jpg"), text("t"), **{"0.jpg": PNG}), r"field '0\.jpg' would be read back"),
        ([ONE], "a document is a dict, not list"),
    ],
)
def test_documents_that_would_not_read_back_are_refused(tmp_path, one, message):
    """A typed error, and nothing is written."""
    with wds.DocumentWriter(str(tmp_path / "a.tar")) as sink:
        with pytest.raises(SampleError, match=message):
            sink.write(one)
        sink.write(ONE)
    assert len(members(tmp_path / "a.tar")) == 3


def test_indices_may_be_numbers_of_numpy(tmp_path):
    """An array of whole numbers."""
    import numpy as np

    columns = {"__key__": "7", "images": [JPG], "text_list": ["t", "u"], "matched_text_index": np.array([1])}
    (_, record), *_ = written(tmp_path / "a.tar", columns)
    assert record["image_info"] == [{"image_name": "0.jpg", "matched_text_index": 1}]
