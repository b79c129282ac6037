"""Documents as they come out of the stage: policies, limits, decoding, errors."""

import base64
import io
import json
import pickle

import numpy as np
import pytest

import webdataset as wds
from webdataset import filters
from webdataset.core.errors import DecodingError, MissingImage, SampleError, UsageError
from webdataset.samples.documents.document import Document
from webdataset.testing import documents
from webdataset.testing.documents import Picture, Spec

SPEC = Spec(
    "7", ["x", "y", "z"],
    [Picture("a.png", 2, b"A" * 9, 0.2), Picture("b.png", 0, b"B" * 5, 0.5), Picture("c.png", 2, b"C" * 7, 0.4)],
)  # fmt: skip


def samples(members, url="shard"):
    """What the reader makes of members."""
    made = []
    for name, payload in members:
        key, _, field = name.partition(".")
        if not made or made[-1]["__key__"] != key:
            made.append({"__key__": key, "__url__": url})
        made[-1][field] = payload
    return made


def read(members, **options):
    """The documents in members."""
    return list(filters.interleaved(**options)(samples(members)))


def one(members, **options):
    """The one document in members."""
    (document,) = read(members, **options)
    return document


def order(document):
    """Texts, and first letters of images, in order."""
    return "".join(part["text"] if part["type"] == "text" else part["image"][:1].decode() for part in document["parts"])


def test_a_document_has_these_fields():
    """The documented output, whole."""
    document = one(documents.siblings(SPEC))
    assert document == {
        "__key__": "7",
        "__url__": "shard",
        "parts": [
            {"type": "image", "image": b"B" * 5, "index": 0, "name": "b.png", "field": "jpg"},
            {"type": "text", "text": "x"},
            {"type": "text", "text": "y"},
            {"type": "image", "image": b"A" * 9, "index": 1, "name": "a.png", "field": "jpg"},
            {"type": "image", "image": b"C" * 7, "index": 2, "name": "c.png", "field": "jpg"},
            {"type": "text", "text": "z"},
        ],
        "images": [b"B" * 5, b"A" * 9, b"C" * 7],
        "text_list": ["x", "y", "z"],
        "matched_text_index": [0, 2, 2],
        "matched_sim": [0.5, 0.2, 0.4],
        "image_info": [{"raw_url": f"https://example.org/{name}.png"} for name in "bac"],
        "similarity_matrix": [[0.5, 1.5, 2.5], [0.2, 1.2, 2.2], [0.4, 1.4, 2.4]],
        "json": {"url": "https://example.org/7", "could_have_url_duplicate": 0},
    }
    assert isinstance(document, Document)
    travelled = pickle.loads(pickle.dumps(document))
    assert travelled == document
    assert isinstance(travelled, Document)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "BxyACz"),
        ({"place": "after"}, "xByzAC"),
        ({"ties": "similarity"}, "BxyCAz"),
        ({"min_similarity": 0.4}, "BxyCz"),
        ({"max_images": 2}, "BxyAz"),
        ({"max_images": 2, "keep": "similar"}, "BxyCz"),
        ({"max_images": 0}, "xyz"),
        ({"min_image_bytes": 7}, "xyACz"),
        ({"min_images": 3}, "BxyACz"),
        ({"min_images": 3, "min_similarity": 0.4}, ""),
        ({"max_images": 1, "min_images": 2}, "Bxyz"),
    ],
)
def test_rules_choose_and_order_images(options, expected):
    """Each rule by itself; limits from below hold before the limit from above."""
    assert "".join(map(order, read(documents.siblings(SPEC), **options))) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"missing_image": "drop_image"}, ["BxyCz", "BxyACz"]),
        ({"missing_image": "drop_document"}, ["BxyACz"]),
        ({"missing_image": "placeholder", "placeholder": b"?"}, ["Bxy?Cz", "BxyACz"]),
    ],
)
def test_missing_images_by_policy(options, expected):
    """A document that lacks an image, followed by a whole one."""
    members = [m for m in documents.siblings(SPEC) if m[0] != "7-a.jpg"]
    members += documents.siblings(SPEC._replace(key="8"))
    assert [order(document) for document in read(members, **options)] == expected


