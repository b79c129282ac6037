"""Datasets of MosaicML Streaming, as its own writer (0.13.0) wrote those in mds_recorded.tar.gz."""

import decimal
import io
import itertools
import json
import shutil
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from webdataset.codecs.numpy_arrays import npy_loads
from webdataset.core.errors import FormatError, SampleError, Truncated, UnsafeSpec
from webdataset.reshaping.conversion import Conversion
from webdataset.reshaping.field_values import RowConverter
from webdataset.reshaping.mds import read_index, read_mds

RECORDED = Path(__file__).with_name("mds_recorded.tar.gz")


@pytest.fixture
def recorded(tmp_path):
    """The folder of the datasets."""
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def samples(folder, **rules):
    """The samples of a dataset."""
    return list(RowConverter(**rules).convert(read_mds(str(folder / "index.json"), RowConverter(**rules))))


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_every_encoding(recorded, name):
    """The values are those that were written; pickles stay bytes; images of Pillow's become PNG."""
    found = samples(recorded / name)
    assert len(found) == 5
    for number, sample in enumerate(found):
        fields = sample.payloads()
        assert npy_loads(fields["e.npy"]).tolist() == (np.arange(6).reshape(2, 3) + number).tolist()
        assert npy_loads(fields["e.npy"]).dtype == "uint16"
        assert npy_loads(fields["f.npy"]).shape == (300, 2)
        assert (npy_loads(fields["g.npy"]) == np.full((2, 3), number, "float32")).all()
        assert (fields["i.jpg"][:3], fields["p.png"][:4]) == (b"\xff\xd8\xff", b"\x89PNG")
        with (Path(recorded) / "h.png").open("wb") as file:
            file.write(fields["h.png"])
        assert Image.open(recorded / "h.png").getpixel((0, 0)) == (1, 2, 3)
        assert fields["q.pkl"][:1] == b"\x80"
        assert json.loads(fields["d.json"]) == {"q": [number]}
        assert {name: fields[name] for name in fields if name[0] in "abcjklmnr"} == {
            "a.cls": b"%d" % (-5 * number), "b.txt": f"hé{number}".encode(), "c.bin": b"xyz\xff",
            "j.json": str(1.5 + number).encode(), "k.cls": str(12345678901234567890 + number).encode(),
            "l.cls": b"%d" % (7 + number), "m.json": b"1.25", "n.txt": str(decimal.Decimal("1.10")).encode(),
            "r.json": b"0.5",
        }  # fmt: skip


@pytest.mark.parametrize("name", ["gz", "bz2", "br"])
def test_compressions(recorded, name):
    """Other compressions are read."""
    assert [sample.payload("a.cls") for sample in samples(recorded / name)] == [b"0", b"-5", b"-10", b"-15", b"-20"]


def test_some_columns(recorded):
    """Only the columns that are asked for are decoded; a column gives the key."""
    found = samples(recorded / "zstd", key="{b}-x", columns=("a",))
    assert [(sample.key, sample.fields) for sample in found][:2] == [("hé0-x", ("a.cls",)), ("hé1-x", ("a.cls",))]


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_every_changed_byte_is_noticed(recorded, name):
    """Sizes and hashes of the index are verified: no byte of a shard can change or be missing."""
    index = json.loads((recorded / name / "index.json").read_text())["shards"][0]
    shard = recorded / name / (index["zip_data"] or index["raw_data"])["basename"]
    whole = shard.read_bytes()
    for place in range(0, len(whole), 97):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FormatError):
            samples(recorded / name)
    shard.write_bytes(whole[:-1])
    with pytest.raises(Truncated, match="the index says"):
        samples(recorded / name)


def change(folder, function):
    """Change the first shard of an index, and leave out the hashes."""
    index = json.loads((folder / "index.json").read_text())
    for part in ("raw_data", "zip_data"):
        if index["shards"][0][part]:
            index["shards"][0][part]["hashes"] = {}
    function(index["shards"][0], index)
    (folder / "index.json").write_text(json.dumps(index))


