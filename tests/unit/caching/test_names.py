"""Names in the cache: one for each object, whatever its signature."""

import pytest

from webdataset.caching.names import (
    cache_name,
    canonical_url,
    custom_names,
    is_cache_name,
    pipe_cleaner,
    user_file_names,
)
from webdataset.core.errors import UsageError

BASE = "https://host.example/b/train-000001.tar.gz"


def name(url):
    """Return the name of a url that is not rewritten."""
    return cache_name(url, url)


def test_stored_name_is_readable():
    """It begins and ends as the file's own name."""
    assert name(BASE).startswith("train-000001.url-")
    assert name(BASE).endswith(".tar.gz")
    assert is_cache_name(name(BASE))
    assert not is_cache_name("train-000001.tar.gz")
    assert not is_cache_name("a.url-3.tar")


DISTINCT = [
    BASE,
    "http://host.example/b/train-000001.tar.gz",
    "https://other.example/b/train-000001.tar.gz",
    "https://host.example:8080/b/train-000001.tar.gz",
    "https://host.example/c/train-000001.tar.gz",
    "https://host.example/b//train-000001.tar.gz",
    "https://host.example/B/train-000001.tar.gz",
    f"{BASE}?versionId=1",
    f"{BASE}?versionId=2",
    "https://host.example/get?key=a.tar",
    "https://host.example/get?key=b.tar",
    "https://host.example/get?sp=a&sig=1",
    "https://host.example/get?sp=b&sig=1",
    "abfs://one@account.example/x.tar",
    "abfs://two@account.example/x.tar",
    "sftp://ann@host/x.tar",
    "sftp://bob@host/x.tar",
    f"pipe:curl -s {BASE}",
    f"pipe:curl -s {BASE} | filter",
    "s3://bucket/train-000001.tar.gz",
    "https://host.example/ü.tar",
    "https://host.example/" + "a" * 400 + "1.tar",
    "https://host.example/" + "a" * 400 + "2.tar",
    "https://host.example/" + "日" * 400 + ".tar",
    "https://host.example/x/",
    "https://host.example",
    "https://host.example/\udcff.tar",
]


def test_names_are_distinct_and_fit():
    """No two objects share a name, and every name is a short name in one folder."""
    names = [name(url) for url in DISTINCT]
    assert len(set(names)) == len(DISTINCT)
    for found in names:
        assert "/" not in found
        assert not found.startswith(".")
        assert len(found.encode()) < 220
        assert is_cache_name(found)


SIGNED = [
    "?X-Amz-Algorithm=AWS4&X-Amz-Credential={0}&X-Amz-Date={0}&X-Amz-Signature={0}&X-Amz-Security-Token={0}",
    "?x-goog-signature={0}&X-Goog-Date={0}",
    "?AWSAccessKeyId=A&Signature={0}&Expires={0}",
    "?sv=2024&st={0}&se={0}&sr=b&sp=r&sig={0}",
    "?sig={0}&sp=r&se={0}&sv=2024",
]


@pytest.mark.parametrize("signature", SIGNED)
def test_names_outlive_signatures(signature):
    """A refreshed signature, or another password, leaves the name as it is."""
    one, two = (name(BASE + signature.format(value)) for value in ("one%2F", "two"))
    assert one == two == name(BASE)
    assert name("https://ann:secret@host.example/b/train-000001.tar.gz") == name(BASE)
    quoted = [name(f"pipe:curl -s '{BASE}{signature.format(value)}'") for value in "ab"]
    assert quoted[0] == quoted[1] != name(f"pipe:curl -s '{BASE}?a'")


def test_signature_leaves_the_rest():
    """What chooses the object stays beside a signature."""
    assert canonical_url("http://h/x?versionId=1&X-Amz-Signature=s#f") == "http://h/x?versionId=1#f"
    assert name(f"{BASE}?Signature=a&v=1") != name(f"{BASE}?Signature=a&v=2")


def test_rewritten_urls():
    """The file name is the one that the user wrote; the hash that of what is opened."""
    assert cache_name("gs://b/x.tar", "http://one/1").startswith("x.url-")
    assert cache_name("gs://b/x.tar", "http://one/1") != cache_name("gs://b/x.tar", "http://two/1")


def test_placed_names():
    """As 0.2 keeps it (measured), and plain; a command that says no url has none."""
    assert user_file_names("http://h/a/b/x.tar?sig=1#f") == ["a_b/x.tar", "x.tar"]
    assert user_file_names("pipe:curl -s http://h/a/b/x.tar") == ["a_b/x.tar", "x.tar"]
    assert user_file_names("s3://bucket/x.tar") == ["x.tar", "x.tar"]
    assert user_file_names("pipe:cat /data/x.tar") == []
    assert user_file_names("http://h/") == []
    assert user_file_names("http://h/.x.tar") == []


def test_placed_names_stay_inside():
    """No url names a file outside the directory."""
    assert user_file_names("http://h//etc/x.tar") == ["etc/x.tar", "x.tar"]
    for url in ("http://h/../x.tar", "http://h/../../x.tar", "http://h/a/..", "http://h/a/../b/x.tar"):
        assert user_file_names(url) == []
        assert "/" not in cache_name(url, url)


def test_chosen_names():
    """``url_to_name`` gives a path, or another url; 0.2 makes its folders one (measured)."""
    assert custom_names("u", lambda _: "my.tar") == ["my.tar", "my.tar"]
    assert custom_names("u", lambda _: "zz/my.tar") == ["zz/my.tar", "zz/my.tar"]
    assert custom_names("u", lambda _: "p/q/r.tar") == ["p/q/r.tar", "p_q/r.tar"]
    assert custom_names("u", lambda _: "/p/q/r.tar") == ["p/q/r.tar", "p_q/r.tar"]
    assert custom_names("u", lambda _: "http://h/p/q/r.tar?x") == ["p/q/r.tar", "p_q/r.tar"]
    assert custom_names("pipe:curl http://h/r.tar", pipe_cleaner) == ["r.tar", "r.tar"]


@pytest.mark.parametrize("chosen", ["", "/", "..", "../x.tar", "a/../../x.tar", "a/", ".", "a\nb.tar", "a\0b"])
def test_chosen_names_stay_inside(chosen):
    """A name outside the directory, and none at all, are refused."""
    with pytest.raises(UsageError, match="url_to_name"):
        custom_names("http://h/x.tar", lambda _: chosen)
