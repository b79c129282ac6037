"""``storage_options`` of other types are refused where they are given, and shown to nobody."""

from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.errors import ConfigError, WebDatasetError
from webdataset.storage.option_types import OPTION_TYPES
from webdataset.storage.storage_options import OPTION_NAMES, check_options, options_for

CANARY = "canary/Zx81"
URLS = {
    "s3": "s3://b/a.tar",
    "http": "http://127.0.0.1:9/a.tar",
    "gs": "gs://b/a.tar",
    "azure": "az://c/a.tar",
    "hf": "hf://datasets/a/b/a.tar",
    "ais": "ais://b/a.tar",
    "ssh": "ssh://127.0.0.1:9/a.tar",
}


class Google:
    """Credentials of google-auth."""

    def before_request(self, *_):
        """Add the token."""


class Azure:
    """Credentials of azure-identity."""

    def get_token(self, *_, **__):
        """Return a token."""


def name_options(options):
    """Name options by their names and the types of their values."""
    return " ".join(f"{name}-{type(value).__name__}" for name, value in options.items())


@pytest.mark.parametrize(
    "options",
    [
        {"anonymous": "false"},
        {"anonymous": 1},
        {"anon": "no"},
        {"token": [CANARY]},
        {"token": object()},
        {"credentials": (CANARY,)},
        {"user_project": 7},
        {"account_name": ["a"]},
        {"account_key": {"key": CANARY}},
        {"sas_token": True},
        {"connection_string": [CANARY]},
        {"credential": {"key": CANARY}},
        {"credential": Google()},
        {"provider": ["aws"]},
        {"username": 0},
        {"password": [CANARY]},
        {"passphrase": False},
        {"port": 65536},
        {"port": "ssh"},
        {"port": True},
        {"port": 22.5},
        {"key_filename": 5},
        {"known_hosts": True},
        {"verify": 0},
        {"verify": [CANARY]},
        {"endpoint_url": b"http://host"},
        {"headers": [("A", CANARY)]},
        {"headers": {"A": None}},
        {"headers": {"A": "b", "B": [CANARY]}},
        {"fsspec": CANARY},
    ],
    ids=name_options,
)
def test_values_of_other_types(options):
    """The dataset is not made; the error names the option and the type, not the value."""
    with pytest.raises(ConfigError, match=f"(?s)storage_options: .*({next(iter(options))}|header)") as caught:
        wds.WebDataset("gs://b/a.tar", storage_options=options)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"anonymous": True, "endpoint_url": "http://host"},
        {"anonymous": None, "port": None, "token": None},
        {"token": "env:NAME"},
        {"token": b"bytes"},
        {"token": {"type": "service_account"}},
        {"token": Google(), "credentials": "file.json"},
        {"token": False},
        {"credential": Azure()},
        {"password": 1234, "port": "22", "known_hosts": False, "key_filename": [Path("a"), "b"]},
        {"known_hosts": Path("hosts"), "port": 65535},
        {"verify": "ca.pem", "headers": {"A": "b", "C": 5}},
        {"fsspec": {"anything": object()}},
    ],
    ids=name_options,
)
def test_values_that_are_accepted(options):
    """Texts, numbers as passwords, paths, objects of Google and Azure, and None for what is left out."""
    assert check_options(options) is not None


@pytest.mark.parametrize(("store", "token"), [("http", True), ("ais", Google()), ("hf", Google()), ("gs", False)])
def test_tokens_of_another_store(store, token):
    """What another store takes is not left out in silence, in favour of a token of the environment."""
    with pytest.raises(ConfigError, match="token is a text here"):
        options_for(store, {"token": token})
    assert options_for("hf", {"token": False}) == {"token": False}


@pytest.mark.parametrize("store", URLS)
def test_no_value_raises_an_error_of_python(store, monkeypatch):
    """Each option of a store with values of all kinds: an error of this library, if any, while no server answers."""
    monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("webdataset.storage.retries.sleep", lambda seconds: None)
    values = [0, 1.5, b"x", [], {}, {"a": 1}, [1], object(), True, False, "\n", ("a",), float("nan")]
    names = [name for name in OPTION_NAMES[store] if name in OPTION_TYPES and name != "endpoint_url"]
    for name in names:
        for value in values:
            known = {"account_name": "acc", "account_key": "a2V5", "endpoint_url": "http://127.0.0.1:9"}
            given = {key: text for key, text in known.items() if key in OPTION_NAMES[store]} | {name: value}
            try:
                checked = check_options(given)
            except ConfigError:
                continue
            dataset = wds.WebDataset(URLS[store], shardshuffle=False, storage_options=checked)
            with pytest.raises(WebDatasetError):
                next(iter(dataset))


@pytest.mark.parametrize(
    "endpoint", ["http://[", "http://[::1", "ftp://h", "http://h:99999999", "x", "", "http://a b/"]
)
@pytest.mark.parametrize("store", ["s3", "gs", "azure", "hf", "ais"])
def test_endpoints_that_are_none(store, endpoint, monkeypatch):
    """They are errors of this library."""
    monkeypatch.setattr("webdataset.storage.retries.sleep", lambda seconds: None)
    known = {"account_name": "acc", "account_key": "a2V5", "token": "t", "anonymous": True}
    if store in ("azure", "gs"):
        known.pop("anonymous" if store == "azure" else "token")
    given = {name: value for name, value in known.items() if name in OPTION_NAMES[store]}
    if store == "s3":
        given = {"anonymous": True}
    with pytest.raises(WebDatasetError):
        list(wds.WebDataset(URLS[store], shardshuffle=False, storage_options={**given, "endpoint_url": endpoint}))
