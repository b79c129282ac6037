"""Whatever documents, layout and order of members: the same parts come out, and what is written reads back."""

import contextlib
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.errors import FormatError, WebDatasetError
from webdataset.samples.documents.tiff_pages import split_tiff_pages
from webdataset.testing import archives, documents
from webdataset.testing.documents import Picture, Spec
from webdataset.testing.stages import Samples, check_resume

TEXTS = st.text(max_size=12)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True)
KEYS = st.from_regex(r"([a-z]{1,3}/)?[a-z0-9]{1,4}(-[a-z0-9]{1,2})?", fullmatch=True)
LAYOUTS = {"siblings": documents.siblings, "inline": documents.inline, "fields": documents.fields}


@st.composite
def specs(draw, *, most_images=4):
    """A document: texts, and images each matched to one of them; no two images of one name."""
    texts = draw(st.lists(TEXTS, min_size=1, max_size=5))
    names = draw(st.lists(NAMES, max_size=most_images, unique_by=str.lower))
    pictures = [
        Picture(
            draw(st.sampled_from(["{}.jpg", "{}.png", "a/b/{}.webp"])).format(name),
            draw(st.integers(0, len(texts) - 1)),
            draw(st.binary(min_size=1, max_size=30)),
            draw(st.floats(0, 1)),
        )
        for name in names
    ]
    return Spec(draw(KEYS), texts, pictures)


@st.composite
def shards(draw):
    """Documents of which none is another's sibling by name, so that members may be mixed."""
    drawn = draw(st.lists(specs(), min_size=1, max_size=4, unique_by=lambda spec: spec.key))
    return [spec._replace(key=f"{number}x{spec.key}") for number, spec in enumerate(drawn)]


def read(members, **options):
    """What is read from members, by key."""
    shard = {"url": "shard", "stream": io.BytesIO(archives.by_hand(members))}
    samples = list(wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander([shard])))
    return {document["__key__"]: document for document in wds.interleaved(**options)(samples)}


@settings(max_examples=60)
@given(shards(), st.sampled_from(sorted(LAYOUTS)), st.randoms(use_true_random=False), st.booleans())
def test_parts_do_not_depend_on_layout_or_order(drawn, layout, rng, forced):
    """Every layout, autodetected or not, with the members of each document in any order, gives the same documents."""
    members = []
    for spec in drawn:
        own = LAYOUTS[layout](spec)
        rng.shuffle(own)
        members += own
    found = read(members, layout=layout if forced else "auto")
    assert {key: documents.shown(document) for key, document in found.items()} == {
        spec.key: documents.expected(spec) for spec in drawn
    }
    for spec in drawn:
        document = found[spec.key]
        order = sorted(spec.pictures, key=lambda picture: picture.text)
        assert document["matched_text_index"] == [picture.text for picture in order]
        assert document["image_info"] == [{"raw_url": f"https://example.org/{picture.name}"} for picture in order]
        assert [row[0] for row in document["similarity_matrix"]] == [picture.similarity for picture in order]
        assert document["json"] == {"url": f"https://example.org/{spec.key}", "could_have_url_duplicate": 0}


@settings(max_examples=60)
@given(shards(), st.randoms(use_true_random=False))
def test_members_may_be_mixed_in_the_whole_shard(drawn, rng):
    """With adjacent=False the members of all documents may stand in any order."""
    members = [member for spec in drawn for member in documents.siblings(spec)]
    rng.shuffle(members)
    found = read(members, adjacent=False)
    assert {key: documents.shown(document) for key, document in found.items()} == {
        spec.key: documents.expected(spec) for spec in drawn
    }


@given(shards(), st.randoms(use_true_random=False))
def test_sorting_by_name_never_separates_a_document(drawn, rng):
    """Members in the order of their names, as tar --sort=name has them, are adjacent enough."""
    members = sorted(member for spec in drawn for member in documents.siblings(spec))
    found = read(members)
    assert {key: documents.shown(document) for key, document in found.items()} == {
        spec.key: documents.expected(spec) for spec in drawn
    }


@settings(max_examples=12)
@given(shards(), st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
def test_any_run_can_be_resumed_behind_any_document(drawn, rng, lookahead, adjacent):
    """Whatever waits when the snapshot is taken: a restored run gives the rest, before a shuffle too."""
    members = [member for spec in drawn for member in documents.siblings(spec)]
    rng.shuffle(members)
    shard = io.BytesIO(archives.by_hand(members))
    given_samples = list(
        wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander([{"url": "u", "stream": shard}]))
    )
    stage = wds.interleaved(adjacent=adjacent, lookahead=lookahead, others="pass", missing_image="drop_image")
    check_resume(lambda: [Samples(given_samples), stage, wds.shuffle(3, seed=1)])


