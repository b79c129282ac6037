"""Profiles of other tools: petrel's file, variables as megfile names them, AWS profiles, our own variables."""

import traceback

import pytest

from support.profiles import bare_home
from webdataset import config
from webdataset.config import ConfigError, Profile, Secret, profile_for
from webdataset.storage.profile_files import read_petrel

PETREL = """
[DEFAULT]
enable_mc = False
default_cluster = ceph-sh

[ceph-sh]
boto = True
access_key = canary%1
secret_key = "canary=%2:3"
host_base = http://10.1.2.3:80

[other]
access_key = canary4
secret_key = canary5
host_base = 10.1.2.4:7480
"""


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A home that says nothing about S3."""
    bare_home(monkeypatch, tmp_path)
    return tmp_path


def test_petrel(home):
    """Clusters are profiles; plain urls use the default cluster while the environment says nothing."""
    (home / "petreloss.conf").write_text(PETREL)
    (home / "petreloss.conf").chmod(0o600)
    profile, url = profile_for("ceph-sh:s3://bucket/a key")
    assert url == "s3://bucket/a key"
    assert (profile.endpoint_url, profile.addressing_style) == ("http://10.1.2.3:80", "path")
    assert (profile.access_key_id.reveal(), profile.secret_access_key.reveal()) == ("canary%1", "canary=%2:3")
    assert config.profile("other").endpoint_url == "http://10.1.2.4:7480"
    assert profile_for("s3://bucket/key")[0] is profile


def test_environment_comes_before_petrels_default(home, monkeypatch):
    """Keys or an endpoint of AWS in the environment are what the user meant for plain urls."""
    (home / "petreloss.conf").write_text(PETREL)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    assert profile_for("s3://bucket/key")[0] == Profile("")


def test_petrel_elsewhere(home, monkeypatch):
    """WDS_PETREL_CONF names the file, or none; one that is absent is an error."""
    (home / "elsewhere").write_text(PETREL)
    monkeypatch.setenv("WDS_PETREL_CONF", "~/elsewhere")
    assert config.profile("other").name == "other"
    monkeypatch.setenv("WDS_PETREL_CONF", "/dev/null")
    with pytest.raises(ConfigError, match="no S3 profile 'other'"):
        config.profile("other")
    monkeypatch.setenv("WDS_PETREL_CONF", "~/absent")
    with pytest.raises(ConfigError, match="WDS_PETREL_CONF names .*absent, which is not there"):
        config.profile("other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("access_key = canary\n", ":1: is neither"),
        ("[a]\nhost_base = h\n\ncanary canary\n", ":4: is neither"),
        ("[DEFAULT]\ndefault_cluster = canary\n", "names a cluster"),
        ("[a]\naccess_key = canary\n", "given together"),
        ("[a]\nhost_base = http://u:canary@h\n", "must not hold a user"),
    ],
)
def test_petrel_with_mistakes(text, message, home):
    """The place is named, and no line quoted; nor do the frames hold one."""
    (home / "petreloss.conf").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_petrel(home / "petreloss.conf")
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None
    if "host_base" not in text and "default" not in text:
        shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
        assert "canary" not in shown[shown.index("in read_petrel") :]


def test_megfile_variables(monkeypatch):
    """<NAME>__… define a profile; keys stay references to their variables."""
    monkeypatch.setenv("TOS_CN__AWS_ACCESS_KEY_ID", "canary1")
    monkeypatch.setenv("TOS_CN__AWS_SECRET_ACCESS_KEY", "canary2")
    monkeypatch.setenv("TOS_CN__AWS_ENDPOINT_URL_S3", "https://second")
    monkeypatch.setenv("TOS_CN__OSS_ENDPOINT", "https://first")
    monkeypatch.setenv("TOS_CN__AWS_S3_ADDRESSING_STYLE", "virtual")
    profile, url = profile_for("s3+tos-cn://bucket/key")
    assert url == "s3://bucket/key"
    assert (profile.endpoint_url, profile.addressing_style) == ("https://first", "virtual")
    assert profile.secret_access_key == Secret("env:TOS_CN__AWS_SECRET_ACCESS_KEY")
    assert profile.secret_access_key.reveal() == "canary2"


@pytest.mark.parametrize(
    ("alias", "url", "plain", "name"),
    [
        ("s3+tos", "tos://bucket/key", "s3://bucket/key", "tos"),
        ("s3+tos://b/prefix", "tos://x/key", "s3://b/prefix/x/key", "tos"),
        ("s3://b/prefix", "TOS://x/key", "s3://b/prefix/x/key", ""),
    ],
)
def test_megfile_aliases(alias, url, plain, name, monkeypatch):
    """MEGFILE_ALIASES__TOS makes tos: a scheme of S3."""
    monkeypatch.setenv("TOS__OSS_ENDPOINT", "https://h")
    monkeypatch.setenv("MEGFILE_ALIASES__TOS", alias)
    found, led = profile_for(url)
    assert (found.name, led) == (name, plain)


def test_megfile_alias_of_another_protocol_is_left(monkeypatch):
    """An alias of sftp is none of ours."""
    monkeypatch.setenv("MEGFILE_ALIASES__BOX", "sftp://host/path")
    with pytest.raises(ConfigError, match="no route leads"):
        profile_for("box://a/b")


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"OSS_ENDPOINT": "http://a", "AWS_ENDPOINT_URL": "http://b"}, "http://a"),
        ({"AWS_ENDPOINT_URL_S3": "http://a", "AWS_ENDPOINT_URL": "http://b"}, "http://a"),
        ({"WDS_S3_ENDPOINT_URL": "http://a", "OSS_ENDPOINT": "http://b"}, "http://a"),
        ({}, None),
    ],
)
def test_endpoint_of_plain_urls(variables, endpoint, monkeypatch):
    """The variables are asked in this order."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert profile_for("s3://a/b")[0].endpoint_url == endpoint


