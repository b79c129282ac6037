"""A real ssh server: reading, resuming, writing, listing, logins; every byte or a typed error, no secret shown."""

import contextlib
import gc
import hashlib
import io
import os
import pickle
import pwd
import re
import subprocess
import sys

import pytest

import webdataset as wds
from support.ssh_server import programs, shared_ssh
from support.wires import CutWire
from webdataset.core.errors import NotFound, ShardChanged, SourceError, UsageError
from webdataset.core.seeds import make_rng
from webdataset.storage.backends import sftp, sftp_client
from webdataset.storage.random_access import open_ranges

SIZE = 3_000_000
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
CANARY = "CANARY-7f3a"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")


@pytest.fixture(scope="session")
def server(tmp_path_factory, request):
    """One sshd for all processes of this run."""
    pytest.importorskip("asyncssh")
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    try:
        programs()
        with shared_ssh(folder / "ssh") as running:
            yield running
    except NotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def far(server, monkeypatch, tmp_path):
    """Its files, with ``x`` in them, and a home with keys that fit; returns a function from names to urls."""
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    folder = server.files / f"{WORKER}-{tmp_path.name}"
    folder.mkdir()
    (folder / "x").write_bytes(BODY)

    def url(name="x", host="shards", scheme="ssh"):
        return f"{scheme}://{host}{folder}/{name}"

    url.folder = folder
    yield url
    for login in list(sftp_client._sessions):
        sftp_client.run_coroutine(sftp_client.drop_session(login), 10)


@pytest.fixture
def wired(far, server):
    """Return a function that puts a wire that is cut before the server, and gives the url of a file behind it."""
    running = []

    def start(plan=(), kind="reset", name="x"):
        wire = CutWire(server.port, plan, kind).__enter__()
        running.append(wire)
        options = {
            "key_filename": f"{server.home}/.ssh/id_ed25519",
            "known_hosts": str(far.folder / "hosts"),
            "port": wire.port,
        }
        public = (server.home.parent / "host_key.pub").read_text().split()
        (far.folder / "hosts").write_text(f"[127.0.0.1]:{wire.port} {public[0]} {public[1]}\n")
        return wire, f"ssh://127.0.0.1{far.folder}/{name}", options

    yield start
    for wire in running:
        wire.__exit__()


def drained(url, size=100_000, **options):
    """Read a url to its end in pieces."""
    with wds.gopen(url, **options) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("scheme", ["ssh", "sftp", "scp", "SSH"])
def test_a_file_comes_whole(far, scheme):
    """All schemes mean the same; the host is one of ``~/.ssh/config``."""
    assert drained(far(scheme=scheme)) == BODY
    (far.folder / "empty").write_bytes(b"")
    assert drained(far("empty", scheme=scheme)) == b""


def test_a_jump_host(far):
    """``ProxyJump`` of the user's configuration is heeded."""
    assert drained(far(host="far")) == BODY


def test_a_file_is_read_anywhere(far):
    """By ranges, also of an empty file, and across the end."""
    with open_ranges(far()) as ranges:
        assert ranges.length == SIZE
        for offset in range(100_000, 2_900_000, 333_333):
            assert ranges.read_at(offset, 1000) == BODY[offset : offset + 1000]
        assert ranges.read_at(SIZE - 3, 100) == BODY[-3:]
        assert ranges.read_at(100_000, 2_500_000) == BODY[100_000:2_600_000]
    (far.folder / "empty").write_bytes(b"")
    with open_ranges(far("empty")) as ranges:
        assert ranges.length == 0
        assert ranges.read_at(0, 10) == b""


