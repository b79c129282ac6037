"""Data servers and their loaders against foreign bytes: keys, garbage, too much, and nothing that is unpickled."""

import ast
import json
import os
import pickle
import random
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

import webdataset as wds
import webdataset.serving
from support.command import run_wds, start_wds
from support.data_servers import make_served_dataset, run_server, write_served_shards
from webdataset.core.errors import AlreadyExists, ConfigError, SourceError, StateMismatch, UsageError
from webdataset.serving import zmq_transport
from webdataset.serving.curve_keys import AllowedKeys, load_key_pair, load_public_key, make_key_files
from webdataset.serving.data_server import check_address
from webdataset.serving.wire_format import encode_json, encode_message


@contextmanager
def serve(*arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", list[str]]]:
    """Run ``wds serve``; give the process and the lines that it begins with."""
    process = start_wds("serve", *arguments, "--bind", "tcp://127.0.0.1:0", stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("serving at"):
            line = process.stdout.readline().decode()
            assert line, process.stderr and process.stderr.read()
            lines.append(line.strip())
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def make_raw_client(url: str) -> Any:
    """Return a socket that speaks ZeroMQ, and not our protocol."""
    made = zmq.Context.instance().socket(zmq.DEALER)
    made.linger = 0
    made.connect(url)
    return made


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No module of serving names pickle, and a loader works where unpickling fails."""
    for path in Path(webdataset.serving.__file__).parent.glob("*.py"):
        if path.name.startswith(("shared_", "unix_")):
            continue
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & {"pickle", "cloudpickle", "marshal", "eval", "exec"}, path
        assert "import pickle" not in path.read_text()
        assert "recv_pyobj" not in path.read_text()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    with run_server(make_served_dataset(write_served_shards(tmp_path))) as (_, url):
        monkeypatch.setattr(pickle, "loads", fail)
        monkeypatch.setattr(pickle, "load", fail)
        with wds.RemoteLoader(url, 7, plain=True, timeout=60) as remote:
            iterator = iter(remote)
            next(iterator)
            state = remote.state_dict()
            assert len([*iterator]) == 13
            remote.load_state_dict(state)
            assert len([*remote]) == 13


@pytest.mark.parametrize("seed", range(2))
def test_garbage_leaves_other_lanes_alone(tmp_path: Path, seed: int) -> None:
    """Foreign messages get NO, or nothing; a trainer beside them receives all, and memory is bounded."""
    draw = random.Random(seed)
    url = write_served_shards(tmp_path)
    whole = [list(batch[0]) for batch in wds.Loader(make_served_dataset(url), 7)]
    state = encode_json(wds.Loader(make_served_dataset(url), 7).state_dict())
    with run_server(make_served_dataset(url)) as (server, address), wds.RemoteLoader(address, 7, plain=True) as remote:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        foreign = make_raw_client(address)
        good = encode_message("HELLO", version=1)
        found = []
        for batch in remote:
            found.append(list(batch[0]))
            for _ in range(10):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(draw.randbytes(draw.randrange(1, 200)))
            for _ in range(100):
                frame = bytearray(good)
                frame[draw.randrange(len(frame))] = draw.randrange(256)
                frames = [bytes(frame), *[draw.randbytes(50)] * draw.randrange(3)]
                foreign.send_multipart(frames)
            foreign.send_multipart([b"[" * 60000])
            foreign.send_multipart([good] * 100)
            for kind, entries in (("CREDIT", {"to": 1 << 62}), ("BEAT", {}), ("CLOSE", {})):
                foreign.send_multipart([encode_message(kind, nonce=draw.randrange(9), **entries)])
            foreign.send_multipart([_open(draw, rank=9, ranks=3), state])
            foreign.send_multipart([_open(draw, rank=0, ranks=1, until=1 << 60), state])
            foreign.send_multipart([_open(draw, rank=0, ranks=1), encode_json({"kind": "webdataset.elastic"})])
            foreign.send_multipart([_open(draw, rank=0, ranks=1, batch=1 << 40), state])
        assert found == whole
        while server.counts["malformed"] < 500:
            time.sleep(0.05)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
        assert len(list(remote)) == 14
        foreign.close()


def _open(draw: random.Random, **changes: int) -> bytes:
    entries: dict[str, Any] = {"nonce": draw.randrange(1, 1 << 60), "rank": 0, "ranks": 1, "batch": 3, "start": 0}
    flags = {"drop_last": False, "exact": False, "ragged": True}
    return encode_message("OPEN", **{**entries, "until": 0, "credit": 1 << 60, "hedge": False, **flags, **changes})


class HostileServer:
    """A server that answers OPEN with what it is given."""

    def __init__(self, dataset: Any, answer: list[bytes]) -> None:
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.state, self.answer = encode_json(dataset.state_dict()), answer

    def run(self) -> None:
        """Answer until the socket is closed."""
        while self.socket.poll(20_000):
            peer, header, *_ = self.socket.recv_multipart()
            kind = json.loads(header)
            if kind["kind"] == "HELLO":
                self.socket.send_multipart([peer, encode_message("WELCOME", version=1, boot=1), self.state])
            elif kind["kind"] == "OPEN":
                nonce = str(kind["nonce"]).encode()
                self.socket.send_multipart([peer, *(frame.replace(b"NONCE", nonce) for frame in self.answer)])
            elif kind["kind"] == "CLOSE":
                break
        self.socket.close()


_PART = b'{"kind":"PART","nonce":NONCE,"seq":1,"samples":1,"beyond":0,"until":1,"over":false}'
ANSWERS: dict[str, list[bytes]] = {
    "no JSON": [b"\x80\x04K\x01."],
    "nothing": [b""],
    "not asked for": [_PART.replace(b'"seq":1', b'"seq":99'), b'{"batch":["n",null],"progress":[],"counted":[]}', b""],
    "no description": [_PART],
    "malformed description": [_PART, b"[]"],
    "array beyond its frame": [
        _PART,
        b'{"batch":["a","array","int64",[1000000000000],0,0,8000000000000],"progress":[],"counted":[]}',
        b"x" * 8,
    ],
    "object array": [_PART, b'{"batch":["a","array","object",[1],0,0,8],"progress":[],"counted":[]}', b"x" * 8],
    "malformed progress": [_PART, b'{"batch":["n",null],"progress":[[0,1,{"x":3}]],"counted":[]}', b""],
    "too deep": [_PART, b'{"batch":' + b'["l",[' * 5000 + b"]]" * 5000 + b',"progress":[],"counted":[]}', b""],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_server(tmp_path: Path, name: str) -> None:
    """A malformed batch is never delivered: the server is left; without another one, that is an error."""
    import threading  # noqa: PLC0415

    hostile = HostileServer(make_served_dataset(write_served_shards(tmp_path)), ANSWERS[name])
    thread = threading.Thread(target=hostile.run)
    thread.start()
    with wds.RemoteLoader(f"tcp://127.0.0.1:{hostile.port}", 7, plain=True, timeout=20) as remote:
        with pytest.raises(StateMismatch, match="malformed message"):
            next(iter(remote))
    thread.join(30)
    assert not thread.is_alive()


def test_keys(tmp_path: Path) -> None:
    """Only trainers whose keys lie in the folder get in, at once when a key is added."""
    write_served_shards(tmp_path)
    keys, allow = tmp_path / "keys", tmp_path / "allow"
    allow.mkdir()
    for name in ("server", "trainer", "other"):
        done = run_wds("serve", "keygen", "--folder", keys, name)
        assert done.stdout.decode().split() == [str(keys / f"{name}.public"), str(keys / f"{name}.secret")]
        assert (keys / f"{name}.secret").stat().st_mode & 0o777 == 0o600
    shards = str(tmp_path / "part-{000..003}.tar")
    options = "--streams", "4", "--seed", "1", "--key", str(keys / "server.secret"), "--allow", str(allow)
    with serve(shards, *options, "--workers", "0") as (process, lines):
        url = lines[-1].split()[-1]
        secret, public = keys / "trainer.secret", keys / "server.public"
        for wrong in (
            {"key": secret, "server_key": public},
            {"key": secret, "server_key": keys / "other.public"},
            {"plain": True},
        ):
            with wds.RemoteLoader(url, 7, timeout=1, **wrong) as remote, pytest.raises(SourceError):
                next(iter(remote))
        (allow / "trainer.public").write_bytes((keys / "trainer.public").read_bytes())
        with wds.RemoteLoader(url, 7, key=secret, server_key=public, timeout=60) as remote:
            assert sum(len(batch["__key__"]) for batch in remote) == 96
        with wds.RemoteLoader(url, 7, key=keys / "other.secret", server_key=public, timeout=1) as remote:
            with pytest.raises(SourceError):
                next(iter(remote))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_command(tmp_path: Path) -> None:
    """``wds serve`` serves with worker processes and shows its counters; after SIGTERM it is unhealthy and ends."""
    write_served_shards(tmp_path)
    shards = str(tmp_path / "part-{000..003}.tar")
    with serve(shards, "--streams", "4", "--seed", "1", "--plain", "--metrics", "0") as (process, lines):
        url, metrics = lines[-1].split()[2], lines[0].split()[-1]
        assert lines[-1].endswith("(not encrypted)")
        with wds.RemoteLoader(url, 7, plain=True, timeout=60) as remote:
            iterator = iter(remote)
            next(iterator)
            with urllib.request.urlopen(metrics.replace("metrics", "healthz"), timeout=30) as answer:
                assert answer.read() == b"ok\n"
            with urllib.request.urlopen(metrics, timeout=30) as answer:
                text = answer.read().decode()
            assert "wds_serve_lanes 1\n" in text
            assert "wds_serve_opened_total 1\n" in text
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(metrics.replace("metrics", "other"), timeout=30)
            refused.value.close()
            process.send_signal(signal.SIGTERM)
            # the only server goes on until its trainer is done
            assert sum(len(batch["__key__"]) for batch in iterator) == 96 - 7
        assert process.wait(60) == 0


def test_wrong_command_lines(tmp_path: Path) -> None:
    """Lines without encryption are refused off this machine, and so is half of what keys need."""
    write_served_shards(tmp_path)
    shards = str(tmp_path / "part-{000..003}.tar")
    for arguments in (
        ["--streams", "4", "--seed", "1"],
        ["--streams", "4", "--seed", "1", "--plain", "--bind", "tcp://0.0.0.0:0"],
        ["--streams", "4", "--seed", "1", "--plain", "--key", "x"],
        ["--streams", "4", "--plain"],
        ["--seed", "1", "--plain"],
    ):
        run_wds("serve", shards, *arguments, status=2)


def test_addresses() -> None:
    """The loopback addresses may be plain, others only where the user says so."""
    for url in ("tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:5", "ipc:///tmp/x"):
        check_address(url, encrypted=False, anywhere=False)
    for url in ("tcp://0.0.0.0:0", "tcp://*:5", "tcp://127.0.0.1.example.org:5", "udp://127.0.0.1:3", "tcp://",
                "tcp://127.0.0.1:99999"):  # fmt: skip
        with pytest.raises(UsageError):
            check_address(url, encrypted=False, anywhere=False)
    check_address("tcp://*:5", encrypted=False, anywhere=True)
    check_address("tcp://*:5", encrypted=True, anywhere=False)


def test_key_files(tmp_path: Path) -> None:
    """Keys are never overwritten; files that others may read, or that hold something else, are refused."""
    public, secret = make_key_files(tmp_path, "one")
    pair = load_key_pair(secret)
    assert load_public_key(public) == pair.public == load_public_key(pair.public.decode())
    assert pair.secret.decode() not in repr(pair)
    with pytest.raises(AlreadyExists):
        make_key_files(tmp_path, "one")
    with pytest.raises(UsageError):
        make_key_files(tmp_path, "../one")
    os.chmod(secret, 0o644)
    for wrong in (secret, tmp_path / "none", public):
        with pytest.raises(ConfigError) as caught:
            load_key_pair(wrong)
        assert pair.secret.decode() not in str(caught.value)
    allowed = AllowedKeys(tmp_path)
    assert allowed.callback("", pair.public)
    public.unlink()
    assert not allowed.callback("", pair.public)
    (tmp_path / "bad.public").write_text("nothing")
    assert not allowed.callback("", pair.public)
    with pytest.raises(ConfigError):
        AllowedKeys(tmp_path / "none")


def test_sockets_never_linger() -> None:
    """Unsent messages do not hold up the end of a program, and a process has one context."""
    source = Path(zmq_transport.__file__).read_text()
    assert source.count("linger = 0") == 2
    assert "zmq.Context(" not in source
