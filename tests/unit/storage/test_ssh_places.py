"""Urls of files on other machines: what they name, and what they must not be taken for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core.errors import ConfigError, UsageError
from webdataset.storage.backends import sftp_client
from webdataset.storage.open_url import resolve_url


@pytest.mark.parametrize(
    ("url", "host", "port", "username", "path"),
    [
        ("ssh://h/a/b.tar", "h", None, None, "/a/b.tar"), ("sftp://me@h:2222/x", "h", 2222, "me", "/x"),
        ("scp://[::1]:22/x", "::1", 22, None, "/x"), ("SSH://me@[fe80::1%eth0]/x", "fe80::1%eth0", None, "me", "/x"),
        ("ssh://h/~/x", "h", None, None, "x"), ("ssh://h//x", "h", None, None, "//x"),
        ("ssh://first.last%40corp@node-1.example/x y#z?", "node-1.example", None, "first.last@corp", "/x y#z?"),
        ("ssh://me:p%40:s/s@h/x", None, None, None, None),
    ],
)  # fmt: skip
def test_what_a_url_names(url, host, port, username, path):
    """User, host, port and path; a slash ends the host, wherever it stands."""
    if host is None:
        with pytest.raises(UsageError):
            sftp_client.parse_url(url)
        return
    place = sftp_client.parse_url(url)
    assert (place.login.host, place.login.port, place.login.username, place.path) == (host, port, username, path)


def test_the_url_goes_before_the_options():
    """Options fill in what the url leaves open."""
    options = {"username": "other", "port": 1, "password": "word", "key_filename": ["a", "b"], "known_hosts": False}
    login = sftp_client.parse_url("ssh://me:pass%40@h:2/x", options).login
    assert (login.username, login.port, login.password.reveal(), login.key_filename) == ("me", 2, "pass@", ("a", "b"))
    login = sftp_client.parse_url("ssh://h/x", options).login
    assert (login.username, login.port, login.password.reveal(), login.known_hosts) == ("other", 1, "word", False)
    assert "sesame" not in repr(sftp_client.parse_url("ssh://me:sesame@h:2/x", {"passphrase": "sesame"}))
    with pytest.raises(ConfigError):
        sftp_client.parse_url("ssh://h/x", {"token": "x"})


def test_services_are_told_apart():
    """Copies of one path on two accounts are two; no password is in their names."""
    told = {
        resolve_url(url).service_id()
        for url in ("ssh://a@h/x", "ssh://b@h/x", "ssh://b@h:2/x", "ssh://b:word@i/x", "sftp://a@h/y")
    }
    assert len(told) == 4
    assert "word" not in "".join(told)


@given(st.text(max_size=20), st.text(max_size=20))
def test_hosts_and_users_are_words(user, host):
    """Whatever is accepted holds nothing that a shell or a program's options could take for something else."""
    try:
        login = sftp_client.parse_url(f"ssh://{user}@{host}/x").login
    except UsageError:
        return
    for word in filter(None, (login.host, login.username)):
        assert not word.startswith("-")
        assert not set(word) & set(" \t\n\r;&|<>$`'\"\\*?()!#~=/")