def test_without_hashes_nonsense_is_refused(recorded):
    """Where nothing is recorded, numbers that contradict each other are errors, and no other exception comes."""
    folder = recorded / "plain"
    change(folder, lambda *_: None)
    shard = folder / json.loads((folder / "index.json").read_text())["shards"][0]["raw_data"]["basename"]
    whole = shard.read_bytes()
    for place in (0, 1, 4, 5, 8, 9):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(FormatError):
            samples(folder)
    start = int.from_bytes(whole[4:8], "little")
    for place in range(start, start + 40):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(FormatError):
            samples(folder)


@pytest.mark.parametrize(
    "name", ["../x.mds", "/etc/passwd", "a/../../x", "pipe:true", "s3://b/x", "..\\x", "c:\\x", "", "-"]
)
def test_files_elsewhere_are_refused(recorded, name):
    """An index cannot name a file outside of its folder, a command or a url."""
    change(recorded / "plain", lambda shard, _: shard["raw_data"].update(basename=name))
    with pytest.raises((FormatError, UnsafeSpec)):
        samples(recorded / "plain")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (lambda _, index: index.update(version=1), "version 1"),
        (lambda shard, _: shard.update(format="csv"), "wds create"),
        (lambda shard, _: shard.pop("column_names"), "no index"),
        (lambda shard, _: shard["column_sizes"].append(1), "no index"),
        (lambda _, index: index.update(shards=3), "no index"),
        (lambda shard, _: shard.update(samples=7), "says 7"),
        (lambda shard, _: shard.update(column_sizes=["8", *shard["column_sizes"][1:]]), "no number of bytes"),
        (lambda shard, _: shard.update(column_sizes=[-8, *shard["column_sizes"][1:]]), "no number of bytes"),
        (lambda shard, _: shard["raw_data"].update(bytes="many"), "no number of bytes"),
        (lambda shard, _: shard.update(column_names=[1, *shard["column_names"][1:]]), "no list of names"),
        (lambda shard, _: shard.update(column_encodings=[["int"], *shard["column_encodings"][1:]]), "no list of names"),
        (lambda shard, _: shard.update(column_encodings="int"), "no list of names"),
        (lambda shard, _: shard["raw_data"].update(hashes={"sha1": 3}), "is damaged"),
    ],
)
def test_bad_indexes(recorded, problem, message):
    """What is no index of version 2 is refused, with the reason."""
    change(recorded / "plain", problem)
    with pytest.raises(FormatError, match=message):
        samples(recorded / "plain")


def test_unknown_encoding_is_refused_by_name(recorded):
    """A column with an encoding that is not read stops the conversion, unless it is left out."""
    folder = recorded / "plain"
    shutil.copytree(folder, recorded / "copy")
    change(
        folder,
        lambda shard, index: [
            each.update(column_encodings=["list[jpeg]", *each["column_encodings"][1:]]) for each in index["shards"]
        ],
    )
    with pytest.raises(SampleError, match=r"'a' has the encoding 'list\[jpeg\]'.*--columns"):
        samples(folder)
    assert len(samples(folder, columns=("b",))) == 5
    change(
        folder, lambda shard, _: shard.update(column_encodings=["ndarray:uint8:2,x", *shard["column_encodings"][1:]])
    )
    with pytest.raises(SampleError, match=r"'a' has the encoding 'ndarray:uint8:2,x'"):
        samples(folder)


