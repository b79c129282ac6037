"""``wds info``, ``wds grep`` and ``wds diff`` as programs."""

import json

import pytest

from support.command import json_lines, run_wds, shell
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.testing import archives

jsonschema = pytest.importorskip("jsonschema")
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0%c\0\0\0\x02"


@pytest.fixture
def here(tmp_path):
    """Two shards: JSON in all samples, images in some."""
    for shard in range(2):
        members = []
        for number in range(4):
            key = f"k{shard}{number}"
            members.append((f"{key}.json", json.dumps({"n": number, "tags": ["a"] * number}).encode()))
            if number % 2:
                members.append((f"{key}.png", PNG % (number + 5)))
        (tmp_path / f"s-{shard}.tar").write_bytes(archives.by_hand(members))
    return tmp_path


def test_info_counts(here):
    """Samples, fields and sizes, by headers alone."""
    done = run_wds("info", "--json", "s-{0..1}.tar", cwd=here)
    (found,) = json_lines(done)
    jsonschema.validate(found, find_schemas()["info"])
    assert (found["shards"], found["samples"]) == (2, 8)
    assert found["samples_per_shard"] == {"s-0.tar": 4, "s-1.tar": 4}
    assert found["fields"]["png"]["samples"] == 4
    assert found["stored_bytes"] == sum((here / f"s-{shard}.tar").stat().st_size for shard in range(2))
    assert {tuple(shape["fields"]): shape["samples"] for shape in found["shapes"]} == {("json", "png"): 4, ("json",): 4}


def test_info_of_contents(here):
    """``--schema`` reads JSON and images: paths with their kinds, and the range of sizes."""
    (found,) = json_lines(run_wds("info", "--schema", "--json", here))
    jsonschema.validate(found, find_schemas()["info"])
    assert found["json_paths"]["json.n"] == {"integer": 8}
    assert found["json_paths"]["json.tags[]"] == {"string": 12}
    assert found["fields"]["png"]["widths"] == [6, 8]


def test_info_as_text(here):
    """The text says what is ragged."""
    text = run_wds("info", "--schema", here).stdout.decode()
    assert "samples  8 (4 to 4 a shard)" in text
    assert "4 (50.0%)" in text
    assert "json.tags[]" in text


def test_sizes_file(here):
    """``--sizes`` writes what open_clip reads; it replaces nothing without --force, and nothing with --dry-run."""
    run_wds("info", "--sizes", "sizes.json", "--dry-run", "s-{0..1}.tar", cwd=here)
    assert not (here / "sizes.json").exists()
    run_wds("info", "--sizes", "sizes.json", "s-{0..1}.tar", cwd=here)
    assert json.loads((here / "sizes.json").read_text()) == {"s-0.tar": 4, "s-1.tar": 4}
    done = run_wds("info", "--sizes", "sizes.json", "s-0.tar", cwd=here, status=exit_status.FAILED)
    assert b"--force" in done.stderr
    run_wds("info", "--sizes", "sizes.json", "--force", "s-0.tar", cwd=here)
    assert json.loads((here / "sizes.json").read_text()) == {"s-0.tar": 4}


def test_grep(here):
    """Keys of the samples for which the expression holds; 1 where there are none; 2 for a wrong expression."""
    assert run_wds("grep", "json.n > 2", "s-{0..1}.tar", cwd=here).stdout == b"k03\nk13\n"
    assert run_wds("grep", "png.width == 8", "-H", "s-1.tar", cwd=here).stdout == b"s-1.tar:3:k13\n"
    assert run_wds("grep", "-v", "json.n > 0", "s-0.tar", cwd=here).stdout == b"k00\n"
    assert run_wds("grep", "-c", "has('png')", here).stdout == b"4\n"
    assert run_wds("grep", "-m", "1", "True", here).stdout == b"k00\n"
    assert run_wds("grep", "json.n > 9", here, status=exit_status.NONE_FOUND).stdout == b""
    assert run_wds("grep", "-q", "True", here).stdout == b""
    run_wds("grep", "import os", here, status=exit_status.WRONG_USE)


def test_grep_as_json(here):
    """Lines are what the schema says."""
    lines = json_lines(run_wds("grep", "--json", "json.n == 1", here))
    lines += json_lines(run_wds("grep", "--json", "-c", "json.n == 1", here))
    for line in lines:
        jsonschema.validate(line, find_schemas()["grep"])
    assert [line.get("key") for line in lines] == ["k01", "k11", None]


def test_grep_where_the_expression_fails(here):
    """A sample for which it fails ends the search; with --on-error skip it is left out, and the status says so."""
    done = run_wds("grep", "png + 1", here, status=exit_status.FAILED)
    assert b"k00" in done.stderr
    done = run_wds("grep", "1 / (json.n - 1) < 0", "--on-error", "skip", here, status=exit_status.PARTIAL)
    assert done.stdout == b"k00\nk10\n"
    assert done.stderr.count(b"left out") == 2


def test_grep_stops_early(here):
    """``-q`` and ``-m`` do not open the shards that follow."""
    run_wds("grep", "-q", "True", "s-0.tar", "none.tar", cwd=here)
    assert run_wds("grep", "-m", "2", "True", "s-0.tar", "none.tar", cwd=here).stdout == b"k00\nk01\n"


def test_diff(here):
    """No difference is 0; differences are lines and 1; sharding does not matter."""
    run_wds("diff", "s-{0..1}.tar", "s-1.tar::s-0.tar", cwd=here)
    members = [("k00.json", b"{}"), ("new.txt", b"")]
    (here / "t.tar").write_bytes(archives.by_hand(members))
    done = run_wds("diff", "s-0.tar", "t.tar", cwd=here, status=exit_status.NONE_FOUND)
    assert done.stdout.splitlines() == [b"~ k00  ~json", b"- k01", b"- k02", b"- k03", b"+ new"]
    for line in json_lines(run_wds("diff", "--json", "s-0.tar", "t.tar", cwd=here, status=exit_status.NONE_FOUND)):
        jsonschema.validate(line, find_schemas()["diff"])
    assert run_wds("diff", "-q", "s-0.tar", "t.tar", cwd=here, status=exit_status.NONE_FOUND).stdout == b""


def test_find_the_broken_sample_from_the_help_alone(here):
    """Three commands find the sample that is empty among many shards."""
    (here / "s-1.tar").write_bytes(archives.by_hand([("k10.json", b"{}"), ("k11.json", b"{}"), ("k11.png", b"")]))
    done = shell("wds grep -H 'png.size == 0' 's-*.tar'", here)
    assert done.stdout == b"s-1.tar:1:k11\n"
