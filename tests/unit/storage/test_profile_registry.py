"""Which profile a url is opened with."""

import contextlib
import logging
import os

import pytest

from support.profiles import bare_home
from webdataset import config
from webdataset.config import ConfigError, Profile, Secret, profile_for
from webdataset.storage.open_url import find_opener, gopen_schemes, is_local
from webdataset.storage.profile_registry import is_s3

FILE = """
[s3.profiles.ceph1]
endpoint_url = "http://file"
access_key_id = "env:A"
secret_access_key = "env:B"
[[s3.route]]
match = "s3://bucket"
profile = "ceph1"
"""


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    """A home that says nothing about S3, where the configuration file would be; definitions are undone."""
    place = bare_home(monkeypatch, tmp_path)
    with config.temporary():
        yield place


def endpoint(url, options=None):
    """Return the endpoint that a url is opened at."""
    return profile_for(url, options)[0].endpoint_url


@pytest.mark.parametrize("url", ["s3+c.e_p-h://b/k", "c.e_p-h:s3://b/k", "S3+c.e_p-h://b/k"])
def test_names_in_urls(url):
    """Both forms name a profile, and the plain url is left."""
    made = config.profile("c.e_p-h", endpoint_url="http://x")
    assert profile_for(url) == (made, "s3://b/k")
    assert is_s3(url)


def test_keys_are_not_touched():
    """What stands behind the bucket stays as it is."""
    config.profile("c", endpoint_url="http://x")
    for rest in ("b/a?profile=x", "b/%2B a/://s3://k", "b/k:s3://z", "b", "b/{000..003}.tar"):
        assert [profile_for(start + rest)[1] for start in ("s3+c://", "c:s3://", "S3://")] == ["s3://" + rest] * 3


def test_two_names_are_refused():
    """A url says its profile once."""
    with pytest.raises(ConfigError, match="names one profile"):
        profile_for("a:s3+b://bucket/key")


def test_order_of_precedence(file, monkeypatch):
    """Storage options, the url's name, the longest route, the environment, the default chain."""
    assert profile_for("s3://bucket/key")[0] == Profile("")
    monkeypatch.setenv("WDS_S3_ENDPOINT_URL", "http://env")
    assert endpoint("s3://bucket/key") == "http://env"
    monkeypatch.setenv("WDS_S3_PROFILE", "chosen")
    monkeypatch.setenv("WDS_S3_CHOSEN_ENDPOINT_URL", "http://chosen")
    assert endpoint("s3://bucket/key") == "http://chosen"
    file.write_text(FILE)
    assert endpoint("s3://bucket/key") == "http://file"
    assert endpoint("s3://bucket-2/key") == "http://chosen"
    config.profile("longer", endpoint_url="http://longer")
    config.route("s3://bucket/k*", "longer")
    assert endpoint("s3://bucket/key") == "http://longer"
    assert endpoint("s3+ceph1://bucket/key") == "http://file"
    assert endpoint("s3+ceph1://bucket/key", {"profile": "longer"}) == "http://longer"
    assert endpoint("s3+ceph1://bucket/key", {"endpoint_url": "http://options"}) == "http://options"


def test_sources_of_one_name(file, monkeypatch):
    """Python comes before the file; a variable of ours replaces a field of the file's."""
    file.write_text(FILE)
    monkeypatch.setenv("WDS_S3_CEPH1_REGION", "here")
    found = config.profile("ceph1")
    assert (found.endpoint_url, found.region, found.access_key_id) == ("http://file", "here", Secret("env:A"))
    config.profile("ceph1", endpoint_url="http://python")
    found = config.profile("ceph1")
    assert (found.endpoint_url, found.region) == ("http://python", None)


def test_keys_of_two_places_are_not_mixed(file, monkeypatch):
    """Options that say who asks replace all that the profile says of it."""
    file.write_text(FILE)
    found = profile_for("s3://bucket/key", {"anonymous": True})[0]
    assert (found.anonymous, found.access_key_id, found.secret_access_key) == (True, None, None)
    assert found.endpoint_url == "http://file"
    with pytest.raises(ConfigError, match="given together"):
        profile_for("s3://bucket/key", {"access_key_id": "x"})
    monkeypatch.setenv("WDS_S3_CEPH1_AWS_PROFILE", "corp")
    found = profile_for("s3://bucket/key")[0]
    assert (found.aws_profile, found.access_key_id) == ("corp", None)


def test_names_of_fsspec_in_options():
    """key, secret, token and anon mean what they mean there."""
    found = profile_for("s3://b/k", {"key": "a", "secret": "b", "token": "c"})[0]
    assert [secret.reveal() for secret in (found.access_key_id, found.secret_access_key, found.session_token)] == [
        *"abc"
    ]
    assert profile_for("s3://b/k", {"anon": True})[0].anonymous


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enpoint_url": "canary"}, "did you mean 'endpoint_url'"),
        ({"profile": 3}, "name of a profile"),
        ("canary", "is a mapping"),
        ({"profile": "absent"}, "no S3 profile 'absent'"),
        ({1: "canary"}, "has no '1'"),
    ],
)
def test_options_that_make_no_sense(options, message):
    """They say which option, and no value."""
    with pytest.raises(ConfigError, match=message) as caught:
        profile_for("s3://b/k", options)
    assert "canary" not in str(caught.value)


def test_unknown_names_get_a_hint(file):
    """A profile that nobody defines is an error with the nearest name, and where was looked."""
    file.write_text(FILE)
    with pytest.raises(
        ConfigError, match=r"no S3 profile 'ceph2'; did you mean 'ceph1'\? \(looked in python, .*~/.aws"
    ):
        profile_for("s3+ceph2://b/k")


