"""The configuration file: what it may say, and where its mistakes are."""

import traceback

import pytest

from webdataset.config import ConfigError, Profile, Route, Secret, to_toml
from webdataset.storage.profile_files import read_toml

GOOD = """
# services
[s3.profiles.ceph1]
endpoint_url = "http://10.0.0.1:7480"
addressing_style = "path"
access_key_id = "env:CEPH1_ID"
secret_access_key = "file:/run/secrets/ceph1"

[s3.profiles]
public = {anonymous = true, region = "us-east-1"}

[[s3.route]]
match = "s3://mmc4-*"
profile = "ceph1"

[[s3.route]]
match = "inhouse://"
profile = "public"
target = "s3://bucket/prefix"
"""


def read(folder, text):
    """Write a file, and read it."""
    file = folder / "config.toml"
    file.write_text(text)
    return read_toml(file)


def test_file(tmp_path):
    """Profiles and routes arrive, each with its file and line."""
    found = read(tmp_path, GOOD)
    ceph1 = found.profiles["ceph1"]
    assert ceph1.secret_access_key == Secret("file:/run/secrets/ceph1")
    assert (ceph1.addressing_style, ceph1.origin) == ("path", f"{tmp_path / 'config.toml'}:3")
    assert found.profiles["public"] == Profile("public", anonymous=True, region="us-east-1")
    assert found.routes == (Route("s3://mmc4-*", "ceph1"), Route("inhouse://", "public", "s3://bucket/prefix"))
    assert [route.origin.rpartition(":")[2] for route in found.routes] == ["12", "16"]


MISTAKES = [
    ("[s33]\n", 1, "did you mean 's3'"),
    ("\n[s3.profile.a]\nregion='x'\n", 2, "did you mean 'profiles'"),
    ("[s3.profiles.a]\nregion = 'r'\nendpoint = 'canary'\n", 3, "did you mean 'endpoint_url'"),
    ("[s3.profiles.a]\n\nsecret_acces_key = 'canary'\n", 3, "did you mean 'secret_access_key'"),
    ("[s3.profiles.a]\nanonymous = 'plain'\n", 2, "true or false"),
    ("[s3.profiles.a]\nregion = '''\nplain\nplain'''\n", 2, "without spaces"),
    ("[s3.profiles.a]\nregion = 'x'\naccess_key_id = 'canary'\n", 3, "given together"),
    ("[s3.profiles]\na = {region = 'x', regio = 'canary'}\n", 2, "did you mean 'region'"),
    ("[s3.profiles]\na = 'canary'\n", 2, "has to be a table"),
    ("[s3]\nprofiles.a.regio = 'canary'\n", 2, "did you mean 'region'"),
    ("[s3.profiles.pipe]\nregion = 'x'\n", 1, "cannot be named 'pipe'"),
    ("[s3.route]\nmatch = 's3://a'\n", 1, "two brackets"),
    (
        "[[s3.route]]\nmatch = 's3://a'\nprofile='p'\n[[s3.route]]\nmatch = 's3://b'\nprofil='p'\n",
        6,
        "did you mean 'profile'",
    ),
    ("[[s3.route]]\nmatch = 's3://a'\nprofile='p'\n[[s3.route]]\nmatch = 's3://a'\nprofile='q'\n", 4, "a second route"),
    ("[[s3.route]]\nmatch = 'http://a'\nprofile='p'\n", 2, "cannot be led"),
    ("[[s3.route]]\nmatch = 's3://a'\nprofile='pipe'\n", 3, "cannot be named"),
    ("[[s3.route]]\nprofile = 'p'\n", 1, "needs match"),
    ('[s3.profiles.a]\nsecret_access_key = "canary\n', 2, "is not TOML here"),
    ("[s3.profiles.a]\nregion='a'\nregion='canary'\n", 3, "is not TOML here"),
]


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES, ids=[message for _, _, message in MISTAKES])
def test_mistakes_are_named_by_line(text, line, message, tmp_path):
    """Each says file, line and what to write; no value stands in the message, nor in a traceback with locals."""
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert f"config.toml:{line}: " in str(caught.value)
    error = caught.value
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    inner = shown[shown.index("in read_toml") :]  # above it is this test, which holds the text
    assert "canary" not in str(error)
    assert "canary" not in inner
    assert error.__context__ is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "not UTF-8"), (None, "No such file"), (b"a=" + b"[" * 9999, "nested too deeply")],
)
def test_files_that_cannot_be_read(content, message, tmp_path):
    """They are ConfigErrors with the file's name."""
    if content is not None:
        (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml(tmp_path / "c.toml")
    assert "c.toml" in str(caught.value)


def test_written_file_means_the_same(tmp_path):
    """What is written is read back equal; a secret given as text is not written."""
    found = read(tmp_path, GOOD)
    again = read(tmp_path, to_toml(found.profiles.values(), found.routes))
    assert (dict(again.profiles), again.routes) == (dict(found.profiles), found.routes)
    literal = Profile("a", access_key_id=Secret("canary1"), secret_access_key=Secret("canary2"))
    with pytest.raises(ConfigError, match="is not written out") as caught:
        to_toml([literal])
    assert "canary" not in str(caught.value)
    assert to_toml([]) == ""
