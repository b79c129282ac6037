"""A secret never survives, whatever form it is written in; everything else does."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core import error_handlers
from webdataset.core.errors import NotFound
from webdataset.core.redaction import redact

NAMES = (
    "token auth_token access_token client_secret access-key Key-Pair-Id x-oss-signature q-signature sig api_key apikey "
    "password X-Amz-Signature X-Amz-Credential AWSAccessKeyId OSSAccessKeyId Signature secret X-Goog-Signature"
).split()
FORMS = [
    *(f"https://h/x.tar?{name}=%s&n=1" for name in NAMES),
    *(f"https://h/x.tar?n=1&{name}=%s" for name in NAMES),
    "https://h/x.tar?n=1;token=%s",
    "https://h/x.tar?max_tokens=7%s",
    "https://h/x.tar#access_token=%s",
    "http://user:%s@host/x.tar",
    "http://user:pa/%s@host/x.tar",
    "http://user:pa %s@host/x.tar",
    "http://user:pa?%s@host/x.tar",
    "pipe:curl -u user:%s http://h/x",
    "pipe:curl -uuser:%s http://h/x",
    "pipe:curl -sSu 'user:my %s' http://h/x",
    "pipe:curl --user user:%s http://h/x",
    "pipe:curl --user=user:%s http://h/x",
    "pipe:tool --password=%s http://h/x",
    "pipe:tool --password %s http://h/x",
    "pipe:tool --password 'my %s' http://h/x",
    'pipe:tool --access-token="my %s" http://h/x',
    "pipe:curl --oauth2-bearer %s http://h/x",
    "pipe:curl -H 'X-Api-Key: %s' http://h/x",
    "pipe:curl -H X-Api-Key:%s http://h/x",
    "pipe:curl -H 'token: %s' http://h/x",
    "pipe:curl -H 'Authorization: Basic %s' http://h/x",
    "pipe:curl -H 'Authorization: token %s' http://h/x",
    "pipe:curl -H \"authorization: Digest username='me', response='%s'\" http://h/x",
    "pipe:curl -H 'Accept: */*' -H 'X-Api-Key: %s' http://h/x",
    "pipe:sh -c 'curl --password=%s http://h/x'",
    "unexpected token: x in curl -H X-Api-Key: %s",
    "curl -H Authorization: Bearer %s",
    "Authorization=Bearer %s",
    "pipe:AWS_SECRET_ACCESS_KEY=%s aws s3 cp s3://b/x -",
    "pipe:N=1 AWS_SESSION_TOKEN='%s' aws s3 cp s3://b/x -",
    "pipe:AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=%s aws s3 cp s3://b/x -",
]
SECRETS = st.text("abcXYZ0189+/=_.~%-", min_size=1, max_size=12).map(lambda tail: f"CANARY{tail}CANARY")


@pytest.mark.parametrize("form", FORMS)
@given(secret=SECRETS)
def test_no_form_shows_its_secret(form, secret):
    """A canary in any form is gone: alone, quoted within a message, and in all that an error shows."""
    text = form % secret
    error = NotFound(f"cannot open {text!r}", url=text, key=text)
    for shown in (redact(text), redact(repr(text)), str(error), repr(error), str(error.args), error.message):
        assert "CANARY" not in shown
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/key=3/x.tar",
        "/data/token=3/x.tar",
        "s3://bucket/year=2024/auth=no/x.tar",
        "https://h/x.tar?n=1&page=2#top",
        "http://host:8080/a@2x/x.tar",
        "http://[::1]:80/a@b/x.tar",
        "http://h/a@b:c/x.tar",
        "pipe:python -u read.py --shard 3 http://h/x",
        "pipe:sort -u file.txt",
        "pipe:wget --auth-no-challenge http://h/x",
        "invalid JSON: unexpected token: x at byte 3",
        "map: tokenize (file.py:12)",
        "it has Pack(how='window', max_tokens=512, window=64) (here Pack(max_tokens=128))",
        "no field 'auth'; the sample has key='a', n=1",
    ],
)
def test_ordinary_text_stays(text):
    """Paths, ports, parameters and prose without secrets are not touched."""
    assert redact(text) == text


def test_what_stands_beside_a_secret_stays():
    """Only the secret is replaced, so that the url can still be recognised."""
    assert redact("http://u:a@b@h/x.tar") == "http://***@h/x.tar"
    assert redact("http://u:a/b@h/x.tar?n=1") == "http://***@h/x.tar?n=1"
    assert redact("pipe:curl -u u:p 'http://h/x'") == "pipe:curl -u *** 'http://h/x'"
    assert redact("pipe:tool --password=p -n 3") == "pipe:tool --password=*** -n 3"
    assert redact("pipe:curl -H 'X-Api-Key: a b' http://h/x") == "pipe:curl -H 'X-Api-Key: ***' http://h/x"


@pytest.mark.parametrize("handler", [error_handlers.ignore_and_continue, error_handlers.ignore_and_stop])
@pytest.mark.parametrize("kind", [ValueError, NotFound])
def test_quiet_handlers_log_no_secret(handler, kind, caplog):
    """What is ignored is logged without secrets, foreign errors too."""
    with caplog.at_level(logging.DEBUG, "webdataset"):
        handler(kind("cannot open http://me:CANARY@h/x"))
    assert kind.__name__ in caplog.text
    assert "CANARY" not in caplog.text


@pytest.mark.limited
def test_long_text_comes_back():
    """Work grows with the length of the text, not with its square, or a megabyte took hours."""
    for piece in ("token", "a", "://", "://a:", "-", "--user ", "' ", "= ", "bearer ", "X-Api-Key:", "?", "\\"):
        assert redact(piece * (1_000_000 // len(piece)))[:1] == piece[:1]


@pytest.mark.parametrize(
    "url", ["abfs://container@account.dfs.core.windows.net/x", "az://c@a/x", "ais://@uuid#space/b/x"]
)
def test_containers_and_clusters_are_no_users(url):
    """What stands before the @ of these urls says where something lies, and a message without it would help nobody."""
    assert redact(f"no access to {url}") == f"no access to {url}"


@pytest.mark.parametrize("url", ["abfs://me:SECRET@account/x", "baz://SECRET@host/x", "https://SECRET@host/x"])
def test_what_may_be_a_password_is_none_of_them(url):
    """A colon, or another scheme, makes a login of it."""
    assert "SECRET" not in redact(url)
