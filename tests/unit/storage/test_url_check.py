"""What is told of how a url is opened, without opening it."""

import pytest

from support.profiles import bare_home
from webdataset.storage.url_check import check_url


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """A home and an environment without credentials."""
    bare_home(monkeypatch, tmp_path)
    for name in ("AIS_AUTHN_TOKEN", "AIS_AUTHN_TOKEN_FILE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AIS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "service", "credentials"),
    [
        ("ais://bucket/x.tar", "ais", "anonymous"),
        ("https://example.com/x.tar", "http", "anonymous"),
        ("hf://datasets/o/r/x.tar", "hf", "the file that 'hf auth login' writes, if there is one; else anonymous"),
        ("gs://bucket/x.tar", "gs", "what this machine has (application default credentials)"),
    ],
)
def test_what_is_used_where_nothing_is_given(url, service, credentials):
    """Each service says what it goes by."""
    found = check_url(url, opening=False)
    assert (found.service, found.credentials, found.opens) == (service, (credentials,), None)


def test_variables_are_named_without_their_values(monkeypatch):
    """They take the place of what is used otherwise."""
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "canary")
    found = check_url("ais://bucket/x.tar", opening=False)
    assert found.credentials == ("*** (env:AIS_AUTHN_TOKEN)",)
    assert "canary" not in repr(found)
