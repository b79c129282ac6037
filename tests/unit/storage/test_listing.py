"""Wildcards in the names of objects, and lists of services that do not keep to the rules."""

import pytest

from webdataset import config
from webdataset.core.errors import SourceError, UsageError
from webdataset.storage import http_client, listing
from webdataset.storage.backends import aistore_client as ais_places
from webdataset.storage.backends import memory
from webdataset.storage.backends import s3 as s3_listing
from webdataset.storage.open_url import open_url


@pytest.fixture(autouse=True)
def keys():
    """Begin and end without objects."""
    memory.clear("wild")
    yield
    memory.clear("wild")


def listed(pattern, *names):
    """Return the names that a pattern stands for."""
    for name in names:
        with open_url(f"memory://wild/{name}", "wb") as stream:
            stream.write(b"x")
    return [url.removeprefix("memory://wild/") for url in listing.list_urls(f"memory://wild/{pattern}")]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("x[a--b]", ["x-", "xa"], ["x+", "x*"]),
        ("x[&&a]", ["x&", "xa"], ["xb"]),
        ("x[a||b]", ["xa", "x|"], ["xc"]),
        ("x[]a]y", ["x]y", "xay"], ["x[]a]"]),
        ("x[!]]", ["xa"], ["x]"]),
        ("x[.-0]y", ["x.y", "x0y"], ["x/y"]),
        ("x[!a]y", ["xby"], ["x/y", "xay"]),
        ("x[[]1]", ["x[1]"], ["x1"]),
    ],
)
def test_sets_mean_what_they_mean_for_files(pattern, matching, others):
    """No character of a set is an operator of regular expressions, and none matches a slash."""
    assert listed(pattern, *matching, *others) == sorted(matching)


def test_a_set_that_makes_no_sense():
    """A range that runs backwards is an error of ours."""
    with pytest.raises(UsageError, match="wildcards make no sense"):
        listed("x[z-a]", "xz")


def test_a_service_that_ignores_the_prefix(monkeypatch):
    """What a service lists beside what was asked for is left out."""
    monkeypatch.setattr(memory, "list_keys", lambda *_: iter(["folder/a", "other/b"]))
    assert listed("folder/") == ["folder/a"]


def test_a_list_without_end():
    """A page that leads to itself is an error."""
    assert http_client.next_page("b", "a", "s3://b/") == "b"
    assert http_client.next_page("", "a", "s3://b/") is http_client.next_page(None, None, "s3://b/") is None
    with pytest.raises(SourceError, match="over and over"):
        http_client.next_page("a", "a", "s3://b/")


def test_routes_lead_lists_too(monkeypatch):
    """Keys below the folder of a route's target are listed by what they are called on the route."""
    asked = []

    def call(_, name, **arguments):
        asked.append((name, arguments["Bucket"], arguments["Prefix"]))
        return {"Contents": [{"Key": "prefix/a/1.tar"}, {"Key": "elsewhere/2.tar"}]}

    monkeypatch.setattr(s3_listing.S3Client, "call", call)
    monkeypatch.setattr(s3_listing.S3Client, "__init__", lambda *_: None)
    with config.temporary():
        config.profile("routed", endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
        config.route("training://", "routed", target="s3://bucket/prefix")
        assert listing.list_urls("training://a/*.tar") == ["training://a/1.tar"]
        assert asked == [("list_objects_v2", "bucket", "prefix/a/")]


def test_a_list_that_continues_nowhere(monkeypatch):
    """A service that does not say where its list continues is an error, not half a list."""
    monkeypatch.setattr(s3_listing.S3Client, "call", lambda *_, **__: {"IsTruncated": True, "Contents": [{"Key": "a"}]})
    monkeypatch.setattr(s3_listing.S3Client, "__init__", lambda *_: None)
    with pytest.raises(SourceError, match="list continues, and not where"):
        listing.list_urls("s3://bucket/")


@pytest.mark.parametrize(
    ("split", "url"),
    [(s3_listing.split, "s3://b/x*.tar?versionId=1"), (ais_places.split, "ais://b/t-*.tar?archpath=t-*.tar")],
)
def test_lists_have_no_query(split, url):
    """What asks for one object does not stand behind wildcards."""
    with pytest.raises(UsageError, match="a list of objects has no"):
        split(url)


def test_the_brackets_of_an_address_are_no_wildcard():
    """An object on a host without a name is one object, and not all those whose names begin so."""
    assert listing.list_urls("ssh://[::1]/data/a.tar") is None
    assert listing.list_urls("ssh://[fe80::1]:22/data/a.tar") is None