@st.composite
def written(draw):
    """A document to be written: parts in any order, images under any names, some of them in several places."""
    pool = draw(
        st.lists(st.tuples(st.text(min_size=1, max_size=8), st.binary(min_size=1, max_size=20)), min_size=1, max_size=4)
    )
    text = st.builds(lambda text: {"type": "text", "text": text}, TEXTS)
    image = st.builds(lambda kept: {"type": "image", "image": kept[1], "name": kept[0]}, st.sampled_from(pool))
    return {
        "__key__": draw(KEYS),
        "parts": draw(st.lists(st.one_of(text, image), max_size=8)),
        "json": draw(st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.integers(), TEXTS))),
        "txt": draw(st.binary(max_size=5)),
    }


def essence(document):
    """What has to read back."""
    parts = [
        {name: part[name] for name in ("type", part["type"], "name") if name in part} for part in document["parts"]
    ]
    return {"parts": parts, **{name: document[name] for name in ("__key__", "json", "txt")}}


@settings(max_examples=50)
@given(
    st.lists(written(), min_size=1, max_size=3, unique_by=lambda one: one["__key__"]), st.sampled_from(sorted(LAYOUTS))
)
def test_what_is_written_reads_back(drawn, layout):
    """Parts, names, bytes, JSON and further fields read back equal; written again, the shard is the same."""
    first = io.BytesIO()
    with wds.DocumentWriter(first, layout) as sink:
        for number, document in enumerate(drawn):
            sink.write({**document, "__key__": f"{number}x{document['__key__']}"})
    found = list(wds.interleaved()(_samples(first)))
    assert [essence(document) for document in found] == [
        {**essence(document), "__key__": f"{number}x{document['__key__']}"} for number, document in enumerate(drawn)
    ]
    second = io.BytesIO()
    with wds.DocumentWriter(second, layout) as sink:
        for document in found:
            sink.write(document)
    again = list(wds.interleaved()(_samples(second)))
    assert again == found


def _samples(stream):
    shard = {"url": "shard", "stream": io.BytesIO(stream.getvalue())}
    return list(wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander([shard])))


COMPRESSIONS = [None, "tiff_deflate", "tiff_lzw", "jpeg", "packbits"]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from(["1", "L", "RGB", "P", "I;16"]),
)
def test_tiff_pages_decode_as_the_frames_of_the_file(sizes, compression, mode):
    """Each page taken out is the frame that Pillow shows at its place, to the pixel."""
    pillow = pytest.importorskip("PIL.Image")
    if compression == "jpeg" and mode not in ("L", "RGB"):
        compression = None
    frames = []
    for number, size in enumerate(sizes):
        frame = pillow.new(mode, size, number % 2)
        frame.putpixel((0, 0), tuple([number * 9] * 3) if mode == "RGB" else number)
        frames.append(frame)
    stream = io.BytesIO()
    frames[0].save(stream, "TIFF", save_all=True, append_images=frames[1:], compression=compression)
    pages = split_tiff_pages(stream.getvalue())
    assert len(pages) == len(sizes)
    with pillow.open(stream) as whole:
        for number, page in enumerate(pages):
            whole.seek(number)
            with pillow.open(io.BytesIO(page)) as one:
                assert (one.size, one.mode) == (whole.size, whole.mode)
                assert one.tobytes() == whole.tobytes()


@pytest.mark.limited
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_damaged_tiff_files_are_refused_or_split(tail, place, value):
    """No damage to a file's bytes raises anything but our error, or never ends."""
    pillow = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    frames = [pillow.new("L", (3, 3), number) for number in range(3)]
    frames[0].save(stream, "TIFF", save_all=True, append_images=frames[1:])
    damaged = bytearray(stream.getvalue() + tail)
    damaged[place % len(damaged)] = value
    with contextlib.suppress(FormatError):
        assert len(split_tiff_pages(bytes(damaged))) >= 1


@given(
    st.recursive(st.one_of(st.none(), st.integers(), st.text(max_size=5)), lambda inner: st.lists(inner, max_size=3))
)
def test_malformed_documents_are_errors_of_ours(value):
    """Whatever stands in the fields that make a document, reading it gives a document or a ValueError of ours."""
    for names in (("text_list", "image_info"), ("texts", "images"), ("text_list", "matched_text_index")):
        for other in ([], ["a"], value):
            for record in (dict(zip(names, (value, other))), dict(zip(names, (other, value)))):
                sample = {"__key__": "k", "json": json.dumps(record).encode()}
                with contextlib.suppress(WebDatasetError):
                    list(wds.interleaved(missing_image="drop_image")([sample]))
