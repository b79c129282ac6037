"""Index files of other systems: written, read, and refused with the reason where they cannot hold a shard."""

import json
import re
import struct

import pytest

from support import zoo
from webdataset.core.errors import BadIndex, NotRepresentable, UsageError
from webdataset.index.build import index_shard
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import dali, energon, files_json
from webdataset.index.formats.table import parse_formats, select_hashes
from webdataset.testing import archives

REFUSED = {
    "dali": {"empty_extension", "space_in_extension", "sparse", "empty"},
    "energon": {"sparse", "joined"},
    "files": {"sparse", "not_utf8"},
}
MODULES = {"dali": dali, "energon": energon, "files": files_json}
WHOLE = [name for name in zoo.names() if name not in ("duplicate_member", "split_samples", "no_end_mark")]


def indexed(tmp_path, name, **options):
    """Index of one shard of the zoo."""
    return index_shard(zoo.build(tmp_path, [name])[name], **options)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("name", WHOLE)
def test_a_format_holds_a_shard_or_says_why_not(tmp_path, kind, name):
    """Exactly the shards listed above are refused; the others are written."""
    index = indexed(tmp_path, name)
    if name in REFUSED[kind]:
        with pytest.raises(NotRepresentable) as caught:
            MODULES[kind].dumps(index)
        assert caught.value.url == index.url
    else:
        assert MODULES[kind].dumps(index)


@pytest.mark.parametrize("kind", MODULES)
def test_compressed_shards_have_no_offsets(tmp_path, kind):
    """They are refused, with the compression named."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archives.compressed(zoo.exhibit("plain").archive, "gz"))
    with pytest.raises(NotRepresentable, match=r"compressed \(gz\)"):
        MODULES[kind].dumps(index_shard(path))


def test_dali_text(tmp_path):
    """The file as DALI's reader wants it, in both versions."""
    index = indexed(tmp_path, "plain")
    lines = dali.dumps(index).decode().splitlines()
    assert lines[:2] == ["v1.2 3", "cls 512 1 0001.cls jpg 1536 200 0001.jpg"]
    assert dali.dumps(index, version="v1.1").decode().splitlines()[:2] == ["v1.1 3", "cls 512 1 jpg 1536 200"]
    with pytest.raises(UsageError):
        dali.dumps(index, version="v1.0")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        dali.dumps(index, unfit="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["spaces", "blanks", "not_utf8", "dots", "gnu_long", "mixed_case", "dotfile"])
def test_dali_round_trip(tmp_path, name):
    """What is written is read back: offsets, sizes, extensions as archived, and names with their blanks."""
    index = indexed(tmp_path, name)
    content = dali.dumps(index)
    assert all(len(line.split()) % 4 == 0 for line in content.split(b"\n")[1:-1])
    found = dali.loads(content)
    fields = [field for entry in index.entries for field in entry.fields]
    parts = [part for line in found for part in line]
    assert [(part.offset, part.size) for part in parts] == [(field.offset, field.size) for field in fields]
    names = [re.sub("%(20|09|0A|0B|0C|0D|25)", lambda code: chr(int(code[1], 16)), part.name) for part in parts]
    assert names == [field.member for field in fields]
    assert all(part.name.endswith(part.extension) for part in parts)
    assert all(offset % 512 == 0 for _, offset, _, _ in parts)


def test_dali_leaves_out_what_it_cannot_hold_where_asked_to(tmp_path):
    """One warning with the number; a sample that has nothing left is left out, too."""
    with pytest.warns(UserWarning, match="1 members were left out"):
        found = dali.loads(dali.dumps(indexed(tmp_path, "empty_extension"), unfit="omit"))
    assert [[part.extension for part in line] for line in found] == [["jpg"], ["jpg"]]
    with pytest.warns(UserWarning, match="left out"):
        assert len(dali.loads(dali.dumps(indexed(tmp_path, "space_in_extension"), unfit="omit"))) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"", b"v1.3 1\njpg 512 1 a.jpg\n", b"v1.2\n", b"v1.2 x\n", b"v1.2 2\njpg 512 1 a.jpg\n", b"v1.2 1\njpg 512 1\n",
        b"v1.2 1\njpg 513 1 a.jpg\n", b"v1.2 1\njpg -512 1 a.jpg\n", b"v1.2 1\n\n", b"v1.1 1\njpg 512 1 a.jpg\n",
        b"v1.2 0\njpg 512 1 a.jpg\n", b"\x80\x04pickled",
    ],
)  # fmt: skip
def test_dali_files_that_are_none(content):
    """BadIndex names the file."""
    with pytest.raises(BadIndex) as caught:
        dali.loads(content, url="x.idx")
    assert caught.value.url == "x.idx"


