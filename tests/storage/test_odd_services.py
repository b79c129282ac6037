"""Services that lead away, quote secrets, or vouch for what they send: typed errors, masks, verified bytes."""

import base64
import hashlib
import logging
import ssl
import zlib
from pathlib import Path

import pytest

import webdataset as wds
from support.scheme_servers import certified
from webdataset.core.errors import ShortRead, SourceError
from webdataset.storage.backends import s3_client as s3_clients
from webdataset.storage.backends.s3_client import escape_key, parse_key, parse_url
from webdataset.testing.sources import Answering, Listening

BODY = hashlib.shake_256(b"vouched").digest(300_000)


class Service(Answering):
    """Answers every request as its rules say."""

    def do_GET(self):
        """Call the rule."""
        self.server.rules["asked"].append((self.command, self.path, dict(self.headers)))
        self.server.rules["answer"](self)

    do_HEAD = do_GET


@pytest.fixture
def service():
    """Return a function from a rule to a running service."""
    running = []

    def start(answer, certificate=None):
        server = Listening(Service, {"answer": answer, "asked": []})
        if certificate is not None:
            server.secure(certificate)
        running.append(server.start())
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Keys of nobody, and no settings of this machine."""
    pytest.importorskip("botocore")
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNOBODY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-nobody")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    s3_clients._clients.clear()
    yield monkeypatch
    s3_clients._clients.clear()


def read(url, server=None):
    """Read an object, of S3 from a service."""
    options = {"endpoint_url": server.url} if server is not None else None
    with wds.gopen(url, storage_options=options) as stream:
        return stream.read()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("region", [None, "eu-central-1"])
def test_redirects_of_s3_are_errors(service, status, region):
    """No redirect is followed, none ends in a recursion; the error says where it leads, and no key goes there."""
    elsewhere = service(lambda one: one.send(200, BODY, ETag='"1"'))
    headers = {"Location": f"{elsewhere.url}/bucket/key?X-Amz-Signature=sig-of-nobody"}
    if region:
        headers["x_amz_bucket_region"] = region
    server = service(lambda one: one.send(status, b"<html>moved</html>", **headers))
    with pytest.raises(SourceError, match="region" if region else "redirects") as caught:
        read("s3://bucket/key", server)
    assert not elsewhere.rules["asked"]
    assert len(server.rules["asked"]) <= 4
    assert "sig-of-nobody" not in str(caught.value)
    if not region:
        assert "127.0.0.1" in str(caught.value)
    with pytest.raises(SourceError):  # the guard is not left behind in this thread
        read("s3://bucket/key", server)


def test_certificates_of_the_environment_hold_for_s3(service, environment, tmp_path):
    """``SSL_CERT_FILE`` and ``REQUESTS_CA_BUNDLE`` say which certificates to trust, for S3 as for https."""
    pytest.importorskip("trustme")
    certificate, authority = certified(tmp_path)
    server = service(lambda one: one.send(200, BODY, ETag='"1"'), certificate)
    with pytest.raises(SourceError, match="not trusted"):
        read("s3://bucket/key", server)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        environment.setenv(name, str(authority))
        s3_clients._clients.clear()
        assert read("s3://bucket/key", server) == BODY
        assert read(f"{server.url}/x") == BODY
        environment.delenv(name)
    environment.setenv("AWS_CA_BUNDLE", str(Path(ssl.get_default_verify_paths().openssl_cafile).parent / "none.pem"))
    environment.setenv("SSL_CERT_FILE", str(authority))
    s3_clients._clients.clear()
    with pytest.raises((SourceError, OSError)):  # what is said to AWS comes first
        read("s3://bucket/key", server)


@pytest.mark.parametrize("tag", ["Token-0", "Token-1", "SessionToken", "CanonicalRequest", "StringToSign"])
def test_tokens_in_error_bodies_are_masked(service, environment, caplog, tag):
    """At DEBUG, what a service quotes of a token does not reach the log, nor the error."""
    token = "FwoGZXIvYXdzEXAMPLETOKEN"
    environment.setenv("AWS_SESSION_TOKEN", token)
    body = (
        f"<?xml version='1.0'?><Error><Code>InvalidToken</Code><Message>malformed</Message>"
        f"<{tag}>{token}</{tag}><RequestId>1</RequestId></Error>"
    ).encode()
    server = service(lambda one: one.send(400, body, Content_Type="application/xml"))
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SourceError) as caught:
        read("s3://bucket/key", server)
    assert "InvalidToken" in caplog.text  # the body was logged
    assert token not in caplog.text
    assert token not in str(caught.value)


def base64_of(content):
    """Return bytes as headers hold them."""
    return base64.b64encode(content).decode()


def crc32c(content):
    """Return CRC32C, four bytes."""
    return pytest.importorskip("google_crc32c").value(content).to_bytes(4, "big")


def crc64nvme(content):
    """Return CRC64NVME, eight bytes, by its definition."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x9A6C9329AC4BC9B5 if byte & 1 else 0)
        table.append(byte)
    found = (1 << 64) - 1
    for byte in content:
        found = found >> 8 ^ table[(found ^ byte) & 255]
    return (found ^ (1 << 64) - 1).to_bytes(8, "big")


