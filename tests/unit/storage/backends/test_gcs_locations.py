"""What urls and options of Google Cloud Storage mean, without a service."""

import pytest

import webdataset as wds
from webdataset.core.errors import ConfigError, UsageError
from webdataset.storage.backends.gcs import split
from webdataset.storage.backends.gcs_client import ENDPOINT, parse_url, service_id
from webdataset.storage.storage_options import check_options

CANARY = "CANARY0123456789"


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    """No emulator in the environment."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def test_addresses():
    """The key is one part of the path, whatever is in it; parameters are quoted."""
    place = parse_url("gs://my_bucket.x/a/../b?c#d%20ü")
    assert place.address(alt="media", generation=None) == (
        f"{ENDPOINT}/storage/v1/b/my_bucket.x/o/a%2F..%2Fb%3Fc%23d%2520%C3%BC?alt=media"
    )
    assert place.address("upload/", name=place.key) == (
        f"{ENDPOINT}/upload/storage/v1/b/my_bucket.x/o?name=a%2F..%2Fb%3Fc%23d%2520%C3%BC"
    )
    assert parse_url("gs://b/k", {"user_project": "p"}).address() == f"{ENDPOINT}/storage/v1/b/b/o/k?userProject=p"


@pytest.mark.parametrize(
    ("url", "key", "generation"),
    [
        ("gs://b/k#1234567890123456", "k", "1234567890123456"),
        ("gs://b/k#123", "k#123", None),
        ("gs://b/k#12345678901234567", "k#12345678901234567", None),
        ("GS://b/line\nbreak", "line\nbreak", None),
        ("gs://b/", "", None),
        ("gs://b/k#1234567890123456\n", "k#1234567890123456\n", None),
    ],
)
def test_generations_have_sixteen_digits(url, key, generation):
    """Everything else after ``#`` is part of the key."""
    place = parse_url(url)
    assert (place.bucket, place.key, place.generation) == ("b", key, generation)


def test_urls_are_split():
    """Up to the bucket's slash, and the rest."""
    assert split("gs://b/a/*.tar") == ("gs://b/", "a/*.tar")
    with pytest.raises(UsageError, match="gs://bucket/key"):
        split("gs://b")


def test_services(monkeypatch):
    """Google's own by default; an emulator by option or environment; copies are named after the latter."""
    assert (parse_url("gs://b/k").service.endpoint, service_id("gs://b/k")) == (ENDPOINT, "")
    options = {"endpoint_url": "http://other:1/"}
    assert parse_url("gs://b/k", options).service == parse_url("gs://b/k", options).service
    assert service_id("gs://b/k", options) == "http://other:1"
    assert parse_url("gs://b/k", options).service.credentials is None
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "here:2")
    assert service_id("gs://b/k") == "http://here:2"
    assert parse_url("gs://b/k").service.credentials == "anon"
    assert parse_url("gs://b/k", options).service.credentials is None
    assert parse_url("gs://b/k", {"token": "google_default"}).service.credentials is None


def test_words_and_paths_as_tokens():
    """As gcsfs takes them; they are no secrets, and travel."""
    assert parse_url("gs://b/k", {"token": "anon"}).service.credentials == "anon"
    assert parse_url("gs://b/k", {"token": "/keys/a.json"}).service.credentials == "/keys/a.json"
    assert parse_url("gs://b/k", {"credentials": "/keys/a"}).service.credentials == "/keys/a"
    assert parse_url("gs://b/k", {"token": CANARY}).service.token.reveal() == CANARY


@pytest.mark.parametrize(
    "given",
    [{"token": CANARY}, {"credentials": {"key": CANARY}}, {"credentials": "{" + CANARY}, {"token": {"k": CANARY}}],
)
def test_secrets_are_not_shown(given):
    """Neither by options nor by places."""
    options = check_options(given)
    assert CANARY not in repr(options) + repr(parse_url("gs://b/k", options))


def test_a_word_for_google_is_a_token_elsewhere():
    """``anon`` means nothing to a web server: it is sent as it stands."""
    from webdataset.storage.storage_options import options_for

    assert options_for("http", {"token": "anon"})["token"].reveal() == "anon"


def test_two_credentials():
    """They exclude each other."""
    with pytest.raises(ConfigError, match="exclude"):
        parse_url("gs://b/k", {"token": "x", "credentials": "/a"})


def test_the_schemes_are_served():
    """``gs`` and ``gcs`` open by this store."""
    assert wds.gopen_schemes["gs"].store == wds.gopen_schemes["gcs"].store == "gcs"