@pytest.mark.parametrize(
    ("url", "name"),
    [("d.d/x.tar", "d.d/x.idx"), ("x.y.tar", "x.y.idx"), ("http://h.org/x.tar", "http://h.org/x.idx"), ("x", "x.idx")],
)
def test_names_of_dali_files(url, name):
    """That of the shard, so that no two shards of a folder have one; DALI's tool stops at the first dot."""
    assert dali.index_name(url) == name
    assert dali.tool_name(url) == name.replace("x.y", "x")


def test_energon_numbers(tmp_path):
    """Offsets of first headers, then of the end mark; folders and records belong to what follows."""
    assert energon.dumps(indexed(tmp_path, "plain")) == struct.pack("<4Q", 0, 2048, 4096, 6144)
    folders = energon.loads(energon.dumps(indexed(tmp_path, "folders")))
    assert list(folders) == [1536, 3584, 5632, 7680]
    assert list(energon.loads(energon.dumps(indexed(tmp_path, "empty")))) == [0]
    assert energon.index_name("a/x.tar") == "a/x.tar.idx"


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<2Q", 512, 512), struct.pack("<2Q", 0, 700)])
def test_energon_files_that_are_none(content):
    """Empty, cut, not rising, not at a block."""
    with pytest.raises(BadIndex):
        energon.loads(content)


def test_files_json(tmp_path):
    """The sidecar of public datasets, with digests where they are known."""
    index = indexed(tmp_path, "plain", hashes=["sha1", "sha256"])
    content = json.loads(files_json.dumps(index))
    assert content["filesize"] == index.size_bytes
    assert (content["hash"], content["hash_lfs"]) == (index.hashes["sha1"], index.hashes["sha256"])
    assert content["files"]["0001.jpg"] == {"offset": 1536, "size": 200}
    found = files_json.loads(files_json.dumps(index))
    assert found.size_bytes == index.size_bytes
    assert found.hashes == index.hashes
    assert "hash" not in json.loads(files_json.dumps(indexed(tmp_path, "plain")))


def test_files_json_of_names_that_stand_twice(tmp_path):
    """A mapping holds a name once: refused, with the name."""
    index = indexed(tmp_path, "duplicate_member", duplicates="new")
    with pytest.raises(NotRepresentable, match="twice") as caught:
        files_json.dumps(index)
    assert caught.value.field == "1.jpg"


def test_the_other_variant_of_files_json():
    """``length`` for ``size``, and a second file in an entry; rows come by offset."""
    text = json.dumps({
        "filesize": 9, "files": {
            "b.webp": {"offset": 2048, "length": 5, "width": 3},
            "a.webp": {"offset": 512, "length": 3, "json_path": "a.json", "json_offset": 1536, "json_length": 2},
        },
    }).encode()  # fmt: skip
    assert files_json.loads(text).rows == [("a.webp", 512, 3), ("a.json", 1536, 2), ("b.webp", 2048, 5)]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"files": []}', b'{"files": {"a": 3}}', b'{"files": {"a": {"offset": -1, "size": 1}}}',
        b'{"files": {"a": {"offset": 1.5, "size": 1}}}', b'{"files": {"a": {"offset": true, "size": 1}}}',
        b'{"files": {"a": {"offset": 1}}}', b"[" * 100_000,
        b'{"files": {"a": {"offset": 512, "size": 1, "json_path": "b", "json_offset": "x"}}}',
    ],
)  # fmt: skip
def test_files_json_that_is_none(content):
    """BadIndex, whatever is wrong."""
    with pytest.raises(BadIndex):
        files_json.loads(content)


def test_names_of_formats():
    """One, several, each once; what they need to know of the shard."""
    assert parse_formats("dali") == ("dali",)
    assert parse_formats(["dali", "files", "dali"]) == ("dali", "files")
    assert select_hashes(["dali", "files", "wids"]) == ("sha1", "sha256", "md5")
    with pytest.raises(UsageError, match="'dali', 'energon', 'files', 'binary', 'wids'"):
        parse_formats("dahli")
    with pytest.raises(UsageError):
        parse_formats(3)


def test_an_empty_index_of_dali_is_refused():
    """Zero samples are more than its reader takes."""
    with pytest.raises(NotRepresentable, match="at least one"):
        dali.dumps(ShardIndex("x.tar", 1024, 0, []))