def test_schemes_of_ones_own():
    """A route makes a scheme one of S3's, for the table of openers too; without it, it is nobody's."""
    assert not is_s3("oss://b/k")
    with pytest.raises(ConfigError, match=r"wds.config.route\('scheme://', 'NAME'\)"):
        profile_for("oss://b/k")
    config.profile("ali", endpoint_url="http://oss")
    config.route("oss://", "ali")
    config.route("data://", target="s3://bucket/prefix")
    assert [is_s3(url) for url in ("oss://b/k", "OSS://b/k", "data://x", "ossx://b/k")] == [True, True, True, False]
    assert profile_for("OSS://Bucket/Key")[1] == "s3://Bucket/Key"
    assert profile_for("data://x")[1] == "s3://bucket/prefix/x"
    for url in ("oss://b/k", "s3+ali://b/k", "ali:s3://b/k", "my_own:s3://b/k", "s3://b/k"):
        assert find_opener(url) is gopen_schemes["s3"]
        assert not is_local(url)


@pytest.mark.parametrize("url", ["/data/x.tar", "x:y", "pipe:s3://a", "http://s3://a", "file:s3://a", "-", "as3://b/k"])
def test_what_is_not_s3(url):
    """Paths, commands and urls of others are left to others."""
    assert not is_s3(url)
    assert find_opener(url) is not gopen_schemes["s3"]


def test_wrong_file_does_not_hinder_others(file):
    """Local files and http are opened whatever the file says; S3 says what is wrong."""
    file.write_text("[s3.profiles.a]\nregio = 'x'\n")
    assert is_local("/data/x.tar")
    assert not is_s3("http://host/x")
    with pytest.raises(ConfigError, match=r"config.toml:2: .*did you mean 'region'"):
        profile_for("s3://b/k")


def test_file_that_changes_is_read_again(file):
    """A running process takes up a change."""
    file.write_text(FILE)
    assert endpoint("s3://bucket/key") == "http://file"
    file.write_text(FILE.replace("http://file", "http://file/new"))
    assert endpoint("s3://bucket/key") == "http://file/new"
    file.unlink()
    assert endpoint("s3://bucket/key") is None


def test_named_file_replaces_the_usual_ones(file, monkeypatch, tmp_path):
    """WDS_CONFIG is the only file then; it has to be there, or be /dev/null."""
    file.write_text(FILE)
    (tmp_path / "mine.toml").write_text(FILE.replace("http://file", "http://mine"))
    monkeypatch.setenv("WDS_CONFIG", "~/mine.toml")
    assert endpoint("s3://bucket/key") == "http://mine"
    monkeypatch.setenv("WDS_CONFIG", os.devnull)
    assert endpoint("s3://bucket/key") is None
    monkeypatch.setenv("WDS_CONFIG", "/not/there.toml")
    with pytest.raises(ConfigError, match="WDS_CONFIG names /not/there.toml, which is not there"):
        endpoint("s3://bucket/key")


def test_systems_file_comes_second(file, tmp_path):
    """The user's file comes before the one of the system."""
    (tmp_path / "etc" / "webdataset").mkdir(parents=True)
    system = tmp_path / "etc" / "webdataset" / "config.toml"
    system.write_text(FILE.replace("http://file", "http://system") + "[s3.profiles.more]\nregion = 'x'\n")
    assert endpoint("s3://bucket/key") == "http://system"
    file.write_text(FILE)
    assert endpoint("s3://bucket/key") == "http://file"
    assert config.profile("more").region == "x"


def test_temporary_definitions(file, tmp_path):
    """They end with their block, exceptions included; isolated ones see nothing from outside."""
    file.write_text(FILE)
    config.profile("mine", endpoint_url="http://mine")
    with contextlib.suppress(ZeroDivisionError), config.temporary():
        config.profile("mine", endpoint_url="http://inner")
        assert endpoint("s3+mine://b/k") == "http://inner"
        raise ZeroDivisionError
    assert endpoint("s3+mine://b/k") == "http://mine"
    (tmp_path / "other.toml").write_text(FILE.replace("http://file", "http://other"))
    with config.temporary(tmp_path / "other.toml"):
        assert endpoint("s3://bucket/key") == "http://other"
        assert endpoint("s3+mine://b/k") == "http://mine"
    with config.temporary(isolated=True):
        assert profile_for("s3://bucket/key")[0] == Profile("")
        for name in ("mine", "ceph1"):
            with pytest.raises(ConfigError, match=r"looked in python\)"):
                config.profile(name)
    assert endpoint("s3://bucket/key") == "http://file"


def test_further_file(tmp_path):
    """A team's file can be taken up; its secrets do not travel by name, since others do not read it."""
    literal = FILE.replace("env:A", "canary1").replace("env:B", "canary2")
    (tmp_path / "team.toml").write_text(literal)
    config.load(tmp_path / "team.toml")
    assert endpoint("s3://bucket/key") == "http://file"
    assert not config.profile("ceph1").travels_by_name
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "absent.toml")


def test_secrets_that_others_can_read(file, caplog):
    """A file that holds secrets and can be read by others is warned of once; one with references is not."""
    file.write_text(FILE)
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING, "webdataset"):
        profile_for("s3://bucket/key")
        assert not caplog.records
        file.write_text(FILE.replace("env:A", "canary1").replace("env:B", "canary-2"))
        file.chmod(0o640)
        profile_for("s3://bucket/key")
        file.write_text(FILE.replace("env:A", "canary1").replace("env:B", "canary-3"))
        profile_for("s3://bucket/key")
    assert len(caplog.records) == 1
    assert "can be read by others: chmod 600" in caplog.text
    assert "canary" not in caplog.text
