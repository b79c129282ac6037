"""Profiles against a real S3 service: the right keys are used, wrong ones are named, secrets stay where they are."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds
from support import s3_server
from support.profiles import bare_home
from webdataset import config
from webdataset.core.errors import SourceError, WebDatasetError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path, service, client):
    """A home with two profiles: one may do everything, the other may read one bucket; and a shard in two buckets."""
    place = bare_home(monkeypatch, tmp_path)
    text = ""
    for name, keys in (("writer", s3_server.WRITER), ("reader", s3_server.READER)):
        for field, value in zip(("ID", "KEY"), keys, strict=True):
            monkeypatch.setenv(f"MY_{name.upper()}_{field}", value)
        text += (
            f'[s3.profiles.{name}]\nendpoint_url = "{service.endpoint}"\naccess_key_id = "env:MY_{name.upper()}_ID"\n'
            f'secret_access_key = "env:MY_{name.upper()}_KEY"\nregion = "us-east-1"\n'
        )
    place.write_text(text)
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(3):
            sink.write({"__key__": f"k{number}", "txt": str(number)})
    for bucket in ("shards", "other"):
        client.put_object(Bucket=bucket, Key="config/a.tar", Body=(tmp_path / "a.tar").read_bytes())
    with config.temporary():
        yield place


def keys(url, **options):
    """Return the keys of a shard's samples, and its url as samples say it."""
    samples = list(wds.WebDataset(url, shardshuffle=False, **options))
    return [sample["__key__"] for sample in samples], samples[0]["__url__"]


@pytest.mark.parametrize("url", ["s3+reader://shards/config/a.tar", "reader:s3://shards/config/a.tar"])
def test_both_forms_read(url):
    """The samples come, and their __url__ is the url as it was written."""
    assert keys(url) == (["k0", "k1", "k2"], url)


def test_right_keys_are_used(file):
    """What one profile may not read, the other may; the refusal names the profile's url and no secret."""
    assert keys("s3+writer://other/config/a.tar")[0] == ["k0", "k1", "k2"]
    with pytest.raises(SourceError, match="AccessDenied") as caught:
        keys("s3+reader://other/config/a.tar")
    assert "s3+reader://" in str(caught.value)
    assert s3_server.READER[1] not in str(caught.value)


def test_refusal_names_the_profile_of_a_route(file):
    """Where the url says no profile, the error does: which, and where it is defined."""
    config.route("s3://other", "reader")
    with pytest.raises(SourceError, match="S3 profile 'reader'") as caught:
        keys("s3://other/config/a.tar")
    assert f"{file}:" in str(caught.value)
    wrong = {"profile": "reader", "key": s3_server.READER[0], "secret": "cAnArY-of-a-key"}
    with pytest.raises(SourceError, match="SignatureDoesNotMatch.*S3 profile 'reader'") as caught:
        keys("s3://shards/config/a.tar", storage_options=wrong)
    assert "cAnArY" not in str(caught.value)


def test_routes_and_schemes():
    """Two buckets, two profiles, one dataset; and a scheme of one's own."""
    config.route("s3://shards", "reader")
    config.route("s3://other", "writer")
    config.route("inhouse://", "writer", target="s3://other/config")
    urls = ["s3://shards/config/a.tar", "s3://other/config/a.tar", "inhouse://a.tar"]
    samples = list(wds.WebDataset(urls, shardshuffle=False))
    assert [sample["__url__"] for sample in samples] == [url for url in urls for _ in range(3)]


def test_storage_options(service):
    """A profile by name, and fields in the place of one; the cache reads through them too."""
    assert len(keys("s3://shards/config/a.tar", storage_options={"profile": "reader"})[0]) == 3
    given = {"endpoint_url": service.endpoint, "key": "env:MY_READER_ID", "secret": "env:MY_READER_KEY"}
    assert len(keys("s3://shards/config/a.tar", storage_options=given)[0]) == 3
    with pytest.raises(WebDatasetError, match="AccessDenied"):
        keys("s3+writer://other/config/a.tar", storage_options={"profile": "reader"})


def test_cache_reads_with_storage_options(tmp_path):
    """Downloads go through them."""
    (tmp_path / "cache").mkdir()
    for _ in range(2):
        read, _ = keys(
            "s3://shards/config/a.tar", storage_options={"profile": "reader"}, cache_dir=str(tmp_path / "cache")
        )
        assert len(read) == 3


def test_writing_with_a_profile():
    """Urls are opened with profiles and storage options for writing, too."""
    with wds.gopen("s3+writer://other/config/b", "wb") as sink:
        sink.write(b"one")
    with wds.gopen("s3://other/config/b", storage_options={"profile": "writer"}) as stream:
        assert stream.read() == b"one"


def test_secret_in_no_command_line(file):
    """A loader's spawned workers find the profile in the file; nobody's command line or sample holds a secret."""
    pytest.importorskip("torch")
    file.write_text(file.read_text().replace("env:MY_READER_KEY", s3_server.READER[1]))
    file.chmod(0o600)
    code = """
import glob, sys, torch, webdataset as wds
def seen(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        wds.WebDataset(["s3+reader://shards/config/a.tar"] * 4, shardshuffle=False),
        batch_size=None, num_workers=2, multiprocessing_context="spawn")
    count = 0
    for sample in loader:
        lines = b"".join(seen(path) for path in glob.glob("/proc/[0-9]*/cmdline"))
        assert b"spawn_main" in lines
        assert sys.argv[1].encode()[::-1] not in lines
        assert sys.argv[1][::-1] not in str(sample)
        count += 1
    print(count)
"""
    script = file.parent / "script.py"
    script.write_text(code)
    words = [sys.executable, str(script), s3_server.READER[1][::-1]]
    child = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ.copy())
    assert child.stdout == "12\n", child.stderr
    assert s3_server.READER[1] not in child.stderr


def test_pickled_dataset_reads_on_the_other_side(file):
    """The pickle of a dataset holds no secret, and another process reads with it."""
    file.write_text(file.read_text().replace("env:MY_READER_KEY", s3_server.READER[1]))
    file.chmod(0o600)
    pickled = pickle.dumps(wds.WebDataset("s3://shards/config/a.tar", storage_options={"profile": "reader"}))
    assert s3_server.READER[1].encode() not in pickled
    code = "import pickle, sys; print(len(list(pickle.loads(bytes.fromhex(sys.stdin.read())))))"
    child = subprocess.run(
        [sys.executable, "-c", code], input=pickled.hex(), capture_output=True, text=True, check=False
    )
    assert child.stdout == "3\n", child.stderr


def test_random_access_with_storage_options(file):
    """Index, header walk and positioned reads go through them too; a url that is not S3's refuses them."""
    shard = wds.IndexedShard("s3://shards/config/a.tar", storage_options={"profile": "reader"})
    assert [shard[number]["txt"] for number in (2, -3)] == [b"2", b"0"]
    index = wds.index_shard("s3://shards/config/a.tar", storage_options={"profile": "reader"})
    assert [entry.key for entry in index.entries] == ["k0", "k1", "k2"]
    with pytest.raises(WebDatasetError, match="AccessDenied"):
        wds.IndexedShard("s3://other/config/a.tar", storage_options={"profile": "reader"})[0]
    with pytest.raises(WebDatasetError, match="does not apply here"):
        wds.IndexedShard("http://127.0.0.1:9/a.tar", storage_options={"profile": "reader"})[0]