def test_a_missing_image_is_an_error_that_says_the_way_out():
    """Url, key, and the name in the JSON are attributes; a handler may skip the document."""
    members = [m for m in documents.siblings(SPEC) if m[0] != "7-a.jpg"] + documents.siblings(SPEC._replace(key="8"))
    with pytest.raises(MissingImage, match=r"image 0 is no member D-a\.\* next to D\.json .*adjacent=False") as caught:
        read(members)
    error = caught.value
    assert (error.url, error.key, error.field, error.stage) == ("shard", "7", "a.png", "interleaved")
    assert isinstance(error, KeyError | ValueError)
    failures = []
    assert [d["__key__"] for d in read(members, handler=lambda exn: failures.append(exn) or True)] == ["8"]
    assert [failure.key for failure in failures] == ["7"]
    assert read(members, handler=lambda exn: False) == []


def test_a_placeholder_of_none_is_none():
    """The default placeholder marks the place."""
    document = one([m for m in documents.siblings(SPEC) if "-a" not in m[0]], missing_image="placeholder")
    assert document["images"] == [b"B" * 5, None, b"C" * 7]
    assert one(
        [m for m in documents.siblings(SPEC) if "-a" not in m[0]], missing_image="placeholder", min_image_bytes=6
    )["images"] == [None, b"C" * 7]


@pytest.mark.parametrize(("others", "passing"), [("pass", True), ("drop", False)])
def test_samples_that_belong_to_no_document(others, passing):
    """Pairs, JSON of another kind, and images that no JSON names pass untouched, or are left out."""
    unrelated = [("p.jpg", b""), ("p.cls", b"1"), ("q.json", b"[]"), ("7-d.jpg", b"D")]
    found = read([*documents.siblings(SPEC), *unrelated, *documents.siblings(SPEC._replace(key="8"))], others=others)
    plain = [sample for sample in found if not isinstance(sample, Document)]
    assert [d["__key__"] for d in found if isinstance(d, Document)] == ["7", "8"]
    assert [s["__key__"] for s in plain] == (["p", "q", "7-d"] if passing else [])
    assert all(sample in samples(unrelated) for sample in plain)


def test_samples_that_belong_to_no_document_are_errors():
    """By default nothing is lost: the error names the sample and what to write."""
    with pytest.raises(SampleError, match=r"this sample \(jpg, cls\) is no document.*others='pass'") as caught:
        read([("p.jpg", b""), ("p.cls", b"1")])
    assert caught.value.key == "p"
    with pytest.raises(SampleError, match="this sample \\(int\\)"):
        list(filters.interleaved()([3]))


def test_an_image_may_stand_in_several_places():
    """One member serves every entry that names it."""
    spec = SPEC._replace(pictures=[Picture("a.png", 0, b"A"), Picture("a.png", 2, b"A")])
    document = one(documents.siblings(spec))
    assert order(document) == "AxyAz"
    assert document["matched_text_index"] == [0, 2]


def test_a_json_that_was_decoded_is_read_too():
    """A decode before the stage gives dictionaries; they are not changed."""
    members = samples(documents.siblings(SPEC))
    members[0]["json"] = json.loads(members[0]["json"])
    before = json.dumps(members[0]["json"])
    (document,) = filters.interleaved()(members)
    assert order(document) == "BxyACz"
    assert json.dumps(members[0]["json"]) == before
    members[0]["json"] = before
    assert order(next(iter(filters.interleaved()(members)))) == "BxyACz"


def test_further_fields_stay():
    """A caption, or an image that the JSON does not name, stays in the document."""
    document = one([*documents.fields(SPEC._replace(pictures=SPEC.pictures[:1])), ("7.9.jpg", b"9"), ("7.txt", b"t")])
    assert (document["9.jpg"], document["txt"]) == (b"9", b"t")
    assert "0.jpg" not in document
    with pytest.raises(SampleError, match="a field is called 'parts'"):
        one([*documents.inline(SPEC), ("7.parts", b"")])


