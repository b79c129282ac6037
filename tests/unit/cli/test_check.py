"""``wds check``: findings as lines and as JSON, the exit status, repaired copies."""

import json

import pytest

from support.command import json_lines, run_wds, shell
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.testing import archives

jsonschema = pytest.importorskip("jsonschema")

GOOD = [("0.txt", b"one"), ("0.json", b"{}"), ("1.txt", b"two"), ("1.json", b"[1]")]


@pytest.fixture
def shards(tmp_path):
    """A good shard, one with a broken field and no end mark, one cut."""
    good = archives.by_hand(GOOD)
    (tmp_path / "good.tar").write_bytes(good)
    (tmp_path / "bad.tar").write_bytes(
        archives.by_hand([("5.txt", b"x"), ("5.json", b"{"), ("6.txt", b"y"), ("6.json", b"1")], end=b"")
    )
    (tmp_path / "cut.tar").write_bytes(good[:2000])
    return tmp_path


def test_no_findings(shards):
    """Status 0 and one line that counts."""
    done = run_wds("check", shards / "good.tar")
    assert done.stdout.decode() == "1 shard, 2 samples: 0 errors, 0 warnings, 0 notes\n"


def test_findings(shards):
    """One line a finding, with url, offset, severity, code and member; status 1."""
    lines = (
        run_wds("check", "bad.tar", "good.tar", status=exit_status.NONE_FOUND, cwd=shards).stdout.decode().splitlines()
    )
    assert lines[0].startswith("bad.tar:1024: error: bad-json: ")
    assert lines[0].endswith("[5.json]")
    assert lines[-1] == "2 shards, 4 samples: 3 errors, 0 warnings, 0 notes"


def test_what_was_not_read_is_said(shards):
    """The range of bytes that a cut leaves unread."""
    lines = run_wds("check", "cut.tar", status=1, cwd=shards).stdout.decode().splitlines()
    assert "cut.tar: bytes 1024 to 2000 could not be read" not in lines
    assert any(line.startswith("cut.tar: bytes ") and line.endswith(" could not be read") for line in lines)
    assert any(": error: cut: " in line for line in lines)


def test_secrets_of_urls_are_not_shown(shards):
    """Findings hold no password of a url, as lines and as JSON."""
    url = "pipe:cat cut.tar; : token=hush"
    done = run_wds("check", url, status=1, cwd=shards)
    assert b"token=*** could" not in done.stdout
    assert b"token=***: bytes " in done.stdout
    assert b"hush" not in done.stdout + done.stderr
    assert b"hush" not in run_wds("check", "--json", url, status=1, cwd=shards).stdout


def test_json(shards):
    """One object a shard, as the schema says, whose offsets and keys programs can use."""
    values = json_lines(
        run_wds("check", "--json", *(shards / f"{name}.tar" for name in ("bad", "good", "cut")), status=1)
    )
    validator = jsonschema.Draft202012Validator(find_schemas()["check"])
    for value in values:
        validator.validate(value)
    assert [len(value["findings"]) > 0 for value in values] == [True, False, True]
    assert {"code": "bad-json", "key": "5", "field": "json", "offset": 1024}.items() <= values[0]["findings"][0].items()


def test_level_and_no_decode(shards):
    """What is listed, and what makes the status 1, can be chosen; without decoding no field is looked at."""
    assert b"bad-json" not in run_wds("check", "--no-decode", shards / "bad.tar", status=1).stdout
    (shards / "empty.tar").write_bytes(archives.by_hand([*GOOD, ("2.txt", b""), ("2.json", b"1")]))
    assert b"empty-member" not in run_wds("check", shards / "empty.tar").stdout
    assert b"empty-member" in run_wds("check", "--level", "note", shards / "empty.tar", status=1).stdout


def test_most(shards):
    """So many findings of a kind are listed, the others counted."""
    members = [(f"{n}.json", b"{") for n in range(9)]
    (shards / "many.tar").write_bytes(archives.by_hand(members))
    lines = run_wds("check", "--most", "2", "many.tar", status=1, cwd=shards).stdout.decode().splitlines()
    assert sum(": bad-json:" in line for line in lines) == 2
    assert "many.tar: 7 more of bad-json" in lines
    assert lines[-1].endswith("9 errors, 0 warnings, 0 notes")


def test_standard_input(shards):
    """A pipe is checked as a file is."""
    done = shell("cat bad.tar | wds check -", shards)
    assert done.returncode == 1
    assert b"-:1024: error: bad-json" in done.stdout


def test_fix(shards):
    """Copies of the shards that need one, a report, and the shards as they were; a second time needs --force."""
    before = (shards / "bad.tar").read_bytes()
    arguments = ("check", "--fix", "out", "bad.tar", "good.tar")
    done = run_wds(*arguments, status=1, cwd=shards).stdout.decode()
    assert "bad.tar: repaired copy out/bad.tar: 1 sample, 1 beside damage in out/bad.tar.doubtful" in done
    assert sorted(path.name for path in (shards / "out").iterdir()) == ["bad.tar", "bad.tar.doubtful", "repair.json"]
    assert (shards / "bad.tar").read_bytes() == before
    listed = run_wds("ls", "out", cwd=shards).stdout.decode().splitlines()
    assert len(listed) == 1, "the folder's shards hold samples that may lack fields"
    assert run_wds(*arguments, status=exit_status.FAILED, cwd=shards).stderr
    done = run_wds(*arguments, "--force", "--json", status=1, cwd=shards)
    validator = jsonschema.Draft202012Validator(find_schemas()["check"])
    for value in json_lines(done):
        validator.validate(value)
    assert json.loads((shards / "out" / "repair.json").read_text())["shards"][0]["samples"] == 1


def test_what_cannot_be_opened(tmp_path):
    """A shard that is not there is a finding, and the next one is checked."""
    (tmp_path / "good.tar").write_bytes(archives.by_hand(GOOD))
    lines = run_wds("check", "none.tar", "good.tar", status=1, cwd=tmp_path).stdout.decode().splitlines()
    assert lines[0].startswith("none.tar: error: unreadable: ")
    assert lines[-1].startswith("2 shards, 2 samples")
