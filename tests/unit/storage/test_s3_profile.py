"""Fields of profiles and routes are checked, and no message quotes a value."""

import copy
import pickle

import pytest

from webdataset.config import ConfigError, Profile, Secret
from webdataset.storage.s3_profile import check_name, make_profile, make_route

KEYS = {"access_key_id": "env:ID", "secret_access_key": "env:KEY"}


def test_all_fields():
    """Every field arrives; secrets are hidden, the endpoint loses its slash, a path its tilde."""
    fields = {"endpoint_url": "http://10.0.0.1:7480/", "region": "r", **KEYS, "session_token": "t"}
    rest = {"addressing_style": "path", "request_payer": True, "verify": "~/ca.pem"}
    made = make_profile("a", {**fields, **rest})
    assert made.endpoint_url == "http://10.0.0.1:7480"
    assert made.access_key_id == Secret("env:ID")
    assert made.session_token.reveal() == "t"
    assert (made.region, made.addressing_style, made.request_payer, made.anonymous) == ("r", "path", True, False)
    assert not made.verify.startswith("~")
    assert made.identity == "a@http://10.0.0.1:7480"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoint": "canary"}, "did you mean 'endpoint_url'"),
        ({"secret_acces_key": "canary"}, "did you mean 'secret_access_key'"),
        ({"endpoint_url": "canary:9000"}, "has to be http://host"),
        ({"endpoint_url": "http://user:canary@host"}, "must not hold a user or password"),
        ({"endpoint_url": "http://host:canary"}, "is no url"),
        ({"endpoint_url": "http://host/?canary"}, "has a query"),
        ({"endpoint_url": 5}, "has to be a text"),
        ({"region": "canary canary"}, "without spaces"),
        ({"access_key_id": "canary"}, "given together"),
        ({"session_token": "canary"}, "given together"),
        ({"secret_access_key": ["canary"], "access_key_id": "x"}, "secret_access_key has to be a text"),
        ({"secret_access_key": "", "access_key_id": "canary"}, "not empty"),
        ({**KEYS, "anonymous": True}, "exclude each other"),
        ({**KEYS, "aws_profile": "canary"}, "exclude each other"),
        ({"anonymous": True, "aws_profile": "canary"}, "exclude each other"),
        ({"anonymous": "canary"}, "true or false"),
        ({"addressing_style": "canary"}, "one of auto, path, virtual"),
        ({"verify": 3}, "path of a file"),
    ],
)
def test_mistakes(fields, message):
    """Each names the field and the place, and says what to write; the value is not repeated."""
    with pytest.raises(ConfigError, match=message) as caught:
        make_profile("a", fields, at=lambda field: f"here:{len(field)}")
    assert str(caught.value).startswith("here:")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "-a", "pipe", "File", "s3", "http", 3, "ä"])
def test_names_that_urls_could_not_hold(name):
    """They are refused, as are those that mean something else at the beginning of a url."""
    with pytest.raises(ConfigError):
        check_name(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs match"),
        ({"match": "bucket", "profile": "a"}, "match is"),
        ({"match": "s3://a*b", "profile": "a"}, "match is"),
        ({"match": "http://host/", "profile": "a"}, "cannot be led"),
        ({"match": "s3://a"}, "needs a profile"),
        ({"match": "s3://a", "profile": "a b"}, "letters, digits"),
        ({"match": "s3://a", "profile": 3}, "has to be a text"),
        ({"match": "x://", "target": "gs://b"}, "target is"),
        ({"match": "x://", "tarket": "s3://b"}, "did you mean 'target'"),
    ],
)
def test_mistakes_of_routes(fields, message):
    """Each says what to write."""
    with pytest.raises(ConfigError, match=message) as caught:
        make_route(fields, origin="here")
    assert str(caught.value).startswith("here: ")


@pytest.mark.parametrize(
    ("match", "taken", "left"),
    [
        ("s3://mmc4", ["s3://mmc4", "s3://mmc4/a"], ["s3://mmc4-evil/a", "s3://mmc"]),
        ("s3://mmc4/", ["s3://mmc4/", "s3://mmc4/a"], ["s3://mmc4", "s3://mmc4-evil/a"]),
        ("s3://mmc4/tr", ["s3://mmc4/tr/x", "s3://mmc4/tr"], ["s3://mmc4/train/x"]),
        ("s3://mmc4-*", ["s3://mmc4-a/x", "s3://mmc4-"], ["s3://mmc4/x"]),
        ("s3://*", ["s3://a/x"], ["oss://a/x"]),
        ("oss://", ["oss://a/x"], ["s3://a/x"]),
    ],
)
def test_routes_end_at_borders(match, taken, left):
    """A bucket's route does not take another bucket whose name goes on, unless a star says so."""
    route = make_route({"match": match, "profile": "a"})
    assert [url for url in taken + left if route.takes(url)] == taken


@pytest.mark.parametrize(
    ("match", "target", "url", "led"),
    [
        ("oss://", None, "oss://b/k?x=1", "s3://b/k?x=1"),
        ("data://", "s3://b/p", "data://x/y", "s3://b/p/x/y"),
        ("data://", "s3://b/p/", "data://x/y", "s3://b/p/x/y"),
        ("data://a", "s3://b/p", "data://a/x", "s3://b/p/x"),
        ("data://a", "s3://b/p", "data://a", "s3://b/p"),
        ("s3://old-*", "s3://new/", "s3://old-x/y", "s3://new/x/y"),
    ],
)
def test_routes_lead_to_plain_urls(match, target, url, led):
    """The scheme becomes s3, or the target stands for what was matched."""
    assert make_route({"match": match, "profile": "a", "target": target}).target_url(url) == led


def test_pickles(monkeypatch):
    """References travel; a literal travels by its profile's name where others can look it up, else it refuses."""
    referring = make_profile("a", {**KEYS, "endpoint_url": "http://h"})
    assert pickle.loads(pickle.dumps(referring)) == referring
    literal = make_profile("a", {"access_key_id": "canary1", "secret_access_key": "canary2"})
    with pytest.raises(ConfigError, match=r"S3 profile 'a' \(python\) holds a secret as text"):
        pickle.dumps(literal)
    assert copy.deepcopy(literal) is copy.copy(literal) is literal
    monkeypatch.setattr("webdataset.storage.profile_registry.find_profile", lambda name: f"found {name}")
    pickled = pickle.dumps(
        make_profile("a", {"access_key_id": "canary1", "secret_access_key": "canary2"}, travels=True)
    )
    assert b"canary" not in pickled
    assert pickle.loads(pickled) == "found a"


def test_profile_without_fields_is_the_default_chain():
    """Everything is left open."""
    assert Profile("").identity == "@aws"
    assert not Profile("").literal