def test_the_json_may_have_another_name():
    """json= names its field."""
    members = [(name.replace(".json", ".meta.json"), payload) for name, payload in documents.inline(SPEC)]
    assert order(one(members, json="meta.json")) == "BxyACz"


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "zip"}, {"match": "guess"},
        {"place": "over"}, {"ties": "first"}, {"missing_image": "ignore"}, {"keep": "last"},
        {"others": "keep"}, {"separator": ""}, {"separator": "."}, {"min_images": -1}, {"lookahead": 0},
        {"placeholder": b"x"},
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing(options):
    """Refused at once, naming the argument."""
    with pytest.raises(UsageError, match=next(iter(options))):
        filters.interleaved(**options)


def test_min_similarity_needs_similarities():
    """OBELICS has none: an error, not a filter that lets everything pass."""
    record = {"texts": ["x", None], "images": [None, "a"]}
    members = [("7.json", json.dumps(record).encode()), ("7-a.jpg", b"A")]
    with pytest.raises(SampleError, match="matched_sim"):
        read(members, min_similarity=0.1)
    assert "matched_sim" not in one(members)


def test_base64_may_be_a_data_url_or_broken_into_lines():
    """Both are read; damage is an error that names the image."""

    def document(text):
        entry = {"image_name": "a.png", "matched_text_index": 0, "image_base64": text}
        return [("7.json", json.dumps({"text_list": ["x"], "image_info": [entry]}).encode())]

    text = base64.b64encode(b"some image").decode()
    for written in (text, f"data:image/png;base64,{text}", f"{text[:4]}\r\n{text[4:]}\n"):
        assert one(document(written))["images"] == [b"some image"]
    for damaged in ("!", text[:-1], text[:5] + "*" + text[6:], "é"):
        with pytest.raises(DecodingError, match="base64") as caught:
            one(document(damaged))
        assert (caught.value.key, caught.value.field) == ("7", "image 0 (a.png).image_base64")
    with pytest.raises(MissingImage):
        one(document(""))


def test_json_that_cannot_be_read_is_an_error():
    """It names shard, key and field."""
    with pytest.raises(DecodingError, match="JSON cannot be read") as caught:
        read([("7.json", b'{"text_list": [')])
    assert (caught.value.url, caught.value.key, caught.value.field) == ("shard", "7", "json")


def picture(shade, kind="JPEG"):
    """An image file."""
    pillow = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    pillow.new("RGB", (8, 4), (shade, shade, shade)).save(stream, kind)
    return stream.getvalue()


def shard(tmp_path, layout):
    """A shard with one document of two images, and a caption."""
    spec = SPEC._replace(pictures=[Picture("a.png", 1, picture(50)), Picture("b.png", 0, picture(200))])
    path = tmp_path / f"{layout}.tar"
    with wds.TarWriter(str(path), check_keys="ignore") as sink:
        for name, payload in [*getattr(documents, layout)(spec), ("8.json", b"[1]"), ("8.txt", b"caption")]:
            key, _, field = name.partition(".")
            sink.write({"__key__": key, field: payload})
    return wds.WebDataset(str(path), shardshuffle=False)


@pytest.mark.parametrize("layout", ["siblings", "inline", "fields"])
def test_images_decode_before_behind_and_within(tmp_path, layout):
    """All ways give the same arrays, in parts and images alike; other samples decode as ever."""
    ds = shard(tmp_path, layout)
    ways = [
        ds.decode("rgb8").interleaved(others="pass"),
        ds.interleaved(others="pass").decode("rgb8"),
        ds.interleaved(others="pass", decode="rgb8").decode("rgb8"),
        ds.interleaved(others="pass", decode=["rgb8"]).decode(only="json txt"),
        wds.DataPipeline(*ds.pipeline, wds.decode("rgb8"), wds.interleaved(others="pass", decode="rgb8")),
    ]
    for way in ways:
        document, other = way
        assert [image.shape for image in document["images"]] == [(4, 8, 3)] * 2
        assert [int(image.mean() / 10) for image in document["images"]] == [20, 5]
        shown = [part["image"] for part in document["parts"] if part["type"] == "image"]
        assert all(image is other for image, other in zip(shown, document["images"], strict=True))
        assert all(image.dtype == np.uint8 for image in document["images"])
        assert (other["json"], other["txt"]) == ([1], "caption")


