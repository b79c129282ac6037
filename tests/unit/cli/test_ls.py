"""``wds ls`` and ``wds head``: what they print, as text and as JSON."""

import io
import json
import shutil
import subprocess
import tarfile

import pytest

from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.testing import archives

jsonschema = pytest.importorskip("jsonschema")


def check(command, values):
    """Fail where a line of output is not what the schema says."""
    validator = jsonschema.Draft202012Validator(find_schemas()[command])
    for value in values:
        validator.validate(value)


@pytest.fixture
def shard(tmp_path):
    """A shard of GNU tar's format with long names, a folder and metadata."""
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, payload in {
            "__info__": b"about",
            "d/a.txt": b"hello",
            "d/a.json": b'{"n": 1}',
            "d/" + "x" * 120 + ".png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x02",
        }.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(payload), 1_600_000_000, 0o640
            archive.addfile(member, io.BytesIO(payload))
    return tmp_path / "s.tar"


def test_samples(shard):
    """One line a sample: key and fields; metadata is no sample."""
    assert run_wds("ls", shard).stdout.decode().splitlines() == ["d/a\ttxt json", f"d/{'x' * 120}\tpng"]


def test_samples_with_sizes(shard):
    """``-l`` adds bytes, of the sample and of each field."""
    first, _ = run_wds("ls", "-l", shard).stdout.decode().splitlines()
    assert first.split() == ["13", "d/a", "txt:5", "json:8"]


def test_samples_as_json(shard):
    """One object a line, as the schema says."""
    values = json_lines(run_wds("ls", "--json", shard))
    check("ls", values)
    assert values[0]["fields"] == [{"field": "txt", "size_bytes": 5}, {"field": "json", "size_bytes": 8}]


def test_members_are_those_of_gnu_tar(shard):
    """``--members`` lists the files as ``tar -t`` does (which lists folders, too)."""
    if shutil.which("tar") is None:
        pytest.skip("no tar here")
    theirs = subprocess.run(["tar", "-tf", shard], capture_output=True, check=True).stdout
    files = [line for line in theirs.splitlines() if not line.endswith(b"/")]
    assert run_wds("ls", "--members", shard).stdout.splitlines() == files


def test_members_with_control_characters_are_escaped_as_by_gnu_tar(tmp_path):
    """Newlines, tabs, backslashes and escapes in names are written as GNU tar writes them."""
    if shutil.which("tar") is None:
        pytest.skip("no tar here")
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a\nb\tc\\d\x1b.txt", b"1")]))
    theirs = subprocess.run(["tar", "-tf", tmp_path / "s.tar"], capture_output=True, check=True).stdout
    assert run_wds("ls", "--members", tmp_path / "s.tar").stdout == theirs


def test_members_as_json(shard):
    """Mode and time come from the header."""
    values = json_lines(run_wds("ls", "--members", "--json", shard))
    check("ls", values)
    assert values[1] == {
        "member": "d/a.txt",
        "shard": str(shard),
        "size_bytes": 5,
        "mode": 0o640,
        "mtime": 1_600_000_000,
    }


def test_what_is_before_damage_is_listed(tmp_path):
    """A shard that is cut lists its whole samples, then fails."""
    whole = archives.by_hand([("a.txt", b"1"), ("b.txt", b"2" * 2000), ("c.txt", b"3" * 2000)])
    (tmp_path / "cut.tar").write_bytes(whole[: 1024 + 2560 + 600])
    done = run_wds("ls", tmp_path / "cut.tar", status=exit_status.FAILED)
    assert done.stdout == b"a\ttxt\nb\ttxt\n"
    assert b"c.txt" in done.stderr


def test_head(shard):
    """The first samples, a line a field: text, JSON, size of an image."""
    text = run_wds("head", "-n", "2", shard).stdout.decode()
    assert "text   hello" in text
    assert 'json   {"n": 1}' in text
    assert "image  3 x 2" in text


def test_head_stops_reading(shard, tmp_path):
    """``-n`` counts samples over all shards, and does not open what comes after."""
    done = run_wds("head", "-n", "1", "-f", "json", "--json", shard, tmp_path / "none.tar")
    values = json_lines(done)
    check("head", values)
    assert [list(value["fields"]) for value in values] == [["json"]]


def test_schema_command():
    """``wds schema`` prints what the tests validate against."""
    assert json.loads(run_wds("schema", "ls").stdout) == json.loads(json.dumps(find_schemas()["ls"]))
    assert run_wds("schema").stdout.split()[:2] == [b"ls", b"head"]
    assert b"no --json output" in run_wds("schema", "index", status=exit_status.WRONG_USE).stderr


@pytest.mark.parametrize("name", sorted(find_schemas()))
def test_schemas_are_schemas(name):
    """Each schema is one by the standard."""
    jsonschema.Draft202012Validator.check_schema(find_schemas()[name])
