"""S3 configuration, over whatever may be configured."""

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset import config
from webdataset.config import ConfigError, Profile, Route, Secret, profile_for, to_toml
from webdataset.storage.profile_files import read_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
words = texts.map(lambda text: "".join(text.split())).filter(bool)
letters = st.text("ab-", min_size=1, max_size=4)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,6}", fullmatch=True).map("p{}".format)
references = st.builds("{}:{}".format, st.sampled_from(["env", "file"]), texts).map(Secret)
keys = st.fixed_dictionaries(
    {"access_key_id": references, "secret_access_key": references}, optional={"session_token": references}
)
who = st.one_of(keys, st.just({"anonymous": True}), texts.map(lambda text: {"aws_profile": text}), st.just({}))
others = st.fixed_dictionaries(
    {},
    optional={
        "endpoint_url": st.sampled_from(["http://h", "https://h.example:9000/base"]),
        "region": words,
        "addressing_style": st.sampled_from(["auto", "path", "virtual"]),
        "request_payer": st.booleans(),
        "verify": st.one_of(st.booleans(), texts.filter(lambda text: not text.startswith("~"))),
    },
)
profiles = st.builds(lambda name, one, two: Profile(name, **one, **two), names, who, others)
urls = st.builds("s3://{}/{}".format, letters, st.lists(letters, max_size=3).map("/".join))
matches = st.builds(lambda url, star: url + star, urls, st.sampled_from(["", "*"]))
routes = st.builds(Route, matches, names, st.none() | st.builds("s3://t/{}".format, letters))


def expected(url, routes):
    """Return the match that wins, from the definition: every prefix of the url, longest first."""
    for size in range(len(url), -1, -1):
        prefix, rest = url[:size], url[size:]
        if prefix in routes and (not rest or rest.startswith("/") or prefix.endswith("/")):
            return prefix
        if prefix + "*" in routes:
            return prefix + "*"
    return None


@given(st.lists(matches, unique=True, max_size=8), urls)
def test_longest_route_wins(matches, url):
    """Whatever the order of definition, the longest prefix that ends at a border or in a star decides."""
    with config.temporary(isolated=True):
        for number, match in enumerate(matches):
            config.profile(f"p{number}", region=f"r{number}")
            config.route(match, f"p{number}")
        winner = expected(url, matches)
        found, plain = profile_for(url)
    assert plain == url
    assert found.name == ("" if winner is None else f"p{matches.index(winner)}")


@settings(deadline=None)
@given(
    st.lists(profiles, unique_by=lambda one: one.name, max_size=4), st.lists(routes, unique_by=lambda one: one.match)
)
def test_written_configuration_is_read_back_equal(profiles, routes):
    """TOML that is written defines the same profiles and routes, whatever stands in their fields."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "c.toml")
        file.write_text(to_toml(profiles, routes), encoding="utf-8", newline="")
        found = read_toml(file)
    assert list(found.profiles.values()) == profiles
    assert list(found.routes) == routes


@given(profiles)
def test_references_travel(profile):
    """A profile whose secrets are references is equal on the other side of a pickle."""
    again = pickle.loads(pickle.dumps(profile))
    assert again == profile
    assert hash(again) == hash(profile)


@given(names, st.text("xyz", min_size=8), texts)
def test_urls_name_profiles(name, bucket, key):
    """Both forms give the profile and the key as it stands."""
    with config.temporary(isolated=True):
        made = config.profile(name, region="r")
        for url in (f"s3+{name}://{bucket}/{key}", f"{name}:s3://{bucket}/{key}"):
            assert profile_for(url) == (made, f"s3://{bucket}/{key}")


@given(st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1), st.text("Q", min_size=9), min_size=1))
def test_no_mistake_repeats_a_value(fields):
    """Whatever fields are made up, a message never holds what they were set to."""
    with config.temporary(isolated=True), pytest.raises(ConfigError) as caught:
        config.profile("p", **fields, access_key_id="QQQQQQQQQ")
    assert "QQQ" not in str(caught.value)