def test_our_variables(monkeypatch):
    """WDS_S3_<NAME>_<FIELD> define a profile; truth values are read, and a reference in a variable is followed."""
    for field, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "file:/run/key", "VERIFY": "0"}.items():
        monkeypatch.setenv(f"WDS_S3_MY_CEPH_{field}", value)
    found = config.profile("my-ceph")
    assert found.access_key_id == Secret("env:WDS_S3_MY_CEPH_ACCESS_KEY_ID")
    assert found.secret_access_key == Secret("file:/run/key")
    assert found.verify is False
    monkeypatch.setenv("WDS_S3_MY_CEPH_REQUEST_PAYER", "canary")
    with pytest.raises(ConfigError, match="WDS_S3_MY_CEPH_REQUEST_PAYER is 1 or 0"):
        config.profile("my-ceph")


def test_aws_requester_pays(monkeypatch):
    """AWS_REQUEST_PAYER=requester holds for plain urls."""
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    assert profile_for("s3://a/b")[0].request_payer


def test_aws_profiles(home):
    """Profiles of ~/.aws are known by name; their keys are not read here, nested endpoints are."""
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(
        "[default]\nregion = a\n[profile corp]\ns3 =\n  endpoint_url = http://h:1\n  addressing_style = path\n"
        "[sso-session company]\nsso_region = x\n[profile other]\noutput =\n  endpoint_url = http://no\n"
    )
    (home / ".aws" / "credentials").write_text("[keys]\naws_access_key_id = canary\naws_secret_access_key = canary\n")
    corp = config.profile("corp")
    assert corp == Profile("corp", aws_profile="corp", endpoint_url="http://h:1")
    assert config.profile("keys") == Profile("keys", aws_profile="keys")
    assert set(config.profiles()) == {"default", "corp", "other", "keys"}
    assert config.profile("other").endpoint_url is None


def test_a_petrel_file_that_cannot_be_read(home):
    """The reason is told with the path."""
    (home / "petreloss.conf").mkdir()
    with pytest.raises(ConfigError, match="petreloss.conf: Is a directory"):
        read_petrel(home / "petreloss.conf")
