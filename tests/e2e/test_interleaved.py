"""The pipelines that existing code runs over interleaved documents, as that code has them."""

import base64
import io
import json
import logging
from itertools import islice

import pytest

import webdataset as wds
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.testing import archives, documents
from webdataset.testing.documents import Picture, Spec

pillow = pytest.importorskip("PIL.Image")


def picture(shade, size=(12, 10)):
    """An image file."""
    stream = io.BytesIO()
    pillow.new("RGB", size, (shade % 256, 9, 9)).save(stream, "JPEG")
    return stream.getvalue()


def specs(count, start=0):
    """Documents as MMC4 has them: images in no order of texts, named by what is no number."""
    for number in range(start, start + count):
        pictures = [Picture(f"b{k}f.png", (5 - k) % 3, picture(20 * k), 0.2 + 0.1 * k) for k in range(number % 4)]
        yield Spec(f"{number:09d}", [f"text {k} of {number}" for k in range(3)], pictures)


def shard(path, layout, count=6, *, by_name=False, extra=()):
    """Write a shard; return its path."""
    members = [member for spec in specs(count) for member in getattr(documents, layout)(spec)]
    path.write_bytes(archives.by_hand(sorted(members) if by_name else [*members, *extra]))
    return str(path)


def stem(name):
    """A name without its extension."""
    return name.rpartition(".")[0]


def consume(sample):
    """What the consumer of layout A makes of one sample: images by the stems of their names, sorted by text."""
    record = sample["json"]
    found = [
        (entry["matched_text_index"], entry["matched_sim"], sample[f"{stem(entry['image_name'])}.jpg"])
        for entry in record["image_info"]
    ]
    found.sort(key=lambda entry: entry[0])
    return {
        "image_list": [image for _, _, image in found],
        "text_list": record["text_list"],
        "matched_text_index": [index for index, _, _ in found],
        "matched_sim": [similarity for _, similarity, _ in found],
    }


def is_mmc4(sample):
    """The selection on raw bytes."""
    return b"text_list" in sample["json"] and b"image_info" in sample["json"]


@pytest.mark.parametrize("order", ["json first", "sorted by name", "fork's keys"])
def test_the_pipeline_of_sibling_keys(tmp_path, order, caplog):
    """Resampled shards, members to samples, shuffle, selection on raw bytes, decode, to_dict, map: as it stands."""
    path = shard(tmp_path / "a.tar", "siblings", by_name=order == "sorted by name", extra=[("x.json", b"{}")])
    reader = (
        [wds.tarfile_to_samples(handler=wds.warn_and_continue, keys=wds.sibling_keys)]
        if order == "fork's keys"
        else [wds.tarfile_to_samples(handler=wds.warn_and_continue), wds.sibling_fields()]
    )
    with caplog.at_level(logging.ERROR, "webdataset"):
        pipeline = wds.DataPipeline(
            wds.ResampledShards("mmc4_core", [path]),
            *reader,
            wds.shuffle(1000, initial=3, seed=1),
            wds.select(is_mmc4),
            wds.decode("pilrgb", handler=wds.reraise_exception),
            wds.filters.interleaved_to_dict("json;jpg;png;jpeg"),
            wds.map(consume),
        )
        found = list(islice(pipeline, 12))
    expected = {spec.texts[0]: spec for spec in specs(6)}
    assert {document["text_list"][0] for document in found} <= expected.keys()
    for document in found:
        spec = expected[document["text_list"][0]]
        pictures = sorted(spec.pictures, key=lambda one: one.text)
        assert document["matched_text_index"] == [one.text for one in pictures]
        assert document["matched_sim"] == [one.similarity for one in pictures]
        decoded = [pillow.open(io.BytesIO(one.image)).convert("RGB") for one in pictures]
        assert [image.tobytes() for image in document["image_list"]] == [image.tobytes() for image in decoded]


@pytest.mark.parametrize("by_name", [False, True])
def test_the_same_in_one_stage(tmp_path, by_name):
    """The stage gives what that consumer puts together by hand, in any order of members."""
    path = shard(tmp_path / "a.tar", "siblings", by_name=by_name)
    found = list(wds.WebDataset(path, shardshuffle=False).interleaved().decode("pilrgb"))
    fork = wds.WebDataset(path, shardshuffle=False).sibling_fields().decode("pilrgb").to_dict("json;jpg").map(consume)
    for document, other in zip(found, fork, strict=True):
        for name in ("text_list", "matched_text_index", "matched_sim"):
            assert document.get(name, []) == other[name]
        assert [image.tobytes() for image in document["images"]] == [image.tobytes() for image in other["image_list"]]


def consume_inline(sample):
    """What the consumer of layout B does with the raw JSON: threshold, size, sorting."""
    record = json.loads(sample[0])
    images, indices = [], []
    for entry in record["image_info"]:
        raw = base64.b64decode(entry["image_base64"])
        if len(raw) // 1000 <= 10 or entry["matched_sim"] < 0.24:
            continue
        images.append(raw)
        indices.append(entry["matched_text_index"])
    order = sorted(range(len(images)), key=lambda number: indices[number])
    return [images[n] for n in order][:5], [indices[n] for n in order][:5]


