"""``wds cache``: over directories that the library's own cache has filled."""

import http.server
import os
import threading
from functools import partial

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.cache import parse_size
from webdataset.cli.schema import find_schemas
from webdataset.core.errors import UsageError

jsonschema = pytest.importorskip("jsonschema")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def site(tmp_path):
    """Return the address of a web server with three shards."""
    folder = tmp_path / "site"
    folder.mkdir()
    for number in range(3):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(5):
                sink.write({"__key__": f"{number}-{index}", "cls": index})
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def cache(tmp_path, site):
    """Return a directory that a dataset has read three shards into, with a file of the user's beside them."""
    folder = tmp_path / "cache"
    assert len(list(wds.WebDataset(f"{site}/s-{{0..2}}.tar", cache_dir=str(folder), shardshuffle=False))) == 15
    (folder / "mine.tar").write_bytes(b"mine")
    return folder


def lines(*arguments, status=0):
    """Return what a part of ``wds cache`` prints as JSON."""
    values = json_lines(run_wds("cache", *arguments, "--json", status=status))
    validator = jsonschema.Draft202012Validator(find_schemas()["cache"])
    for value in values:
        validator.validate(value)
    return values


def test_ls(cache, site):
    """Downloads with their urls, files of the user's without; a sum at the end."""
    values = lines("ls", cache)
    assert sorted(value["state"] for value in values) == ["own", "whole", "whole", "whole"]
    urls = {value["url"] for value in values if value["state"] == "whole"}
    assert urls == {f"{site}/s-{number}.tar" for number in range(3)}
    text = run_wds("cache", "ls", cache).stdout.decode()
    assert text.splitlines()[-1].startswith("4 files, ")
    assert b"no cache directory" in run_wds("cache", "ls", cache.parent, status=exit_status.FAILED).stderr
    assert b"no such cache" in run_wds("cache", "ls", cache / "none", status=exit_status.FAILED).stderr


def test_verify(cache, site):
    """Damage is found by the checksum, also where size and time are the same; ``--delete`` lets it come again."""
    assert [value["state"] for value in lines("verify", cache)] == ["whole"] * 3
    victim = next(cache / value["name"] for value in lines("ls", cache) if value["state"] == "whole")
    before = victim.stat()
    content = bytearray(victim.read_bytes())
    content[600] ^= 1
    with victim.open("r+b") as stream:
        stream.write(content)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    values = lines("verify", cache, status=exit_status.NONE_FOUND)
    assert [value["name"] for value in values if value["state"] == "damaged"] == [victim.name]
    lines("verify", "--delete", cache, status=exit_status.NONE_FOUND)
    assert not victim.exists()
    assert [value["state"] for value in lines("verify", cache)] == ["whole"] * 2
    assert len(list(wds.WebDataset(f"{site}/s-{{0..2}}.tar", cache_dir=str(cache), shardshuffle=False))) == 15


def test_a_download_that_was_written_to(cache):
    """A file that is another one since is changed, not damaged."""
    victim = next(cache / value["name"] for value in lines("ls", cache) if value["state"] == "whole")
    victim.write_bytes(b"else")
    states = {value["name"]: value["state"] for value in lines("verify", cache, status=exit_status.NONE_FOUND)}
    assert states[victim.name] == "changed"


def test_prune_by_size(cache):
    """What was used longest ago goes first, until the rest fits; nothing of the user's goes."""
    names = [value["name"] for value in lines("ls", cache) if value["state"] == "whole"]
    for age, name in enumerate(names):
        os.utime(cache / name, (1_600_000_000 + age, (cache / name).stat().st_mtime))
    sizes = sum(value["size_bytes"] for value in lines("ls", cache))
    planned = lines("prune", cache, "--size", str(sizes - 1), "--dry-run")
    assert [value["name"] for value in planned] == names[:1]
    assert (cache / names[0]).exists()
    assert lines("prune", cache, "--size", str(sizes - 1)) == planned
    assert not (cache / names[0]).exists()
    assert lines("prune", cache, "--size", "1G") == []


def test_prune_by_age_and_all(cache):
    """Unused for so many days; or everything but the user's own."""
    names = [value["name"] for value in lines("ls", cache) if value["state"] == "whole"]
    os.utime(cache / names[1], (1_600_000_000, (cache / names[1]).stat().st_mtime))
    assert [value["name"] for value in lines("prune", cache, "--days", "30")] == [names[1]]
    assert len(lines("prune", cache, "--all")) == 2
    assert [value["state"] for value in lines("ls", cache)] == ["own"]
    assert b"one of" in run_wds("cache", "prune", cache, status=exit_status.WRONG_USE).stderr


def test_warm(tmp_path, site):
    """Shards are there afterwards, as a dataset finds them; what cannot be had is said, and the rest kept."""
    folder = tmp_path / "fresh"
    values = lines("warm", folder, f"{site}/s-{{0..1}}.tar", f"{site}/none.tar", status=exit_status.PARTIAL)
    assert [value["state"] for value in values] == ["kept", "kept", "failed"]
    assert [value["state"] for value in lines("verify", folder)] == ["whole", "whole"]
    (tmp_path / "site" / "s-0.tar").unlink()
    read = wds.WebDataset(f"{site}/s-0.tar", cache_dir=str(folder), cache_revalidate="never", shardshuffle=False)
    assert len(list(read)) == 5


def test_sizes():
    """Numbers with units of 1000."""
    assert [parse_size(text) for text in ("1000", "20M", "1.5GB", "2t", "3kB")] == [
        1000, 20_000_000, 1_500_000_000, 2 * 10**12, 3000,
    ]  # fmt: skip
    for wrong in ("", "G", "-1", "1x", "nan", "inf"):
        with pytest.raises(UsageError):
            parse_size(wrong)
