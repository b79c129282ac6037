"""A check finds nothing in undamaged shards, whoever wrote them.

Written by GNU tar, bsdtar, Python's tarfile, the published versions 0.2.86, 0.2.111 and 1.0.2 (whose interpreters the
environment names), and this library. Shards of img2dataset's layout are written by the published versions' writers,
which it uses; `make interop` runs img2dataset itself (tests/interop/test_img2dataset.py).
"""

import hashlib
import json
import os
import random
import subprocess

import pytest

import webdataset as wds
from support import check_payloads
from webdataset.inspection.check import check_shards
from webdataset.testing import archives
from webdataset.writing.tar_writer import TarWriter

pytestmark = pytest.mark.oracle

PUBLISHED = {"0.2.86": "WDS_ORACLE_086", "0.2.111": "WDS_ORACLE_111", "1.0.2": "WDS_ORACLE_102"}
FIELDS = ("jpg", "json", "txt", "cls", "npy")
WRITE = """
import json, sys, base64
from webdataset import TarWriter
with TarWriter(sys.argv[1], **json.loads(sys.argv[2])) as sink:
    for sample in json.load(sys.stdin):
        sink.write({k: base64.b64decode(v[1:]) if v.startswith("=") else v for k, v in sample.items()})
"""


def samples(style="plain", count=12):
    """Samples of some layout, every payload good."""
    rng = random.Random(style)
    keys = {
        "plain": lambda n: f"{n:06d}",
        "folders": lambda n: f"train/class.d/{n}",
        "long": lambda n: "n" * 90 + "/" + "k" * 120 + str(n),
        "unicode": lambda n: f"b\u00fccher/\u4f8b{n}",
        "img2dataset": lambda n: f"{n:05d}{n:04d}",
    }[style]
    fields = ("jpg", "json", "txt") if style == "img2dataset" else FIELDS
    made = []
    for number in range(count):
        sample = {field: check_payloads.good(field, rng) for field in fields}
        if style == "img2dataset":
            meta = {
                "url": "http://x/1.jpg",
                "key": keys(number),
                "status": "success",
                "error_message": None,
                "width": 24,
            }
            sample["json"] = json.dumps(meta, indent=4).encode()
        made.append((keys(number), sample))
    return made


def members(made):
    """Names and payloads."""
    return [(f"{key}.{field}", payload) for key, fields in made for field, payload in fields.items()]


def assert_clean(path, count=12):
    """No finding at all, notes included, and all samples."""
    report = check_shards(str(path))
    assert [str(finding) for finding in report.findings] == []
    assert report.shards[0].samples == count


STYLES = ("plain", "folders", "long", "unicode")


def held(*kinds):
    """Formats and styles of names, but for those that a format cannot hold."""
    return [(kind, style) for kind in kinds for style in STYLES if style != "long" or kind not in ("v7", "ustar")]


@pytest.mark.parametrize(("kind", "style"), held("v7", "oldgnu", "gnu", "ustar", "posix"))
def test_gnu_tar(kind, style, tmp_path):
    """All of GNU tar's formats, as far as they hold such names."""
    content = archives.by_gnu_tar(members(samples(style)), tmp_path, format=kind)
    (tmp_path / "a.tar").write_bytes(content)
    assert_clean(tmp_path / "a.tar")


def test_gnu_tar_with_folders(tmp_path):
    """Members for folders, ./ before names, owners: as ``tar cf x.tar .`` packs them; and gz, xz, bz2."""
    for name, payload in members(samples("folders")):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    for suffix, option in ((".tar", ""), (".tar.gz", "-z"), (".tar.xz", "-J"), (".tar.bz2", "-j")):
        target = tmp_path / f"a{suffix}"
        subprocess.run(["tar", "-cf", target, *option.split(), "--sort=name", "-C", tmp_path / "in", "."], check=True)
        assert_clean(target)


@pytest.mark.parametrize(("kind", "style"), held("v7", "ustar", "pax", "gnutar"))
def test_bsdtar(kind, style, tmp_path):
    """All of bsdtar's formats."""
    if not archives.has("bsdtar"):
        pytest.skip("bsdtar is not installed")
    content = archives.by_bsdtar(members(samples(style)), tmp_path, format=kind)
    (tmp_path / "a.tar").write_bytes(content)
    assert_clean(tmp_path / "a.tar")


@pytest.mark.parametrize(("kind", "style"), held("ustar", "gnu", "pax"))
def test_tarfile(kind, style, tmp_path):
    """Python's own module, PAX headers for fractional times included."""
    (tmp_path / "a.tar").write_bytes(archives.by_tarfile(members(samples(style)), format=kind, mtime=1.25))
    assert_clean(tmp_path / "a.tar")


@pytest.mark.parametrize("style", ["plain", "folders", "long", "unicode", "img2dataset"])
@pytest.mark.parametrize("version", PUBLISHED)
def test_published_versions(version, style, tmp_path):
    """Shards that published versions wrote, plain and compressed, in the layout of img2dataset too."""
    import base64

    python = os.environ.get(PUBLISHED[version], "")
    if not os.path.exists(python):
        pytest.skip(f"{PUBLISHED[version]} names no interpreter")
    made = [
        {"__key__": key, **{field: "=" + base64.b64encode(payload).decode() for field, payload in fields.items()}}
        for key, fields in samples(style)
    ]
    for suffix in (".tar", ".tar.gz"):
        target = tmp_path / f"a{suffix}"
        subprocess.run(
            [python, "-c", WRITE, target, json.dumps({"encoder": False})],
            input=json.dumps(made).encode(),
            check=True,
        )
        assert_clean(target)


@pytest.mark.parametrize("form", [None, "gnu", "pax"])
@pytest.mark.parametrize("style", ["plain", "folders", "long", "unicode", "img2dataset"])
def test_ours(form, style, tmp_path):
    """Shards of this library, in every compression, and with the index files that record their digests."""
    for suffix in (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"):
        target = tmp_path / f"a{suffix}"
        with TarWriter(str(target), encoder=False, format=form) as sink:
            for key, fields in samples(style):
                sink.write({"__key__": key, **fields})
        assert_clean(target)
    target = tmp_path / "a.tar"
    wds.write_indexes(str(target), formats=("files",))
    recorded = json.loads((tmp_path / "a.json").read_bytes())
    assert recorded["hash"] == hashlib.sha1(target.read_bytes()).hexdigest()
    assert_clean(target)
