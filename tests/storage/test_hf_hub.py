"""The stand-in for the hub against ``huggingface_hub``: what that writes we read, and the reverse."""

import os
from pathlib import Path

import pytest
from packaging.version import Version

import webdataset as wds
from support.hf_server import TOKEN, hf_server
from webdataset.storage.listing import list_urls

theirs = pytest.importorskip("huggingface_hub")
# Their package imports its modules at first use of one of its names, but not this one.
errors = pytest.importorskip("huggingface_hub.errors")
ELSEWHERE = pytest.mark.skipif(
    Version(theirs.__version__) < Version("1.4"), reason="huggingface_hub before 1.4 fails at endpoints of others"
)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one dataset."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with hf_server(page=3) as running:
        running.put(
            "me/data", {f"train/{number}.tar": bytes([number]) * 5000 for number in range(7)} | {"README.md": b"x"}
        )
        running.put("me/gated", {"a.tar": b"x" * 5000}, access="gated")
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def downloaded(hub, path, tmp_path, **options):
    """Download a file by them."""
    given = {
        "repo_type": "dataset",
        "endpoint": hub.endpoint,
        "cache_dir": tmp_path / "cache",
        "token": False,
        **options,
    }
    return Path(theirs.hf_hub_download("me/data", path, **given)).read_bytes()


@pytest.mark.parametrize("path", ["README.md", "train/3.tar"])
def test_files_agree(hub, tmp_path, path):
    """Small and large ones, the same bytes by both."""
    with wds.gopen(f"hf://datasets/me/data/{path}") as stream:
        assert stream.read() == downloaded(hub, path, tmp_path)


@ELSEWHERE
def test_lists_agree(hub):
    """Trees over pages, globs of their file system."""
    api = theirs.HfApi(endpoint=hub.endpoint, token=False)
    tree = api.list_repo_tree("me/data", repo_type="dataset", recursive=True)
    files = sorted(entry.path for entry in tree if isinstance(entry, theirs.hf_api.RepoFile))
    assert list_urls("hf://datasets/me/data/**") == [f"hf://datasets/me/data/{path}" for path in files]
    system = theirs.HfFileSystem(endpoint=hub.endpoint, token=False, skip_instance_cache=True)
    found = [f"hf://{path}" for path in system.glob("datasets/me/data/train/*.tar")]
    assert list_urls("hf://datasets/me/data/train/*.tar") == found
    assert len(found) == 7
    with system.open("datasets/me/data/train/4.tar") as stream, wds.gopen("hf://datasets/me/data/train/4.tar") as ours:
        assert stream.read() == ours.read()


@ELSEWHERE
def test_uploads_both_ways(hub, tmp_path):
    """A file that they commit we read; one that we commit they download."""
    api = theirs.HfApi(endpoint=hub.endpoint, token=TOKEN)
    api.upload_file(path_or_fileobj=b"theirs" * 500, path_in_repo="t.bin", repo_id="me/data", repo_type="dataset")
    with wds.gopen("hf://datasets/me/data/t.bin") as stream:
        assert stream.read() == b"theirs" * 500
    with wds.gopen("hf://datasets/me/data/o.bin", "wb", storage_options={"token": TOKEN}) as stream:
        stream.write(b"ours" * 500)
    assert downloaded(hub, "o.bin", tmp_path) == b"ours" * 500


def test_refusals_are_understood(hub, tmp_path):
    """Their client takes the refusals for what they are meant to be."""
    for repo, options, kind in (
        ("me/gated", {}, errors.GatedRepoError),
        ("me/none", {}, errors.RepositoryNotFoundError),
        ("me/data", {"revision": "v9"}, errors.RevisionNotFoundError),
        ("me/data", {"filename": "none"}, errors.EntryNotFoundError),
    ):
        given = {"filename": "a.tar", "repo_type": "dataset", "endpoint": hub.endpoint, "token": False, **options}
        with pytest.raises(kind):
            theirs.hf_hub_download(repo, cache_dir=tmp_path, **given)
