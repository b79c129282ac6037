"""Shards that img2dataset itself wrote, of images that a server of this test sends: no finding, and every value read.

It asks for older pandas and webdataset than others here, so it lives in an environment of its own (scripts/interop.py).
"""

import functools
import http.server
import json
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest
from PIL import Image

from webdataset import WebDataset, check_shards

pytestmark = pytest.mark.skipif("WDS_INTEROP_IMG2DATASET" not in os.environ, reason="img2dataset is not installed")
PROBE = Path(__file__).with_name("img2dataset_probe.py")
COUNT = 34
DAMAGED, MISSING = 5, 21


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Sends files and writes no log."""

    def log_message(self, *line):
        """Write nothing."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the shards: of 34 images one is damaged and one is not there."""
    folder = tmp_path_factory.mktemp("img2dataset")
    images = folder / "images"
    images.mkdir()
    for number in range(COUNT):
        kind = ("jpg", "png", "webp")[number % 3]
        Image.new("RGB", (100 + 9 * number, 90), (7 * number, 90, 200)).save(images / f"{number}.{kind}")
    (images / f"{DAMAGED}.webp").write_bytes(b"no image")
    (images / f"{MISSING}.jpg").unlink()
    handler = functools.partial(QuietHandler, directory=str(images))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        rows = [
            {
                "url": f"http://127.0.0.1:{server.server_port}/{number}.{('jpg', 'png', 'webp')[number % 3]}",
                "caption": f"la légende {number}",
                "licence": number,
            }
            for number in range(COUNT)
        ]
        (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [os.environ["WDS_INTEROP_IMG2DATASET"], PROBE, folder / "list.jsonl", folder / "out"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_check_finds_nothing(written):
    """No finding in its shards, notes included, and none for Hugging Face's reader and Ray's."""
    shards = sorted(map(str, written.glob("*.tar")))
    assert len(shards) == 4
    report = check_shards(shards, profiles=("hf", "ray", "dali"))
    assert [str(finding) for finding in report.findings] == []
    assert sum(shard.samples for shard in report.shards) == COUNT - 2


def test_every_sample_is_read(written):
    """Keys, captions, pictures and what it recorded of them; what could not be downloaded is in no shard."""
    dataset = WebDataset(sorted(map(str, written.glob("*.tar"))), shardshuffle=False).decode("pil")
    found = set()
    for sample in dataset:
        meta = sample["json"]
        assert sorted(field for field in sample if field[0] != "_") == ["jpg", "json", "txt"]
        assert (meta["key"], meta["caption"], meta["status"]) == (sample["__key__"], sample["txt"], "success")
        assert sample["txt"] == f"la légende {meta['licence']}"
        assert sample["jpg"].size == (meta["width"], meta["height"]) == (64, 64)
        assert meta["original_width"] == 100 + 9 * meta["licence"]
        found.add(meta["licence"])
    assert found == set(range(COUNT)) - {DAMAGED, MISSING}


def test_tarfile_reads_the_same(written):
    """The standard library reads the same members: three for each sample, in its order."""
    for path in sorted(written.glob("*.tar")):
        with tarfile.open(path) as archive:
            names = archive.getnames()
        keys = [sample["__key__"] for sample in WebDataset(str(path), shardshuffle=False)]
        assert [name.partition(".")[0] for name in names] == [key for key in keys for _ in range(3)]
