"""NeMo Curator: its interleaved reader reads documents that we write, and we read those that it writes."""

import io
import urllib.parse

import pytest

pytest.importorskip("nemo_curator.stages.interleaved.io")

from nemo_curator.stages.interleaved.io.readers.webdataset import InterleavedWebdatasetReaderStage  # noqa: E402
from nemo_curator.stages.interleaved.io.writers.webdataset import InterleavedWebdatasetWriterStage  # noqa: E402
from nemo_curator.tasks import FileGroupTask  # noqa: E402
from PIL import Image  # noqa: E402

import webdataset as wds  # noqa: E402

# key to texts and colours, in order
DOCUMENTS = {"d0": ["one", 1, "two", 2, 3], "d1": ["only text"], "e/d2": [4, "last"]}


def picture(colour):
    """A small picture of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (colour, 7, 9)).save(stream, "PNG")
    return stream.getvalue()


def colour(content):
    """The colour of a picture."""
    return Image.open(io.BytesIO(content)).convert("RGB").tobytes()[0]


def read(path):
    """What Curator reads: its batch, and of each document its texts and the colours of its pictures."""
    stage = InterleavedWebdatasetReaderStage(sample_id_field="name", materialize_on_read=True)
    batch = stage.process(FileGroupTask(dataset_name="documents", data=[str(path)]))
    found = {}
    for row in batch.to_pandas().to_dict("records"):
        parts = found.setdefault(row["sample_id"], [])
        if row["modality"] == "text":
            parts.append(row["text_content"])
        elif row["modality"] == "image":
            parts.append(colour(row["binary_content"]))
    return batch, found


def test_it_reads_our_documents_and_we_read_its(tmp_path):
    """Texts and pictures, in order, from our writer to its rows, and from its writer back to our reader."""
    path = tmp_path / "ours.tar"
    with wds.DocumentWriter(str(path), "pages") as sink:
        for key, parts in DOCUMENTS.items():
            made = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": picture(part)}
                for part in parts
            ]
            sink.write({"__key__": key, "parts": made, "json": {"name": key}})
    batch, found = read(path)
    assert found == DOCUMENTS
    stage = InterleavedWebdatasetWriterStage(path=str(tmp_path / "theirs"), mode="overwrite")
    stage.setup()
    urls = stage.process(batch).data
    back = {}
    for document in wds.WebDataset(urls, shardshuffle=False).interleaved():
        parts = [part["text"] if part["type"] == "text" else colour(part["image"]) for part in document["parts"]]
        # it quotes keys in names of members
        back[urllib.parse.unquote(document["__key__"])] = parts
    assert back == DOCUMENTS
