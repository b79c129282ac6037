"""A secret shows itself to nobody who does not ask."""

import copy
import dataclasses
import json
import pickle

import pytest

from webdataset.config import ConfigError, Profile, Secret

CANARY = "canary/Zx81+secret"


def test_value_is_never_shown():
    """Neither repr, str, format, dataclasses nor % show the value."""
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", "%s %r" % (secret, secret)]
    profile = Profile("a", secret_access_key=secret)
    shown += [repr(profile), str(profile), repr(dataclasses.asdict(profile)), repr(vars(profile)), repr([secret])]
    assert not [text for text in shown if "canary" in text]
    assert "***" in repr(secret)
    assert secret.reveal() == CANARY
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_reference_is_shown_and_followed_when_asked(monkeypatch, tmp_path):
    """A reference is read at each call, so that a rotated key is taken up; a file loses its last newline only."""
    variable, file = Secret("env:SOME_KEY"), Secret(f"file:{tmp_path / 'key'}")
    for value in ("first", "second"):
        monkeypatch.setenv("SOME_KEY", value)
        (tmp_path / "key").write_bytes(f" {value} \r\n".encode())
        assert variable.reveal() == value
        assert file.reveal() == f" {value} "
    assert repr(variable) == "Secret('env:SOME_KEY')"


def test_literal_may_look_like_a_reference():
    """What was read from a file of the caller is taken as it stands."""
    assert Secret.literal("env:HOME").reveal() == "env:HOME"
    assert Secret.literal("env:HOME").reference is None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("env:NOT_SET_AT_ALL", "environment variable NOT_SET_AT_ALL is not set"),
        ("file:/not/there", "No such file"),
        ("file:{folder}", "Is a directory"),
        ("file:{folder}/empty", "is empty"),
        ("file:{folder}/binary", "no short text file"),
    ],
)
def test_reference_that_leads_nowhere(reference, message, tmp_path):
    """It says where it looked, and what is wrong there, without the file's content."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfecanary")
    reference = reference.format(folder=tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        Secret(reference).reveal()
    assert reference in str(caught.value)
    assert "canary" not in str(caught.value)


def test_pickle_carries_the_reference_alone(monkeypatch):
    """The value of a reference is not in the pickle; a literal refuses, and says what to write."""
    monkeypatch.setenv("SOME_KEY", CANARY)
    pickled = pickle.dumps(Secret("env:SOME_KEY"))
    assert b"canary" not in pickled
    assert pickle.loads(pickled).reveal() == CANARY
    with pytest.raises(ConfigError, match=r"'env:NAME' or 'file:PATH'"):
        pickle.dumps(Secret(CANARY))


def test_copies_compare_and_do_not_change():
    """A secret can be copied within a process, is a key of dicts, and is frozen."""
    secret = Secret(CANARY)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret
    assert len({secret, Secret(CANARY), Secret("other"), Secret("env:A"), Secret("env:B"), Secret("env:A")}) == 4
    assert secret != CANARY
    with pytest.raises(AttributeError, match="does not change"):
        secret.reference = "env:OTHER"
