"""What AIStore urls mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core.errors import UsageError
from webdataset.storage.backends.aistore_client import parse_url, split

NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda name: not {".", ".."}.intersection(name.split("/")) and "=" not in name
)


@given(NAMES)
def test_names_are_taken_as_they_stand(name):
    """Whatever has no query is a name, to the letter."""
    place = parse_url(f"ais://bucket/{name}")
    assert (place.bucket, place.name, place.asked) == ("bucket", name, ())
    assert split(f"ais://bucket/{name}") == ("ais://bucket/", name)


@given(NAMES, st.text(min_size=1))
def test_members_travel_quoted(name, member):
    """Any member's path can be written into a url."""
    import urllib.parse

    quoted = urllib.parse.quote(member, safe="/", errors="replace")
    place = parse_url(f"ais://bucket/{name}?archpath={quoted}")
    assert (place.name, urllib.parse.unquote(quoted)) == (name, dict(place.asked)["archpath"])


@pytest.mark.parametrize(
    ("url", "name", "asked"),
    [
        ("ais://b/n?archpath=a/b&etl_name=x", "n", {"archpath": "a/b", "etl_name": "x"}),
        ("ais://b/n?archpath=a+b", "n", {"archpath": "a+b"}),
        ("ais://b/n?archpath=", "n", {"archpath": ""}),
        ("ais://b/n?x=1", "n?x=1", {}),
        ("ais://b/n?x=1&archpath=a", "n?x=1&archpath=a", {}),
        ("ais://b/n?archpath=a&x=1", "n?archpath=a&x=1", {}),
        ("ais://b/a?b?archpath=c", "a?b", {"archpath": "c"}),
    ],
)
def test_a_query_is_one_only_if_all_of_it_is(url, name, asked):
    """Names may hold question marks."""
    place = parse_url(url)
    assert (place.name, dict(place.asked)) == (name, asked)


@pytest.mark.parametrize(
    ("url", "namespace"),
    [("ais://#team/b/n", "#team"), ("ais://@u1#team/b/n", "@u1#team"), ("ais://@u1/b/n", "@u1"), ("ais://b/n", "")],
)
def test_namespaces(url, namespace):
    """Of this cluster, of a remote one, of a remote one without name."""
    place = parse_url(url)
    assert (place.namespace, place.bucket, place.name) == (namespace, "b", "n")
    assert place.query().get("namespace", "") == namespace


@pytest.mark.parametrize(("provider", "known"), [("gs", "gcp"), ("aws", "aws"), (None, "ais"), ("az", "azure")])
def test_providers(provider, known):
    """By AIStore's name, or by scheme."""
    assert parse_url("ais://b/n", provider).provider == known


@pytest.mark.parametrize("url", ["hdfs://b/n", "abfs://container@account/n", "http://host/folder/"])
def test_what_has_no_place(url):
    """It is said."""
    with pytest.raises(UsageError):
        parse_url(url)


def test_web_urls_of_one_folder_share_a_bucket():
    """As the cluster keeps them; other folders have others."""
    first, second, other = (parse_url(f"https://h/{path}") for path in ("a/1.tar", "a/2.tar?x=1", "b/1.tar"))
    assert first.bucket == second.bucket != other.bucket
    assert (second.name, second.original) == ("2.tar", "https://h/a/2.tar?x=1")