def test_shards_are_written_listed_and_read(far):
    """ShardWriter, wildcards, folders and WebDataset, over ssh."""
    with wds.ShardWriter(far("train-%02d.tar"), maxcount=4) as sink:
        for number in range(10):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}"})
    (far.folder / "deep" / "er").mkdir(parents=True)
    (far.folder / "deep" / "train-99.tar").write_bytes((far.folder / "train-02.tar").read_bytes())
    (far.folder / "deep" / "er" / "train-98.tar").write_bytes(b"x")
    (far.folder / ".train-00.tar.part").write_bytes(b"half")
    names = [far(f"train-{number:02}.tar") for number in range(3)]
    assert wds.expand_urls(far("train-*.tar")) == names
    assert wds.expand_urls(far("*/train-*.tar")) == [far("deep/train-99.tar")]
    assert wds.expand_urls(far("**/train-9*.tar")) == [far("deep/er/train-98.tar"), far("deep/train-99.tar")]
    assert wds.expand_urls(far("deep/")) == [far("deep/er/train-98.tar"), far("deep/train-99.tar")]
    (far.folder / ".deep").mkdir()
    (far.folder / ".deep" / "train-97.tar").write_bytes(b"x")
    assert wds.expand_urls(far(".*/train-*.tar")) == [far(".deep/train-97.tar")]
    assert wds.expand_urls(far("nothing-*.tar")) == [far("nothing-*.tar")]
    dataset = wds.WebDataset(far("train-*.tar"), shardshuffle=False).decode()
    assert [sample["txt"] for sample in dataset] == [f"caption {number}" for number in range(10)]


def test_names_are_taken_as_they_stand(far):
    """Spaces, signs and escapes; an escape is decoded where only the decoded name is there, as other programs do."""
    for name in ("sp ace #1?.tar", "50%25.tar", "ümlaut.tar"):
        (far.folder / name).write_bytes(name.encode())
        assert drained(far(name)) == name.encode()
    assert drained(far("sp%20ace%20%231?.tar")) == b"sp ace #1?.tar"


def test_the_home_folder(far, server):
    """``/~/`` is where the login begins."""
    with pytest.raises(NotFound):
        drained(f"ssh://shards/~/{far.folder.name}-absent")
    nothing = f"ssh://shards/~/{far.folder.name}-absent-*.tar"
    assert wds.expand_urls(nothing) == [nothing]
    home = pwd.getpwuid(os.getuid()).pw_dir
    names = [
        name for name in os.listdir(home) if re.fullmatch(r"[\w.-]{2,}", name) and os.path.isfile(f"{home}/{name}")
    ]
    for name in names[:3]:
        assert f"ssh://shards/~/{name}" in wds.expand_urls(f"ssh://shards/~/{name[:-1]}*")


