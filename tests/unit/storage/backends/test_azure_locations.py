"""What urls, options and the environment of Azure Storage mean, without a service."""

import base64
import os

import pytest

from webdataset.core.errors import ConfigError, UsageError
from webdataset.storage.backends.azure import ET, _blob_name, _is_folder, split
from webdataset.storage.backends.azure_client import parse_connection_string, parse_url, service_id, shared_key_header

KEY = base64.b64encode(b"CANARY-key").decode()


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    """Nothing of this machine's own settings."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)


def test_addresses():
    """Names are taken as they stand; slashes stay."""
    place = parse_url("az://c/a/b ü?x#y%20", {"account_name": "me"})
    assert place.address() == "https://me.blob.core.windows.net/c/a/b%20%C3%BC%3Fx%23y%2520"
    assert place.address(comp="block", blockid="a/=") == place.address() + "?comp=block&blockid=a%2F%3D"
    assert split("abfs://c@me.dfs.core.windows.net/a/*.tar") == ("abfs://c@me.dfs.core.windows.net/", "a/*.tar")


@pytest.mark.parametrize(
    ("host", "account", "endpoint"),
    [
        ("me", "me", "https://me.blob.core.windows.net"),
        ("me1.dfs.core.windows.net", "me1", "https://me1.blob.core.windows.net"),
        ("me1.blob.core.chinacloudapi.cn", "me1", "https://me1.blob.core.chinacloudapi.cn"),
        ("me1.z42.blob.storage.azure.net", "me1", "https://me1.z42.blob.storage.azure.net"),
        ("onelake.dfs.fabric.microsoft.com", "onelake", "https://onelake.blob.fabric.microsoft.com"),
    ],
)
def test_accounts_in_urls(host, account, endpoint):
    """A name, or a host of Azure's own."""
    options = {"account_name": "me"} if host == "me" else None
    service = parse_url("az://c/k", options).service if host == "me" else parse_url(f"abfs://c@{host}/k").service
    assert (service.account, service.endpoint) == (account, endpoint)


@pytest.mark.parametrize(
    "url",
    [
        "abfs://c@evil.example/k", "abfs://c@me1.dfs.core.windows.net.evil.example/k", "abfs://c@x@me1/k", "az://c", "abfs://c@me1\n/k",
        "az://c/k?sv=1&sig=CANARY", "az://c/a/../k", "az://c/..",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url):
    """Other hosts, signatures, names that would change on the way; nothing secret is repeated."""
    with pytest.raises(UsageError) as caught:
        parse_url(url, {"account_name": "me1"})
    assert "CANARY" not in str(caught.value)


def test_an_endpoint_may_be_anywhere():
    """If the user says so by an option; numbers and localhost get the account into the path."""
    for given, endpoint in {
        "http://127.0.0.1:1": "http://127.0.0.1:1/me1", "http://localhost:1/": "http://localhost:1/me1",
        "http://127.0.0.1:1/me1/": "http://127.0.0.1:1/me1", "me.example": "https://me.example",
    }.items():  # fmt: skip
        assert parse_url("az://c/k", {"account_name": "me1", "endpoint_url": given}).service.endpoint == endpoint


def test_connection_strings():
    """All forms of them; without an account they are refused, and not shown."""
    found = parse_connection_string(
        f"DefaultEndpointsProtocol=http;AccountName=me;AccountKey={KEY};EndpointSuffix=x.y", ""
    )
    assert (found["account_name"], found["endpoint"]) == ("me", "http://me.blob.x.y")
    assert found["account_key"].reveal() == KEY
    found = parse_connection_string(
        "BlobEndpoint=https://me.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=a%3D", ""
    )
    assert (found["account_name"], found["sas_token"].reveal()) == ("me", "sv=1&sig=a%3D")
    assert parse_connection_string("BlobEndpoint=http://127.0.0.1:1/me", "")["account_name"] == "me"
    assert parse_connection_string("UseDevelopmentStorage=true", "")["account_name"] == "devstoreaccount1"
    with pytest.raises(ConfigError) as caught:
        parse_connection_string("AccountKey=CANARY", "")
    assert "CANARY" not in str(caught.value)


def test_what_the_environment_has_for_another_account_is_left_alone(monkeypatch):
    """A key of one account is not tried at another."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    assert parse_url("az://c/k").service.account_key.reveal() == KEY
    assert parse_url("abfs://c@mine/k").service.account_key.reveal() == KEY
    assert parse_url("abfs://c@other/k").service.account_key is None
    assert parse_url("az://c/k", {"account_name": "other"}).service.account_key is None
    assert parse_url("az://c/k", {"anonymous": True, "account_name": "mine"}).service.account_key is None
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=third;AccountKey={KEY}")
    assert service_id("az://c/k") == "https://third.blob.core.windows.net"
    assert parse_url("abfs://c@mine/k").service.account_key is None


def test_options_that_make_no_sense():
    """No account; two ways to say who asks."""
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT"):
        parse_url("az://c/k")
    with pytest.raises(ConfigError, match="at most one"):
        parse_url("az://c/k", {"account_name": "me", "account_key": KEY, "sas_token": "sig=x"})


def test_secrets_are_not_shown():
    """Neither by places nor by services."""
    for options in (
        {"account_key": KEY},
        {"sas_token": KEY},
        {"credential": KEY},
        {"connection_string": f"AccountName=m;AccountKey={KEY}"},
    ):
        assert KEY not in repr(parse_url("az://c/k", {**options, "account_name": "me"}))


def test_signatures_are_those_of_azure():
    """Parameters are sorted, headers too; recomputed by the words of Azure's documentation."""
    import hashlib
    import hmac

    place = parse_url("az://c/k", {"account_name": "me", "account_key": KEY})
    headers = {"x-ms-version": "2", "x-ms-date": "today", "Range": "bytes=0-1", "If-Match": '"e"'}
    text = 'GET\n\n\n\n\n\n\n\n"e"\n\n\nbytes=0-1\nx-ms-date:today\nx-ms-version:2\n'
    text += "/me/c/k\ncomp:list\nmarker:\nprefix:a/b"
    proof = base64.b64encode(hmac.digest(b"CANARY-key", text.encode(), hashlib.sha256)).decode()
    address = place.address(prefix="a/b", comp="list", marker="")
    assert shared_key_header(place.service, "GET", address, headers, size=0, url="") == f"SharedKey me:{proof}"


def test_names_in_lists():
    """Names that XML cannot hold come encoded; folders of Data Lake accounts are no blobs."""
    blobs = ET.fromstring(
        '<Blobs><Blob><Name Encoded="true">a%01%20b</Name></Blob><Blob><Name>a%20b</Name></Blob>'
        "<Blob><Name>f</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob></Blobs>"
    )
    assert [_blob_name(blob) for blob in blobs] == ["a\x01 b", "a%20b", "f"]
    assert [_is_folder(blob) for blob in blobs] == [False, False, True]