def test_the_definition_of_crc64nvme():
    """It gives the value that the catalogue of CRCs names."""
    assert crc64nvme(b"123456789").hex() == "ae8b14860a799888"


SUMS = {
    "crc32": ("x_amz_checksum_crc32", lambda body: base64_of(zlib.crc32(body).to_bytes(4, "big"))),
    "crc32c": ("x_amz_checksum_crc32c", lambda body: base64_of(crc32c(body))),
    "crc64nvme": ("x_amz_checksum_crc64nvme", lambda body: base64_of(crc64nvme(body))),
    "sha256": ("x_amz_checksum_sha256", lambda body: base64_of(hashlib.sha256(body).digest())),
    "sha1": ("x_amz_checksum_sha1", lambda body: base64_of(hashlib.sha1(body).digest())),
    "md5": ("Content_MD5", lambda body: base64_of(hashlib.md5(body).digest())),
}


@pytest.mark.parametrize("kind", SUMS)
def test_checksums_of_s3_are_verified(service, kind):
    """Bytes that are not those that the service vouches for are an error; those of parts are passed over."""
    if kind == "crc64nvme":
        pytest.importorskip("awscrt.checksums")
    name, sum_of = SUMS[kind]
    damaged = bytes([BODY[0] ^ 1]) + BODY[1:]
    for vouched, sent, right in [(BODY, BODY, True), (BODY, damaged, False)]:
        server = service(lambda one, s=sent, v=vouched: one.send(200, s, ETag='"1"', **{name: sum_of(v)}))
        if right:
            assert read("s3://bucket/key", server) == sent
        else:
            with pytest.raises(ShortRead, match="checksum"):
                read("s3://bucket/key", server)
    parts = f"{sum_of(BODY)}-3"
    server = service(lambda one: one.send(200, damaged, ETag='"1"', **{name: parts}))
    assert read("s3://bucket/key", server) == damaged


WEB = {
    "Content-MD5": ("Content_MD5", lambda body: base64_of(hashlib.md5(body).digest())),
    "Repr-Digest": ("Repr_Digest", lambda body: f"sha-256=:{base64_of(hashlib.sha256(body).digest())}:"),
    "two": (
        "Repr_Digest",
        lambda body: f"unixsum=:AAA=:, sha-512=:{base64_of(hashlib.sha512(body).digest())}:;x=1, id=:AAAA:",
    ),
}


@pytest.mark.parametrize("kind", WEB)
def test_digests_of_web_servers_are_verified(service, kind):
    """``Content-MD5`` and ``Repr-Digest`` are held against the bytes of the whole object."""
    name, sum_of = WEB[kind]
    server = service(lambda one: one.send(200, BODY, ETag='"1"', **{name: sum_of(BODY)}))
    assert read(f"{server.url}/x") == BODY
    damaged = BODY[:-1] + bytes([BODY[-1] ^ 1])
    server = service(lambda one: one.send(200, damaged, ETag='"1"', **{name: sum_of(BODY)}))
    with pytest.raises(ShortRead, match="checksum"):
        read(f"{server.url}/x")


@pytest.mark.parametrize("text", ["", "x", "sha-256=:====:", "sha-256", ":::", "sha-256=:AAAA:", "\x7f"])
def test_digests_that_are_none_do_no_harm(service, text):
    """Headers that hold no digest are passed over."""
    server = service(lambda one: one.send(200, BODY, ETag='"1"', Repr_Digest=text, Content_MD5=text))
    assert read(f"{server.url}/x") == BODY


@pytest.mark.parametrize(
    ("written", "key", "version"),
    [
        ("a/key", "a/key", None),
        ("a/key?versionId=abc", "a/key", "abc"),
        ("a/key%3FversionId=abc", "a/key?versionId=abc", None),
        ("a/key%3fversionId=abc?versionId=v1", "a/key?versionId=abc", "v1"),
        ("a/key%253FversionId=abc", "a/key%3FversionId=abc", None),
        ("a/100%25.tar", "a/100%25.tar", None),
        ("a/what%3F.tar", "a/what%3F.tar", None),
    ],
)
def test_keys_that_look_like_a_version(service, written, key, version):
    """``%3FversionId=`` names a key that holds ``?versionId=``; nothing else in a key is decoded."""
    place = parse_url(f"s3://bucket/{written}")
    assert (place.key, place.version) == (key, version)
    assert parse_key(escape_key(key)) == key
    server = service(lambda one: one.send(200, BODY, ETag='"1"'))
    assert read(f"s3://bucket/{written}", server) == BODY
    from urllib.parse import parse_qs, unquote, urlsplit

    asked = urlsplit(server.rules["asked"][0][1])
    assert unquote(asked.path) == f"/bucket/{key}"
    assert parse_qs(asked.query).get("versionId") == (None if version is None else [version])


def test_listed_keys_can_be_opened(service):
    """What a list gives names its object, whatever the key holds."""
    keys = ["a?versionId=1.tar", "a%3FversionId=1.tar", "plain.tar", "q?x=1.tar"]
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
    server = service(lambda one: one.send(200, page, Content_Type="application/xml"))
    from webdataset.storage.backends.s3 import list_keys as listed

    found = list(listed("s3://bucket/", "", {"endpoint_url": server.url}))
    assert [parse_url(f"s3://bucket/{name}").key for name in found] == keys