def test_writing_publishes_at_the_end(far):
    """Nothing of that name before close; the old file after an exception; no leftovers; large pieces at once."""
    with wds.gopen(far("up"), "wb") as stream:
        for start in range(0, SIZE, 77_777):
            stream.write(BODY[start : start + 77_777])
        assert not (far.folder / "up").exists()
    assert (far.folder / "up").read_bytes() == BODY
    with pytest.raises(ZeroDivisionError), wds.gopen(far("up"), "wb") as stream:
        stream.write(bytes([1 // (stream.write(OTHER) - SIZE)]))
    assert (far.folder / "up").read_bytes() == BODY
    with wds.gopen(far("up"), "wb") as stream:
        stream.write(OTHER * 3)
    assert (far.folder / "up").read_bytes() == OTHER * 3
    assert sorted(os.listdir(far.folder)) == ["up", "x"]


def test_a_forgotten_upload_publishes_nothing(far):
    """Dropped without close: a warning, and nothing left on the server."""
    stream = wds.gopen(far("up"), "wb")
    stream.write(BODY)
    with pytest.warns(ResourceWarning, match="nothing was published"):
        del stream
    assert os.listdir(far.folder) == ["x"]


def test_what_is_not_there(far, waits):
    """No file, no folder to write into, a folder, nothing that can be opened: errors at once."""
    for name in ("absent", "x/y"):
        with pytest.raises(NotFound):
            drained(far(name))
    with pytest.raises(NotFound):
        wds.gopen(far("absent/up"), "wb")
    with pytest.raises(SourceError):
        drained(far("").rstrip("/"))
    with pytest.raises(UsageError):
        drained(far(""))
    assert not waits


@pytest.mark.parametrize("kind", ["reset", "end"])
def test_dropped_connections_are_taken_up(wired, waits, kind):
    """Bytes that came before are kept, the rest is asked for over another connection."""
    wire, url, options = wired([1_500_000, 10, 700_000, 1_200_000], kind)
    assert drained(url, storage_options=options) == BODY
    assert wire.connections >= 4
    assert waits[0] < 0.2


@pytest.mark.parametrize("seed", range(12))
def test_seeded_cuts_are_never_silent(wired, waits, far, seed):
    """Cuts drawn from a seed, in every phase; some runs replace the file: equal bytes or a typed error."""
    rng = make_rng("cuts", seed)
    plan = [rng.choice((rng.randrange(5000), rng.randrange(SIZE))) for _ in range(4)]
    wire, url, options = wired(plan, rng.choice(("reset", "end")))
    received = bytearray()
    with contextlib.suppress(ShardChanged, EOFError), wds.gopen(url, storage_options=options) as stream:
        while piece := stream.read(rng.randrange(1, 300_000)):
            received += piece
            if seed % 3 == 0 and len(received) > SIZE // 2:
                (far.folder / "new").write_bytes(OTHER)
                os.utime(far.folder / "new", (1, 1))
                (far.folder / "new").rename(far.folder / "x")
    assert BODY.startswith(received)
    assert len(received) == SIZE or seed % 3 == 0


def test_a_silent_connection_is_left(wired, waits, monkeypatch):
    """No byte for the read timeout: the rest comes over another connection."""
    monkeypatch.setattr(sftp_client, "READ_SECONDS", 0.5)
    wire, url, options = wired([1_000_000], "silence")
    assert drained(url, storage_options=options) == BODY
    assert wire.connections == 2


def test_ranges_survive_drops(wired, waits):
    """A range that breaks off is continued."""
    wire, url, options = wired([150_000, 400_000])
    with open_ranges(url, storage_options=options) as ranges:
        assert ranges.read_at(500_000, 1_000_000) == BODY[500_000:1_500_000]
    assert wire.connections == 3


@pytest.mark.parametrize("seed", range(6))
def test_uploads_survive_drops(wired, waits, far, seed):
    """What was not confirmed is written again, to the same place; the file is whole, and nothing is left beside it."""
    wire, url, options = wired(name="up")
    with wds.gopen(url, "wb", storage_options=options) as stream:
        for number in range(12):
            stream.write(BODY[:250_000] if number % 2 else OTHER[:900_000])
            if number % 4 == seed % 4:
                wire.cut()
        if seed > 3:
            wire.cut()
    assert (far.folder / "up").read_bytes() == (OTHER[:900_000] + BODY[:250_000]) * 6
    assert sorted(name for name in os.listdir(far.folder) if name != "hosts") == ["up", "x"]


@pytest.mark.parametrize("lost", [False, True])
def test_an_old_file_of_the_same_size_is_not_taken_for_the_upload(wired, waits, far, monkeypatch, lost):
    """Another program removes what was written: that is said, although the name has a file of the right size."""
    wire, url, options = wired(name="up")
    (far.folder / "up").write_bytes(OTHER)
    os.utime(far.folder / "up", (1, 1))
    stream = wds.gopen(url, "wb", storage_options=options)
    stream.write(BODY)

    def remove():
        next(far.folder.glob(".up.*.part")).unlink()

    if lost:
        move = sftp._move_file

        async def break_off(*words):
            remove()
            wire.cut()
            await move(*words)

        monkeypatch.setattr(sftp, "_move_file", break_off)
    else:
        remove()
    with pytest.raises(SourceError, match="is gone.*write it again"):
        stream.close()
    assert (far.folder / "up").read_bytes() == OTHER


def test_a_rename_whose_answer_is_lost(wired, waits, far, monkeypatch):
    """The file has its name by then: the upload is complete."""
    wire, url, options = wired(name="up")
    move = sftp._move_file

    async def break_off(*words):
        await move(*words)
        wire.cut()
        raise ConnectionResetError

    monkeypatch.setattr(sftp, "_move_file", break_off)
    with wds.gopen(url, "wb", storage_options=options) as stream:
        stream.write(BODY)
    assert (far.folder / "up").read_bytes() == BODY
    assert waits


def test_a_file_that_was_begun_and_whose_answer_is_lost(wired, waits, far, monkeypatch):
    """The file beside its place is there by then: it is this upload's own."""
    wire, url, options = wired(name="up")
    begin, broken = sftp._open_writer, []

    async def break_off(*words):
        handle = await begin(*words)
        if not broken:
            broken.append(handle)
            wire.cut()
            raise ConnectionResetError
        return handle

    monkeypatch.setattr(sftp, "_open_writer", break_off)
    with wds.gopen(url, "wb", storage_options=options) as stream:
        stream.write(BODY)
    assert (far.folder / "up").read_bytes() == BODY
    assert sorted(name for name in os.listdir(far.folder) if name != "hosts") == ["up", "x"]


def test_what_was_written_is_shortened(far, monkeypatch):
    """Another program cuts what was written: an error of this library, and nothing is published."""
    stream = wds.gopen(far("up"), "wb")
    stream.write(BODY)
    stream._pending[-1][2].result(10)
    stream.write(b"x")
    part = next(far.folder.glob(".up.*.part"))
    whole = sftp._find_partial

    async def shorten(*words):
        os.truncate(part, 10)
        return await whole(*words)

    monkeypatch.setattr(sftp, "_find_partial", shorten)
    with pytest.raises(SourceError, match="of 10 bytes instead of 3000001"):
        stream.close()
    assert not (far.folder / "up").exists()


@pytest.mark.parametrize("how", ["renamed", "written over", "shortened"])
def test_a_replaced_file_is_an_error(wired, waits, far, how):
    """The file is another one when the rest of it is asked for: ShardChanged."""
    wire, url, options = wired([1_500_000])
    with wds.gopen(url, storage_options=options) as stream:
        stream.read(1000)
        if how == "renamed":
            (far.folder / "new").write_bytes(OTHER)
            os.utime(far.folder / "new", (1, 1))
            (far.folder / "new").rename(far.folder / "x")
        else:
            (far.folder / "x").write_bytes(OTHER if how == "written over" else OTHER[:1_000_000])
            os.utime(far.folder / "x", (1, 1))
        with pytest.raises(ShardChanged):
            stream.read()


def test_a_file_written_over_in_place_is_noticed_without_a_drop(far):
    """The time of its last change is asked for again at the end."""
    with wds.gopen(far()) as stream:
        stream.read(1000)
        os.utime(far.folder / "x", (1, 1))
        with pytest.raises(ShardChanged):
            stream.read()


def test_unknown_hosts_are_refused(far, server, waits):
    """With what to do; the check can be turned off in so many words."""
    url = f"ssh://127.0.0.1:{server.port}{far.folder}/x"
    key = {"key_filename": f"{server.home}/.ssh/id_ed25519"}
    with pytest.raises(SourceError, match=rf"ssh-keyscan -p {server.port} 127.0.0.1"):
        drained(url, storage_options={**key, "known_hosts": os.devnull})
    assert not waits
    assert drained(url, storage_options={**key, "known_hosts": False}) == BODY
    assert drained(url, storage_options={**key, "port": 1}) == BODY, "the url's port goes first"


def test_changed_host_keys_are_refused(far, server, waits):
    """A server with another key than the known one is not spoken to."""
    (far.folder / "hosts").write_text(
        f"[127.0.0.1]:{server.port} " + (server.home / ".ssh" / "id_ed25519.pub").read_text()
    )
    with pytest.raises(SourceError, match="known hosts"):
        drained(f"ssh://127.0.0.1:{server.port}/x", storage_options={"known_hosts": str(far.folder / "hosts")})
    assert not waits


def test_wrong_logins(far, server, waits, tmp_path):
    """No key that fits, an encrypted one without its passphrase, one that is not there: errors with what to do."""
    key = tmp_path / "key"
    subprocess.run([programs()[1], "-q", "-t", "ed25519", "-N", CANARY, "-f", str(key)], check=True)
    url = f"ssh://127.0.0.1:{server.port}{far.folder}/x"
    with pytest.raises(SourceError, match="passphrase"):
        drained(url, storage_options={"key_filename": str(key)})
    with pytest.raises(SourceError, match="refuses these credentials"):
        drained(url, storage_options={"key_filename": str(key), "passphrase": CANARY})
    with pytest.raises(SourceError, match="wrong|passphrase") as caught:
        drained(url, storage_options={"key_filename": str(key), "passphrase": f"not {CANARY}"})
    assert CANARY not in repr(caught.value)
    with pytest.raises(SourceError, match="cannot be read"):
        drained(url, storage_options={"key_filename": str(tmp_path / "absent")})
    with pytest.raises(SourceError, match="refuses these credentials"):
        drained(url.replace("//", "//nobody-of-that-name@"))
    assert not waits


def test_an_encrypted_key(far, server, tmp_path):
    """Opened by the passphrase in the storage options, which may stand in a file."""
    key = tmp_path / "key"
    key.write_bytes((server.home / ".ssh" / "id_ed25519").read_bytes())
    key.chmod(0o600)
    subprocess.run([programs()[1], "-q", "-p", "-P", "", "-N", CANARY, "-f", str(key)], check=True, stdout=-3)
    (tmp_path / "secret").write_text(CANARY)
    options = {"key_filename": str(key), "passphrase": f"file:{tmp_path}/secret"}
    assert drained(f"ssh://127.0.0.1:{server.port}{far.folder}/x", storage_options=options) == BODY


def test_passwords(far, server, monkeypatch):
    """In the url or the options; a server that asks for one, since sshd would ask for those of this machine."""
    import asyncssh

    class Server(asyncssh.SSHServer):
        def begin_auth(self, _username):
            return True

        def password_auth_supported(self):
            return True

        def validate_password(self, username, password):
            return (username, password) == ("me", f"{CANARY}@")

    monkeypatch.setenv("FAR_PASSWORD", f"{CANARY}@")
    key = str(server.home.parent / "host_key")
    start = asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=Server, sftp_factory=True)

    async def begin():
        return await start

    async def end():
        # waiting for it would be waiting for our connection, which is kept
        listening.close()

    listening = sftp_client.run_coroutine(begin(), 10)
    try:
        port, options = listening.get_port(), {"known_hosts": False, "key_filename": []}
        assert drained(f"ssh://me:{CANARY}%40@127.0.0.1:{port}{far.folder}/x", storage_options=options) == BODY
        options |= {"username": "me", "password": "env:FAR_PASSWORD"}
        assert drained(f"ssh://127.0.0.1:{port}{far.folder}/x", storage_options=options) == BODY
        with pytest.raises(SourceError, match="refuses these credentials"):
            drained(f"ssh://127.0.0.1:{port}/x", storage_options={**options, "password": "other"})
    finally:
        sftp_client.run_coroutine(end(), 10)


def test_keys_of_the_agent(far, server, monkeypatch, tmp_path):
    """A key that the agent holds need not be named."""
    shown = subprocess.run(
        ["ssh-agent", "-a", str(tmp_path / "agent"), "-s"], capture_output=True, text=True, check=True
    )
    pid = shown.stdout.partition("SSH_AGENT_PID=")[2].partition(";")[0]
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        key = server.home / ".ssh" / "id_ed25519"
        subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "known_hosts").write_bytes((server.home / ".ssh" / "known_hosts").read_bytes())
        monkeypatch.setenv("HOME", str(tmp_path))
        assert drained(f"ssh://127.0.0.1:{server.port}{far.folder}/x") == BODY
    finally:
        os.kill(int(pid), 15)


def test_a_stream_survives_a_fork(far):
    """Parent and child read on, each over a connection of its own; the child's end leaves the parent's alone."""
    with wds.gopen(far()) as stream:
        begin = stream.read(100_000)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if begin + stream.read() == BODY and drained(far()) == BODY else 1)
            except BaseException:
                os._exit(2)
        assert begin + stream.read() == BODY
        assert os.waitpid(child, 0)[1] == 0
    assert drained(far()) == BODY


