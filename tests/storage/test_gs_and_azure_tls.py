"""Google Cloud Storage and Azure over TLS: which certificates to trust, and a line that is torn."""

import datetime as dt
import ipaddress
import os
import socket
import struct

import pytest

import webdataset as wds
from webdataset.core.errors import SourceError
from webdataset.testing.sources import Answering, Listening

BODY = os.urandom(400_000)


class Torn(Answering):
    """An object; the first answers break off, without TLS or TCP saying good-bye."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        """Send it, or some of it."""
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.send_header("Content-Length", str(len(BODY) - start))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.server.asked.append(start)
        if len(self.server.asked) > 3:
            self.wfile.write(BODY[start:])
            return
        self.wfile.write(BODY[start : start + 100_000])
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", len(self.server.asked) % 2, 0)
        )
        os.close(self.connection.detach())


@pytest.fixture
def torn(tmp_path):
    """A service with a certificate that nobody knows; its port, and the file to trust."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    trusted, both = tmp_path / "trusted.pem", tmp_path / "both.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    both.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + trusted.read_bytes()
    )
    with Listening(Torn, asked=[], trusted=trusted, handle_error=lambda *_: None).secure(both) as server:
        yield server


@pytest.mark.parametrize("url", ["gs://bucket/key", "az://container/blob"])
def test_a_torn_line_and_a_stranger(torn, url, waits, monkeypatch):
    """A certificate that is not trusted is said at once; with SSL_CERT_FILE all bytes come, however often it tears."""
    from webdataset.storage import http_client

    options = {"gs": {}, "az": {"account_name": "me"}}[url[:2]] | {"endpoint_url": torn.url}
    options["anonymous"] = True
    http_client._pools.clear()
    with pytest.raises(SourceError, match="certificate is not trusted"):
        wds.gopen(url, storage_options=options)
    assert not waits
    monkeypatch.setenv("SSL_CERT_FILE", str(torn.trusted))
    http_client._pools.clear()
    with wds.gopen(url, storage_options=options) as stream:
        assert stream.read() == BODY
        assert stream.resumes == 3
    http_client._pools.clear()