def test_decode_without_an_image_spec_leaves_bytes(tmp_path):
    """As for any image field."""
    for way in (shard(tmp_path, "inline").decode(), shard(tmp_path, "siblings").decode()):
        document = next(iter(way.interleaved(others="drop")))
        assert all(isinstance(image, bytes) for image in document["images"])


def test_users_decoders_see_images_once(tmp_path):
    """A function gets each image under its extension; what it makes is not decoded again, even where it is bytes."""
    seen = []

    def mine(key, data):
        seen.append(key)
        return data[::-1] if key.endswith(("jpg", "png")) else None

    for layout, keys in (("siblings", [".jpg"]), ("inline", [".png"]), ("fields", [".0.jpg", ".1.jpg"])):
        seen.clear()
        document = next(iter(shard(tmp_path, layout).decode(mine).interleaved(others="drop")))
        assert all(image.endswith(b"\xff\xd8\xff"[::-1]) for image in document["images"])
        assert sorted({key for key in seen if key not in (".json", ".txt")}) == keys


def test_an_image_that_does_not_decode_names_itself(tmp_path):
    """Shard, key and name of the image, whether decode stands before or behind; a handler may skip the document."""
    pytest.importorskip("PIL")
    for way in (
        lambda ds: ds.interleaved().decode("rgb"),
        lambda ds: ds.interleaved(decode="rgb"),
        lambda ds: ds.decode("rgb").interleaved(),
    ):
        with wds.DocumentWriter(str(tmp_path / "bad.tar"), "inline") as sink:
            part = {"type": "image", "image": b"no image", "name": "broken.jpg"}
            sink.write({"__key__": "7", "parts": [part, {"type": "text", "text": "x"}]})
        ds = wds.WebDataset(str(tmp_path / "bad.tar"), shardshuffle=False)
        with pytest.raises(DecodingError) as caught:
            list(way(ds))
        assert (caught.value.key, caught.value.field) == ("7", "broken.jpg")
        assert caught.value.url.endswith("bad.tar")
    assert list(ds.interleaved().decode("rgb", handler=wds.ignore_and_continue)) == []


def test_limits_on_encoded_size_need_encoded_images(tmp_path):
    """min_image_bytes behind decode is an error that says so."""
    with pytest.raises(UsageError, match="decode after interleaved"):
        list(shard(tmp_path, "siblings").decode("rgb8").interleaved(others="drop", min_image_bytes=10))


@pytest.mark.parametrize("compression", [None, "jpeg", "tiff_lzw"])
def test_pages_are_images(compression):
    """MINT-1T: the k-th image is the k-th page; the metadata is the image's."""
    pytest.importorskip("PIL")
    sizes = [(16, 24), (32, 8), (8, 8)]
    members = documents.pages(SPEC, sizes, compression=compression)
    for options in ({}, {"layout": "pages"}):
        document = one(members, decode="rgb8", **options)
        assert [image.shape[:2] for image in document["images"]] == [(8, 32), (24, 16), (8, 8)]
        assert [info["width"] for info in document["image_info"]] == [32, 16, 8]
        assert [part.get("name") or part["text"] for part in document["parts"]] == [
            "b.png",
            "x",
            "y",
            "a.png",
            "c.png",
            "z",
        ]
        assert "tiff" not in document
        assert document["json"] == {"pdf_name": "7.pdf"}


def test_pages_that_do_not_fit_the_images_are_an_error():
    """One page too many or too few: nobody can tell which image it is."""
    pytest.importorskip("PIL")
    (_, _), (name, file) = documents.pages(SPEC, [(2, 2)] * 3)
    (record, _) = documents.pages(SPEC._replace(pictures=SPEC.pictures[:2]), [(2, 2)] * 2)
    with pytest.raises(SampleError, match="3 pages for 2 images") as caught:
        one([record, (name, file)])
    assert caught.value.field == "tiff"


def test_pages_decoded_too_early_are_an_error():
    """A decode before the stage keeps the first page only: the error says what to write."""
    pytest.importorskip("PIL")
    decoded = filters.decode("rgb8")(iter(samples(documents.pages(SPEC, [(2, 2)] * 3))))
    with pytest.raises(UsageError, match=r"\.interleaved\(\)\.decode\("):
        list(filters.interleaved()(decoded))


