"""What urls of the hub mean, and what its refusals say."""

import pytest

from webdataset.core.errors import NotFound, ShardChanged, SourceError, UsageError
from webdataset.storage.backends.huggingface_client import (
    parse_url,
    split,
    translate_refusal,
    translate_storage_refusal,
)
from webdataset.storage.retries import RetryableError


@pytest.mark.parametrize(
    ("url", "kind", "repo", "revision", "path"),
    [
        ("hf://datasets/me/data/a/b.tar", "datasets", "me/data", "main", "a/b.tar"),
        ("hf://datasets/me/data@v1.0/a@b.tar", "datasets", "me/data", "v1.0", "a@b.tar"),
        ("hf://datasets/me/data@refs%2Fpr%2F1/x", "datasets", "me/data", "refs/pr/1", "x"),
        ("hf://datasets/me/data@refs/convert/parquet/d/x", "datasets", "me/data", "refs/convert/parquet", "d/x"),
        ("hf://me/model/w%20w.bin", "models", "me/model", "main", "w%20w.bin"),
        ("hf://models/me/model/w.bin", "models", "me/model", "main", "w.bin"),
        ("hf://spaces/me/app/x", "spaces", "me/app", "main", "x"),
        ("hf://datasets/squad@main/x.json", "datasets", "squad", "main", "x.json"),
        ("hf://gpt2/config.json", "models", "gpt2", "main", "config.json"),
        ("HF://datasets/me/data/x", "datasets", "me/data", "main", "x"),
    ],
)
def test_urls(url, kind, repo, revision, path):
    """Kind, repository, revision, path."""
    assert parse_url(url) == (kind, repo, revision, path)
    assert split(url) == (url[: len(url) - len(path)], path)


def test_paths_on_the_hub():
    """Quoted where they have to be; models have no prefix."""
    place = parse_url("hf://datasets/me/data@refs%2Fpr%2F1/a b/ü#.tar")
    assert place.resolve() == "/datasets/me/data/resolve/refs%2Fpr%2F1/a%20b/%C3%BC%23.tar"
    assert place.tree("a b") == "/api/datasets/me/data/tree/refs%2Fpr%2F1/a%20b"
    assert parse_url("hf://me/m/x").resolve() == "/me/m/resolve/main/x"
    assert parse_url("hf://me/m/x").tree("") == "/api/models/me/m/tree/main"


@pytest.mark.parametrize(
    "url", ["hf://", "hf:///x", "hf://datasets/", "hf://@x/y", "hf://a/b/../c", "hf://buckets/a/b/c"]
)
def test_what_has_no_place(url):
    """It is said."""
    with pytest.raises(UsageError):
        parse_url(url)


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (404, {"X-Error-Code": "EntryNotFound"}, NotFound),
        (404, {}, NotFound),
        (401, {"X-Error-Code": "RepoNotFound"}, NotFound),
        (403, {"X-Error-Code": "GatedRepo"}, SourceError),
        (401, {}, SourceError),
        (403, {}, SourceError),
        (418, {}, SourceError),
        (416, {}, ShardChanged),
        (429, {}, RetryableError),
        (503, {}, RetryableError),
    ],
)
def test_refusals(status, headers, kind):
    """Each is the error that it should be, and no other."""
    assert type(translate_refusal(status, headers, "hf://x", "page")) is kind


def test_when_to_come_back():
    """By Retry-After, else by the seconds of the hub's own header."""
    limits = {"RateLimit": '"resolvers";r=0;t=55'}
    assert translate_refusal(429, limits, "", "").wait_seconds == 55
    assert translate_refusal(429, {**limits, "Retry-After": "7"}, "", "").wait_seconds == 7
    assert translate_refusal(503, limits, "", "").wait_seconds is None


def test_refusals_elsewhere():
    """A signed url that is refused has expired, as far as anybody can tell: the hub is asked for another."""
    assert translate_storage_refusal(403, {}, "").expired
    assert not translate_storage_refusal(500, {}, "").expired
    assert type(translate_storage_refusal(416, {}, "")) is ShardChanged