def write_column(folder, encoding, values):
    """Write a dataset of one column of variable size."""
    pieces = [struct.pack("<I", len(value)) + value for value in values]
    start = 4 + 4 * (len(values) + 1)
    offsets = itertools.accumulate(map(len, pieces), initial=start)
    content = struct.pack(f"<{len(values) + 2}I", len(values), *offsets) + b"".join(pieces)
    file = {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}}
    shard = {
        "column_encodings": [encoding], "column_names": ["v"], "column_sizes": [None], "compression": None,
        "format": "mds", "hashes": [], "raw_data": file, "samples": len(values), "zip_data": None,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shard.00000.mds").write_bytes(content)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))


def test_json_that_begins_like_a_file_stays_json(tmp_path):
    """What a JSON text says does not choose another extension; a file under an image's encoding does."""
    write_column(tmp_path / "a", "json", [b'"abcftyp"', b'"abcftypavif"', b"[1]"])
    assert {name for each in samples(tmp_path / "a") for name in each.fields} == {"v.json"}
    write_column(tmp_path / "b", "jpeg", [b"GIF89a", b"\xff\xd8\xff", b"?"])
    assert [each.fields for each in samples(tmp_path / "b")] == [("v.gif",), ("v.jpg",), ("v.jpg",)]


@pytest.mark.limited
@pytest.mark.parametrize("size", [(60_000, 60_000), (2**32 - 1, 1), (2**32 - 1, 0), (0, 0), (1, 1)])
def test_an_image_has_the_pixels_that_it_says(tmp_path, size):
    """A few bytes cannot stand for an image of gigabytes: none is made before they are compared."""
    pixels = b"x" if size[1] else b""
    write_column(tmp_path, "pil", [struct.pack("<3I", *size, 3) + b"RGB" + pixels])
    with pytest.raises(FormatError, match=f"are no image RGB of {size[0]} x {size[1]} pixels"):
        samples(tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "I;16"])
def test_images_of_every_mode(tmp_path, mode):
    """Rows that do not end on a byte, and pixels of several bytes, come back as they are."""
    image = Image.effect_noise((9, 3), 60).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.frombytes("I;16", (9, 3), bytes(range(54)))
    head = struct.pack("<3I", 9, 3, len(mode)) + mode.encode()
    write_column(tmp_path, "pil", [head + image.tobytes()])
    found = Image.open(io.BytesIO(samples(tmp_path)[0].payload("v.png")))
    assert (found.mode, found.size, found.tobytes()) == (mode, (9, 3), image.tobytes())


def test_a_folder_called_like_a_command(tmp_path, monkeypatch):
    """The name of a folder that was found is a path, whatever it looks like."""
    monkeypatch.chdir(tmp_path)
    write_column(Path("pipe:touch made; cat x"), "json", [b"1"])
    assert len(list(Conversion(RowConverter()).read(["pipe:touch made; cat x"]))) == 1
    assert not Path("made").exists()


@pytest.mark.parametrize("name", ["shake_128", "VERSION", "algorithms_available", "no such"])
def test_hashes_that_nothing_computes_count_nothing(recorded, name):
    """A hash without a length of its own, or of another name, is passed over."""
    change(recorded / "plain", lambda shard, _: shard["raw_data"].update(hashes={name: "00"}))
    assert len(samples(recorded / "plain")) == 5


@pytest.mark.parametrize("name", ["gz", "br"])
def test_more_than_the_index_says_is_refused_before_it_is_kept(recorded, name):
    """A compressed shard cannot fill the memory: it may have as many bytes as the index says."""
    change(recorded / name, lambda shard, _: shard["raw_data"].update(bytes=10))
    with pytest.raises(FormatError, match="more than the 10 bytes"):
        samples(recorded / name)
    assert len(read_index(str(recorded / name / "index.json"))) == 1


@pytest.mark.limited
def test_a_bomb_of_brotli(recorded):
    """A few hundred bytes that stand for 128 MiB are given up when there is more than the index says."""
    brotli = pytest.importorskip("brotli")
    engine = brotli.Compressor(quality=3)
    bomb = b"".join(engine.process(bytes(1 << 24)) for _ in range(8)) + engine.finish()
    change(recorded / "br", lambda shard, _: shard["zip_data"].update(bytes=len(bomb)))
    index = json.loads((recorded / "br" / "index.json").read_text())
    (recorded / "br" / index["shards"][0]["zip_data"]["basename"]).write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(FormatError, match="decompresses to more than"):
        samples(recorded / "br")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_brotli_that_is_cut_short(recorded):
    """A shard that ends too early is truncated, whatever the index says of its length."""
    place = recorded / "br"
    shard = place / json.loads((place / "index.json").read_text())["shards"][0]["zip_data"]["basename"]
    shard.write_bytes(shard.read_bytes()[:-5])
    change(place, lambda each, _: each["zip_data"].update(bytes=shard.stat().st_size))
    with pytest.raises(Truncated, match="ends inside"):
        samples(place)