def test_the_repr_names_the_stage():
    """As it is shown in errors and printed pipelines."""
    assert repr(filters.interleaved("inline")) == "interleaved(layout='inline', others='error')"


def test_a_column_of_images_names_them():
    """matched_text_indices with a list images of one entry for each: names, or objects."""
    for images in (["x.jpg", "y.jpg"], [{"image_name": "x.jpg"}, {"image_name": "y.jpg"}]):
        record = {"texts": ["t", "u"], "images": images, "matched_text_indices": [1, 0]}
        found = one([("7.json", json.dumps(record).encode()), ("7-x.jpg", b"X"), ("7-y.jpg", b"Y")])
        assert order(found) == "YtXu"
        assert found["json"] == {}


def test_a_name_that_begins_with_the_key_is_no_other_image():
    """In document b, b-0.jpg may be the member of 0.jpg, unless 0.jpg is an image as well."""
    entries = [{"image_name": name, "matched_text_index": 0} for name in ("b-0.jpg", "0.jpg")]
    alone = json.dumps({"text_list": ["t"], "image_info": entries[:1]}).encode()
    assert order(one([("b.json", alone), ("b-0.jpg", b"X")])) == "Xt"
    both = json.dumps({"text_list": ["t"], "image_info": entries}).encode()
    assert order(one([("b.json", both), ("b-0.jpg", b"X"), ("b-b-0.jpg", b"Y")])) == "YXt"
    with pytest.raises(MissingImage, match=r"D-b-0\.\*"):
        one([("b.json", both), ("b-0.jpg", b"X")])


def test_a_field_of_too_many_digits_is_a_name():
    """It is no number that Python would refuse to read."""
    members = [*documents.fields(SPEC), ("7." + "9" * 5000 + ".jpg", b"D")]
    assert order(one(members)) == "BxyACz"


def test_what_is_left_out_is_counted(caplog):
    """Once a run, by reason."""
    caplog.set_level("INFO", "webdataset")
    lacking = [m for m in documents.siblings(SPEC) if m[0] != "7-a.jpg"]
    rules = {"missing_image": "drop_image", "min_similarity": 0.45, "others": "drop"}
    assert [order(document) for document in read([*lacking, ("s.jpg", b"")], **rules)] == ["Bxyz"]
    assert caplog.messages == [
        "interleaved left out: 1 images of little similarity or few bytes, 1 missing images, 1 samples of no document"
    ]
    caplog.clear()
    read(lacking, missing_image="drop_document")
    read(documents.siblings(SPEC), max_images=1)
    read(documents.siblings(SPEC), min_images=4)
    assert [message.partition("out: ")[2] for message in caplog.messages] == [
        "1 documents for a missing image", "2 images beyond max_images", "1 documents of few images",
    ]  # fmt: skip
    caplog.clear()
    read(documents.siblings(SPEC))
    assert caplog.messages == []


def test_a_whole_shard_is_searched_without_a_bound():
    """adjacent=False finds images however far away; a bound that was too small is named as the reason."""
    members = [documents.siblings(SPEC._replace(key=str(n))) for n in range(500)]
    apart = [member[0] for member in members] + [image for member in members for image in member[1:]]
    assert len(read(apart, adjacent=False)) == 500
    with pytest.raises(MissingImage, match="more than lookahead=9 samples waited: pass a greater"):
        read(apart, adjacent=False, lookahead=9)


def test_a_decoder_decodes_documents():
    """Called by itself, as decode does."""
    stream = io.BytesIO()
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (3, 2)).save(stream, "JPEG")
    spec = SPEC._replace(pictures=[Picture("a.png", 0, stream.getvalue())])
    decoder = wds.Decoder(["rgb8"])
    for decoded in (decoder(one(documents.siblings(spec))), *decoder(read(documents.inline(spec)))):
        assert isinstance(decoded, Document)
        assert decoded["images"][0].shape == (2, 3, 3)
        assert decoded["parts"][0]["image"] is decoded["images"][0]
