"""``wds convert`` of datasets that mosaicml-streaming itself wrote, against what its own reader gives.

It asks for an older numpy than everything else here, so it lives in an environment of its own (scripts/interop.py).
"""

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.command import run_wds
from webdataset import WebDataset
from webdataset.codecs.numpy_arrays import npy_loads

pytestmark = pytest.mark.skipif("WDS_INTEROP_MDS" not in os.environ, reason="mosaicml-streaming is not installed")
PROBE = Path(__file__).with_name("mds_probe.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the datasets, and what their own library reads of each."""
    folder = tmp_path_factory.mktemp("mds")
    done = subprocess.run(
        [os.environ["WDS_INTEROP_MDS"], str(PROBE), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def say_picture(payload):
    """Return size and pixels."""
    picture = Image.open(io.BytesIO(payload))
    return [list(picture.size), picture.convert("RGB").tobytes().hex()]


def say_array(payload):
    """Return type, shape and elements."""
    array = npy_loads(payload)
    return [str(array.dtype), list(array.shape), array.ravel().tolist()]


READ: dict[str, Any] = {
    "number.cls": int, "small.cls": int, "large.cls": int, "words.txt": bytes.decode, "noise.bin": bytes.hex,
    "real.json": json.loads, "exact.txt": bytes.decode, "tree.json": json.loads, "grid.npy": say_array,
    "fixed.npy": say_array, "picture.png": say_picture, "photo.jpg": say_picture, "drawing.png": say_picture,
}  # fmt: skip


@pytest.mark.parametrize("compression", ["None", "gz", "zstd", "bz2", "br"])
def test_every_value_is_the_one_that_its_own_reader_gives(written, tmp_path, compression):
    """All encodings in several shards, by each compression, with the hashes that it recorded."""
    folder, read = written
    assert len(list((folder / compression).glob("shard.*.mds*"))) > 2
    run_wds("convert", str(folder / compression), "-o", "x.tar", cwd=tmp_path)
    samples = list(WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    assert len(samples) == len(read[compression]) == 60
    for sample, theirs in zip(samples, read[compression], strict=True):
        ours = {field.partition(".")[0]: READ[field](sample[field]) for field in sample if field[:2] != "__"}
        assert ours == theirs