def test_the_pipeline_of_base64_in_json(tmp_path):
    """Raw JSON through to_tuple, and the rules of this stage, keep the same images in the same order."""
    rows = []
    for number in range(8):
        pictures = [
            Picture(f"{number}{k}.jpg", (7 * k) % 4, bytes([k]) * (9000 + 800 * k), 0.1 * ((k * 3 + number) % 7))
            for k in range(7)
        ]
        rows += documents.inline(Spec(f"d{number}", [f"t{k}" for k in range(4)], pictures))
    path = tmp_path / "mmc4.tar"
    path.write_bytes(archives.by_hand(rows))
    ds = wds.WebDataset(str(path), shardshuffle=False)
    raw = list(ds.to_tuple("json").map(consume_inline))
    kept = list(ds.interleaved("inline", min_similarity=0.24, min_image_bytes=11000, max_images=5))
    assert [(document["images"], document["matched_text_index"]) for document in kept] == raw
    assert any(len(images) == 5 for images, _ in raw) is False or max(len(images) for images, _ in raw) <= 5
    some = ds.interleaved("inline", min_similarity=0.24, min_image_bytes=11000, min_images=3)
    assert [document["images"] for document in some] == [images for images, _ in raw if len(images) >= 3]


def test_the_pipeline_of_fields_under_one_key(tmp_path):
    """The layout that any reader groups: columns in JSON, images by number; a batch of ragged documents."""
    members = []
    for number in range(4):
        record = {"texts": ["a", "b"], "matched_text_indices": [k % 2 for k in range(number)], "source": number}
        members.append((f"s{number}.json", json.dumps(record).encode()))
        members += [(f"s{number}.{k}.jpg", picture(30 * k)) for k in range(number)]
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand(members))
    batches = list(wds.WebDataset(str(path), shardshuffle=False).decode("rgb8").interleaved().listed(2))
    assert [[len(document["images"]) for document in batch] for batch in batches] == [[0, 1], [2, 3]]
    last = batches[1][1]
    assert [int(image[..., 0].mean() / 30 + 0.5) for image in last["images"]] == [0, 2, 1]
    assert (last["matched_text_index"], last["json"]) == ([0, 0, 1], {"source": 3})


def test_the_pipeline_of_pages(tmp_path):
    """JSON with null for the other modality, and a TIFF file of many pages."""
    members = []
    for number, spec in enumerate(specs(6)):
        if spec.pictures:
            members += documents.pages(spec, [(8 + k, 6 + number) for k in range(len(spec.pictures))])
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand(members))
    found = list(wds.WebDataset(str(path), shardshuffle=False).interleaved().decode("pil"))
    wanted = [spec for spec in specs(6) if spec.pictures]
    assert [[part["type"] for part in document["parts"]] for document in found] == [
        [kind for kind, _ in documents.sequence(spec)] for spec in wanted
    ]
    for document in found:
        assert [image.size for image in document["images"]] == [
            (info["width"], info["height"]) for info in document["image_info"]
        ]


def test_a_run_goes_on_in_the_middle_of_a_shard(tmp_path):
    """A snapshot after any document, over workers' worth of stages, continues exactly."""
    paths = [tmp_path / f"{number}.tar" for number in range(2)]
    for number, path in enumerate(paths):
        members = [member for spec in specs(4, 4 * number) for member in documents.siblings(spec)]
        path.write_bytes(archives.by_hand(sorted(members)))

    def dataset():
        ds = wds.WebDataset([str(path) for path in paths], shardshuffle=2, seed=5)
        return (
            ds.interleaved()
            .shuffle(3)
            .decode("rgb8")
            .map(lambda document: (document["__key__"], len(document["images"])))
        )

    whole = list(Flow(dataset().pipeline, Run(seed=9)))
    assert len(whole) == 8
    for given in range(9):
        with Flow(dataset().pipeline, Run(seed=9, tracked=True)) as flow:
            before = list(islice(iter(flow), given))
            state = json.loads(json.dumps(flow.snapshot()))
        with Flow(dataset().pipeline, Run(), state) as flow:
            assert before + list(flow) == whole


@pytest.mark.torch
def test_documents_travel_through_a_loader(tmp_path):
    """From worker processes, as they are; decoded there."""
    pytest.importorskip("torch")
    path = shard(tmp_path / "a.tar", "siblings", by_name=True)
    loader = wds.WebLoader(
        wds.WebDataset(path, shardshuffle=False).interleaved().decode("torchrgb8"), batch_size=None, num_workers=1
    )
    found = list(loader)
    assert [len(document["images"]) for document in found] == [len(spec.pictures) for spec in specs(6)]
    assert {tuple(image.shape) for document in found for image in document["images"]} == {(3, 10, 12)}