def _read(url):
    return hashlib.sha256(drained(url)).hexdigest()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_beside_their_parent(far, method):
    """After the parent has read, workers read the right bytes, however they are started."""
    drained(far())
    code = (
        "import hashlib, multiprocessing, sys\nimport webdataset as wds\n"
        "def read(url):\n    with wds.gopen(url) as stream:\n        return hashlib.sha256(stream.read()).hexdigest()\n"
        "if __name__ == '__main__':\n    url, method = sys.argv[1:]\n    mine = read(url)\n"
        "    with multiprocessing.get_context(method).Pool(2) as pool:\n"
        "        print({mine, *pool.map(read, [url] * 6), read(url)})\n"
    )
    script = far.folder / "script.py"
    script.write_text(code)
    shown = subprocess.run(
        [sys.executable, str(script), far(), method], capture_output=True, text=True, check=True, timeout=120
    )
    assert shown.stdout.strip() == str({hashlib.sha256(BODY).hexdigest()})
    assert shown.stderr == ""


def test_hostile_urls_are_no_options(far, tmp_path, monkeypatch, waits):
    """Hosts and users that an ssh program, or a command of the configuration, could take for something else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  ProxyCommand sh -c 'echo %h %r'\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (
        "ssh://-oProxyCommand=touch owned/x", "ssh://-oProxyCommand=touch%20owned/x", "ssh://a;touch owned/x",
        "ssh://$(touch owned)/x", "ssh://`touch owned`@host/x", "ssh://%24(touch%20owned)@host/x", "ssh://-l@host/x",
        "ssh://a'b/x", "ssh://host:99999/x", "ssh:///x", "ssh://[::1;touch owned]/x", "ssh://a\nb/x", "ssh://h/a\0b",
    ):  # fmt: skip
        with pytest.raises(UsageError):
            drained(url)
    with pytest.raises(UsageError):
        drained("ssh://host/x", storage_options={"username": "-oProxyCommand=touch owned"})
    assert os.listdir(tmp_path) == [".ssh"]


def test_a_password_is_never_shown(far, server, waits, caplog):
    """In the url or in the options: not in messages, representations, logs, pickles."""
    caplog.set_level("DEBUG")
    from webdataset.storage.backends.sftp import remote_object

    for url, options in [
        (f"ssh://me:{CANARY}@127.0.0.1:{server.port}/x", {"known_hosts": False, "key_filename": []}),
        (f"ssh://127.0.0.1:{server.port}/x", {"known_hosts": False, "password": CANARY, "key_filename": []}),
    ]:
        with pytest.raises(SourceError) as caught:
            drained(url, storage_options=options)
        assert CANARY not in f"{caught.value}{caught.value!r}{remote_object(url, options).place!r}"
        with pytest.raises(UsageError):
            pickle.dumps(remote_object(url, options).place)
    assert CANARY not in caplog.text


def test_the_missing_extra_is_named(far, monkeypatch):
    """Without asyncssh: how to install it."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(ImportError, match=r"\[ssh\]"):
        drained(far())


