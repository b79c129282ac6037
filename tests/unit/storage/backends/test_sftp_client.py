"""The sessions that are kept: bounded, closed when nothing uses them, each account's own."""

import asyncio
import gc
import random

import pytest

from webdataset.storage.backends import sftp_client
from webdataset.storage.backends.sftp_client import SshLogin


class Connection:
    """What ``asyncssh.connect`` gives, as far as it is used here."""

    def __init__(self):
        self.closed = 0

    def is_closed(self):
        """Tell whether it was closed."""
        return self.closed > 0

    def close(self):
        """Count."""
        self.closed += 1

    abort = close

    async def start_sftp_client(self, **_options):
        """Return something that is no client."""
        return object()


class Ssh:
    """In the place of asyncssh: counts connections."""

    Error = OSError

    def __init__(self):
        self.made = {}

    async def connect(self, host, **_options):
        """Connect; hosts that begin with ``no`` refuse."""
        await asyncio.sleep(0)
        if host.startswith("no"):
            raise ConnectionRefusedError(host)
        self.made.setdefault(host, []).append(Connection())
        return self.made[host][-1]

    def open(self):
        """Return the hosts with an open connection."""
        return {host for host, made in self.made.items() for each in made if not each.closed}


@pytest.fixture
def ssh(monkeypatch):
    """No server, no asyncssh, three sessions at most."""
    found = Ssh()
    monkeypatch.setattr(sftp_client, "import_asyncssh", lambda: found)
    monkeypatch.setattr(sftp_client, "MOST_SESSIONS", 3)
    monkeypatch.setattr(sftp_client, "_sessions", {})
    return found


def take(host):
    """Return the session of a host."""
    return sftp_client.run_coroutine(sftp_client.session_for(SshLogin(host)), 10)


def settle():
    """Let what is unused go away, and the loop close it."""
    gc.collect()
    sftp_client.run_coroutine(asyncio.sleep(0), 10)


def test_the_last_sessions_are_kept(ssh):
    """A hundred accounts leave three connections: those used last."""
    for number in range(100):
        take(f"host{number}")
        take("often")
    settle()
    assert ssh.open() == {"host98", "host99", "often"}
    assert len(ssh.made["often"]) == 1
    assert len(sftp_client._sessions) == 3


def test_one_in_use_is_closed_after_its_last_use(ssh):
    """It is dropped, works on, and is closed when it is let go of."""
    used = take("used")
    for number in range(5):
        take(f"host{number}")
    settle()
    assert "used" in ssh.open()
    assert used.is_open()
    again = take("used")
    assert again is not used
    del used
    settle()
    assert [each.closed for each in ssh.made["used"]] == [1, 0]


def test_many_at_once(ssh):
    """Sessions that are being opened are not dropped; those that fail are no longer kept than others."""

    async def take_all():
        names = [f"{'no' if number % 3 else ''}host{number}" for number in range(20)]
        return await asyncio.gather(
            *[sftp_client.session_for(SshLogin(name)) for name in names], return_exceptions=True
        )

    found = sftp_client.run_coroutine(take_all(), 10)
    assert sum(isinstance(each, sftp_client.SftpSession) and each.is_open() for each in found) == 7
    take("last")
    del found
    settle()
    assert len(sftp_client._sessions) == 3
    assert len(ssh.open()) <= 3
    assert "last" in ssh.open()


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_are_used(ssh, seed):
    """Whatever the order of uses: what is used is open, and at most three others are."""
    draw = random.Random(seed)
    held = {}
    for _ in range(200):
        host = f"host{draw.randrange(10)}"
        if host in held and draw.random() < 0.5:
            del held[host]
        else:
            held[host] = take(host)
            if draw.random() < 0.5:
                del held[host]
        settle()
        assert set(held) <= ssh.open()
        assert all(session.is_open() for session in held.values())
        assert len(sftp_client._sessions) <= 3
        assert sum(not each.closed for made in ssh.made.values() for each in made) <= 3 + len(held)


def test_a_session_that_was_dropped_for_silence(ssh):
    """Its successor stays when the old one is let go of."""
    first = take("host")
    sftp_client.run_coroutine(sftp_client.drop_session(SshLogin("host"), first), 10)
    second = take("host")
    assert second is not first
    del first
    settle()
    assert second.is_open()
    assert ssh.made["host"][0].closed