def test_a_full_pass_with_an_index(far):
    """Random access by number, over ssh."""
    from webdataset.index.indexed_shard import IndexedShard

    buffer = io.BytesIO()
    with wds.TarWriter(buffer) as sink:
        for number in range(30):
            sink.write({"__key__": f"{number:03}", "txt": f"caption {number}" * 3000})
    (far.folder / "a.tar").write_bytes(buffer.getvalue())
    with IndexedShard(far("a.tar")) as shard:
        assert shard[17]["txt"] == b"caption 17" * 3000


def test_sessions_are_bounded(far, server, monkeypatch):
    """Of many accounts the last are kept; files that are open are read and written to their ends, then it is closed."""
    monkeypatch.setattr(sftp_client, "MOST_SESSIONS", 2)
    public = (server.home.parent / "host_key.pub").read_text().split()
    accounts = []
    for number in range(6):
        hosts = far.folder / f"hosts{number}"
        hosts.write_text(f"[127.0.0.1]:{server.port} {public[0]} {public[1]}\n")
        key = f"{server.home}/.ssh/id_ed25519"
        accounts.append({"key_filename": key, "known_hosts": str(hosts), "port": server.port})
    with (
        sftp.SftpUpload(f"ssh://127.0.0.1{far.folder}/written", accounts[0]) as upload,
        wds.gopen(f"ssh://127.0.0.1{far.folder}/x", storage_options=accounts[1]) as stream,
    ):
        began = stream.read(1000)
        upload.write(BODY[:1_500_000])
        connections = [
            task.result().connection for task in sftp_client._sessions.values() if task.done() and not task.exception()
        ]
        assert len(connections) == 2
        for account in accounts[2:]:
            assert drained(f"ssh://127.0.0.1{far.folder}/x", storage_options=account) == BODY
        assert len(sftp_client._sessions) == 2
        assert not any(connection.is_closed() for connection in connections)
        upload.write(BODY[1_500_000:])
        assert began + stream.read() == BODY
    assert (far.folder / "written").read_bytes() == BODY
    gc.collect()
    for connection in connections:
        sftp_client.run_coroutine(connection.wait_closed(), 10)
