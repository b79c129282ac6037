"""The command ``wds view``: how it starts, what it prints, how it ends, and that no secret leaves it."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

import webdataset as wds
from support.command import SRC, WDS, command_environment, run_wds
from support.range_server import RangeServer
from support.view_command import RunningViewer
from webdataset.cli.view import SCHEMAS

TOKEN_ROUTES = (
    "dataset", "shards", "samples", "sample", "payload", "bytes", "thumbnail", "waveform", "array", "search",
    "statistics", "findings", "findings/all", "batch", "batch/options", "pipeline", "pipeline/preview", "tags",
    "compare", "nothing",
)  # fmt: skip


@pytest.fixture
def shards(tmp_path):
    """Two shards of ten samples."""
    with wds.ShardWriter(str(tmp_path / "s-%d.tar"), maxcount=10) as sink:
        for number in range(20):
            sink.write({"__key__": f"{number:04d}", "txt": f"text {number}", "json": {"n": number}})
    return [tmp_path / "s-0.tar", tmp_path / "s-1.tar"]


def test_one_line_says_where_it_is(shards):
    """``--json`` prints one object, by its schema, and nothing else; the token is in the fragment alone."""
    with RunningViewer(*shards) as viewer:
        said = json.loads(viewer.line)
        jsonschema.validate(said, SCHEMAS["view"])
        assert said["url"] == f"http://127.0.0.1:{viewer.port}/#token={viewer.token}"
        assert viewer.ask("/api/dataset").value["sides"][0]["shards"] == 2
        assert viewer.stop() == 0
        assert viewer.process.stdout.read() == b""
        assert viewer.log() == ""


def test_a_page_is_published(shards):
    """One line names the page, or one object says what it shows; what is left out makes the exit status 4."""
    folder = shards[0].parent
    done = run_wds("view", "--publish", "site", "s-0.tar", "s-1.tar", cwd=folder)
    assert done.stdout == b"site/index.html\n"
    assert b"2 shards, 20 samples" in done.stderr
    (folder / "cut.tar").write_bytes(shards[0].read_bytes()[:1000])
    done = run_wds("view", "--publish", "site", "--json", "s-0.tar", "cut.tar", cwd=folder, status=4)
    said = json.loads(done.stdout)
    jsonschema.validate(said, SCHEMAS["view"])
    assert (said["shards"], said["samples"], list(said["left_out"])) == (1, 10, ["cut.tar"])
    assert b"left out: cut.tar" in done.stderr
    done = run_wds("view", "--publish", "site", "--json", "--check", "s-0.tar", cwd=folder)
    assert json.loads(done.stdout)["findings"] == 0
    for wrong in (
        ["--check", "s-0.tar"],
        ["--publish", "x"],
        ["--publish", "x", "s-0.tar", "--tags", "t"],
        ["--shards-url", "x", "s-0.tar"],
    ):
        run_wds("view", *wrong, cwd=folder, status=2)
    run_wds("view", "--publish", "x", "absent.tar", cwd=folder, status=3)
    assert not (folder / "x").exists()


@pytest.mark.parametrize("name", ["absent.tar", "file:absent.tar", "absent-*.tar"])
def test_a_local_shard_that_is_not_there(shards, name):
    """It is an error at once, not a page; a shard of a list may lack, and urls of stores are not asked for."""
    for arguments in ([name], [str(shards[0]), name], [str(shards[0]), "--compare", name]):
        done = run_wds("view", *arguments, cwd=shards[0].parent, status=3)
        assert done.stderr.startswith(b"wds: cannot open: No such file or directory")
        assert done.stdout == b""
    with RunningViewer(f"{shards[0].parent}/s-{{0..2}}.tar", "http://127.0.0.1:9/x.tar") as viewer:
        assert viewer.ask("/api/dataset").value["sides"][0]["shards"] == 4


def test_without_json_it_prints_the_url(shards):
    """The one line on standard output is the url."""
    with subprocess.Popen(
        [*WDS, "view", shards[0]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=command_environment()
    ) as process:
        line = process.stdout.readline().decode()
        process.terminate()
        rest, log = process.communicate(timeout=60)
    assert line.startswith("http://127.0.0.1:")
    assert "/#token=" in line
    assert (rest, log, process.returncode) == (b"", b"", 0)


@pytest.mark.repeats
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("busy", ["idle", "open connections", "a store that does not answer", "children"])
def test_a_signal_ends_it(shards, tmp_path, number, busy):
    """Ctrl-C and SIGTERM end it with status 0, also with open connections, requests that hang, and its own process."""
    (tmp_path / "slow.tar").write_bytes(shards[0].read_bytes())
    with RangeServer(tmp_path) as server, RunningViewer(f"{server.root}/slow.tar", *shards) as viewer:
        connections = []
        threads = []
        if busy == "open connections":
            for start in (b"", b"GET / HT", b"GET /api/dataset HTTP/1.1\r\nHost: x\r\n"):
                connections.append(socket.create_connection(("127.0.0.1", viewer.port)))
                connections[-1].sendall(start)
        elif busy == "a store that does not answer":
            server.held.add("/slow.tar")

            def ask():
                try:
                    viewer.ask("/api/samples", shard=0)
                except OSError:
                    pass

            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            assert server.waiting.wait(60)
        elif busy == "children":
            viewer.ask("/api/thumbnail", shard=1, ordinal=0, field="txt", size=10)
            viewer.ask("/api/array", shard=1, ordinal=0, field="json")
        children = _list_children(viewer.process.pid)
        assert viewer.stop(number) == 0
        assert viewer.log() == ""
        for connection in connections:
            connection.close()
        server.release()
        for thread in threads:
            thread.join()
        _wait_until_gone(children)


def test_a_signal_ends_it_while_it_waits_for_standard_input():
    """A shard that never comes does not keep it."""
    reading, writing = os.pipe()
    connections = []
    try:
        with RunningViewer("-", stdin=reading) as viewer:
            for path, more in (("/api/bytes", {"offset": 0}), ("/api/samples", {})):
                query = "&".join(f"{name}={value}" for name, value in more.items())
                connection = socket.create_connection(("127.0.0.1", viewer.port))
                connections.append(connection)
                connection.sendall(
                    f"GET {path}?{query} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\n"
                    f"Authorization: Bearer {viewer.token}\r\n\r\n".encode()
                )
                assert viewer.ask("/api/dataset").status == 200
            assert viewer.stop() == 0
    finally:
        for connection in connections:
            connection.close()
        os.close(reading)
        os.close(writing)


def _list_children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
            return [int(word) for word in listed.read().split()]
    except OSError:
        return []


def _wait_until_gone(pids):
    for pid in pids:
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)


def test_several_viewers_at_once(shards):
    """Each has a port, a token and a cookie of its own; no token opens another."""
    with RunningViewer(shards[0]) as one, RunningViewer(shards[1]) as two:
        assert one.port != two.port
        assert one.token != two.token
        assert one.ask("/api/samples").value["samples"][0]["key"] == "0000"
        assert two.ask("/api/samples").value["samples"][0]["key"] == "0010"
        wrong = two.ask("/api/dataset", known=False, headers={"Authorization": f"Bearer {one.token}"})
        assert wrong.status == 401


def test_a_port_in_use_is_said(shards):
    """A chosen port that is taken ends the command with a message and status 3; a free one is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_wds("view", shards[0], "--port", str(port), status=3)
        assert f"port {port}" in done.stderr.decode()
        assert "--port" in done.stderr.decode()
    with RunningViewer(shards[0], "--port", str(port)) as viewer:
        assert viewer.port == port


@pytest.mark.repeats
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "8.8.8.8", ""])
def test_it_listens_on_this_machine_alone(shards, host):
    """Any other address is refused, with the way to do it."""
    done = run_wds("view", shards[0], "--host", host, status=2)
    assert "ssh -L" in done.stderr.decode()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_other_addresses_of_the_loopback(shards, host):
    """localhost, another address of the loopback, and IPv6."""
    if host == "::1":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    done = subprocess.Popen(
        [*WDS, "view", shards[0], "--host", host, "--json"], stdout=subprocess.PIPE, env=command_environment()
    )
    try:
        said = json.loads(done.stdout.readline())
        address = "127.0.0.1" if host == "localhost" else host
        shown = f"[{host}]" if ":" in host else address
        assert said["url"].startswith(f"http://{shown}:{said['port']}/")
        with socket.create_connection((address, said["port"])) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {shown}:{said['port']}\r\nConnection: close\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        done.terminate()
        done.communicate(timeout=60)


def test_nothing_to_show_is_said(tmp_path):
    """No argument, a directory without shards: a message, before anything listens."""
    assert b"name the shards" in run_wds("view", status=2).stderr
    assert b"no shards" in run_wds("view", tmp_path, status=2).stderr
    twice = run_wds("view", "-", "--compare", "-", status=2).stderr
    assert b"only once" in twice


def test_a_missing_extra_is_named(shards, tmp_path):
    """Without starlette or uvicorn the message names the extra."""
    for module in ("starlette", "uvicorn"):
        hidden = tmp_path / module
        (hidden / module).mkdir(parents=True)
        (hidden / module / "__init__.py").write_text("raise ImportError('hidden')")
        script = f"import sys; sys.path.insert(0, {str(hidden)!r}); from webdataset.cli.main import run; run()"
        done = subprocess.run(
            [sys.executable, "-c", script, "view", str(shards[0])],
            capture_output=True,
            env=command_environment(),
            check=False,
            timeout=60,
        )
        assert done.returncode == 3
        assert "[view]" in done.stderr.decode()


def test_help_loads_no_server():
    """``wds --help`` and ``wds view --help`` import neither starlette nor uvicorn nor the viewer."""
    script = (
        "import sys; from webdataset.cli.main import main; main(['view', '--help']); "
        "print([name for name in sys.modules if name.split('.')[0] in ('starlette', 'uvicorn', 'numpy', 'PIL')"
        " or name.startswith('webdataset.viewer')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=command_environment(), check=True)
    assert done.stderr.strip() == b"[]"


def test_standard_input_is_shown(shards):
    """A shard on standard input is shown, forwards and backwards, and said to be sequential."""
    with open(shards[0], "rb") as content, RunningViewer("-", stdin=content) as viewer:
        page = viewer.ask("/api/samples", count=100).value
        assert [sample["key"] for sample in page["samples"]] == [f"{n:04d}" for n in range(10)]
        assert page["sequential"]
        assert viewer.ask("/api/payload", ordinal=9, field="txt").body == b"text 9"
        assert viewer.ask("/api/payload", ordinal=0, field="txt").body == b"text 0"
        assert viewer.ask("/api/dataset").value["features"]["sequential"]


def test_a_range_of_a_field(shards):
    """Ranges of a payload are answered as HTTP says: from, to, the last, too far."""
    with RunningViewer(shards[0]) as viewer:
        for text, status, body in (
            ("bytes=0-3", 206, b"text"),
            ("bytes=5-", 206, b"3"),
            ("bytes=-2", 206, b" 3"),
            ("bytes=0-100", 206, b"text 3"),
            ("bytes=9-", 416, None),
            ("bytes=-0", 416, None),
            ("bytes=3-1", 416, None),
            ("bytes=0-1,3-4", 200, b"text 3"),
            ("lines=1-2", 200, b"text 3"),
        ):
            answer = viewer.ask("/api/payload", ordinal=3, field="txt", headers={"Range": text})
            assert answer.status == status, text
            if body is not None:
                assert answer.body == body
        head = viewer.ask("/api/payload", method="HEAD", ordinal=3, field="txt")
        assert (head.status, head.headers["content-length"], head.body) == (200, "6", b"")


def test_bytes_of_the_stream(shards):
    """Raw bytes are those of the file, up to its end, and of the tar stream where the shard is compressed."""
    content = shards[0].read_bytes()
    run_wds("recompress", "--to", "gz", "-o", str(shards[0].parent / "gz"), shards[0])
    with RunningViewer(shards[0], shards[0].parent / "gz" / "s-0.tar.gz") as viewer:
        for shard in (0, 1):
            for offset, count in ((0, 512), (700, 4096), (len(content) - 10, 100), (len(content) + 5, 10)):
                said = viewer.ask("/api/bytes", shard=shard, offset=offset, count=count).value
                assert bytes.fromhex(said["hex"]) == content[offset : offset + count]
                assert said["end"] == (offset + count > len(content))


def test_members_of_a_sample(tmp_path):
    """The detail names each member with its header, its records and what stands where."""
    import io
    import tarfile

    path = tmp_path / "m.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.txt", "a." + "long" * 60, "b.txt"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = 5, 1_600_000_000, 0o640
            info.pax_headers = {"comment": "seen"} if name == "a.txt" else {}
            archive.addfile(info, io.BytesIO(b"bytes"))
    content = path.read_bytes()
    with RunningViewer(path) as viewer:
        detail = viewer.ask("/api/sample", ordinal=0).value
        assert [member["name"] for member in detail["members"]] == ["a.txt", "a." + "long" * 60]
        for member in detail["members"]:
            assert content[member["offset"] : member["offset"] + member["size_bytes"]] == b"bytes"
            assert (member["mode"], member["mtime"], member["type"]) == (0o640, 1_600_000_000, "file")
        assert detail["members"][0]["pax"]["comment"] == "seen"
        assert detail["members"][0]["header_offset"] == 0
        assert detail["previous"] is None
        assert detail["next"] == {"shard": 0, "ordinal": 1}
        assert len(viewer.ask("/api/sample", ordinal=1).value["members"]) == 1


def test_a_hundred_thousand_shards(tmp_path, shards):
    """The list comes in pages, and no shard is opened before it is looked at."""
    shards[0].rename(tmp_path / "x-099999.tar")
    with RunningViewer(tmp_path / "x-{000000..099999}.tar") as viewer:
        assert viewer.ask("/api/dataset").value["sides"][0]["shards"] == 100_000
        answer = viewer.ask("/api/shards", start=99_990, count=50)
        assert [shard["name"].rpartition("/")[2] for shard in answer.value["shards"]] == [
            f"x-{number:06d}.tar" for number in range(99_990, 100_000)
        ]
        assert answer.value["total"] == 100_000
        assert len(answer.body) < 10_000
        assert len(viewer.ask("/api/samples", shard=99_999).value["samples"]) == 10
        missing = viewer.ask("/api/samples", shard=5)
        assert missing.status == 502
        assert b"NotFound" in missing.body


REFUSED = 3
SECRETS = ("hunter2secret", "SIGNATUREsecret", "TOKENsecret", "AKIAsecretkeyid", "PROFILEsecretvalue")


def test_no_secret_leaves(tmp_path, shards):
    """Passwords and signatures of urls, and values of a profile, are in no answer, header or line of the log."""
    user, signature, token, key_id, profile = SECRETS
    queries: list[dict[str, Any]] = [{}, {"start": "x", "where": "json.n =="}, {"where": "json.n > 3", "q": "text"}]
    (tmp_path / "damaged.tar").write_bytes(shards[0].read_bytes()[:5000] + b"\xff" * 700)
    config = tmp_path / "config"
    config.write_text(
        f"[profile mine]\naws_access_key_id = {key_id}\naws_secret_access_key = {profile}\nregion = us-east-1\n"
    )
    with RangeServer(tmp_path) as server:
        host = server.root.removeprefix("http://")
        urls = [
            f"http://me:{user}@{host}/s-0.tar?X-Amz-Signature={signature}&X-Amz-Credential={key_id}",
            f"http://me:{user}@{host}/missing.tar?token={token}",
            f"http://me:{user}@{host}/damaged.tar?sig={signature}",
            f"http://me:{user}@127.0.0.1:9/refused.tar?access_token={token}",
            f"pipe:curl -s -H 'Authorization: Bearer {token}' -u me:{user} http://{host}/s-0.tar",
            f"http://{host}/s-1.tar",
        ]
        with RunningViewer(
            *urls,
            AWS_CONFIG_FILE=str(config),
            AWS_SHARED_CREDENTIALS_FILE=str(config),
            AWS_ACCESS_KEY_ID=key_id,
            AWS_SECRET_ACCESS_KEY=profile,
            WDS_FULL_TRACEBACKS="1",
            WDS_OPEN_ATTEMPTS="1",
        ) as viewer:
            for route in TOKEN_ROUTES:
                for shard in range(len(urls) + 1):
                    if shard == REFUSED and route not in ("samples", "bytes"):
                        continue
                    for more in queries:
                        answer = viewer.ask(f"/api/{route}", shard=shard, ordinal=0, field="txt", offset=0, **more)
                        said = answer.body.decode("utf-8", "replace") + repr(answer.headers) + viewer.log()
                        for secret in SECRETS:
                            assert secret not in said, (route, shard, more)
                        assert viewer.token not in said
            names = [shard["name"] for shard in viewer.ask("/api/shards", count=10).value["shards"]]
            assert names[0] == f"http://***@{host}/s-0.tar?X-Amz-Signature=***&X-Amz-Credential=***"
            assert viewer.ask("/api/samples", shard=0).value["samples"][0]["key"] == "0000"
            arguments = Path(f"/proc/{viewer.process.pid}/cmdline").read_bytes()
            for pid in _list_children(viewer.process.pid):
                child = Path(f"/proc/{pid}/cmdline").read_bytes()
                assert not [secret for secret in SECRETS if secret.encode() in child]
            assert viewer.token.encode() not in arguments
            assert viewer.stop() == 0
            assert not [secret for secret in (*SECRETS, viewer.token) if secret in viewer.log()]


STATE_RUN = """
import webdataset as wds

URLS = {urls}


def load():
    dataset = wds.WebDataset(URLS, shardshuffle=10, seed=3).shuffle(5).to_tuple("__key__", "txt").elastic(4)
    return wds.Loader(dataset, 3, workers=0)


def load_mixed():
    return wds.Loader(wds.RandomMix([wds.WebDataset(URLS), wds.WebDataset(URLS)]), 3)
"""


@pytest.fixture
def state_run(tmp_path, shards):
    """A module with a loader over the shards, its state after two batches, and the batches that then come."""
    (tmp_path / "run_of_state.py").write_text(STATE_RUN.format(urls=[str(shard) for shard in shards]))
    load = runpy.run_path(str(tmp_path / "run_of_state.py"))["load"]
    loader = load()
    items = iter(loader)
    next(items)
    next(items)
    (tmp_path / "state.json").write_text(json.dumps({"model": None, "data": loader.state_dict()}))
    rest = [list(item[0]) for item in items]
    return tmp_path / "state.json", rest, f"{tmp_path}{os.pathsep}{SRC}"


def test_a_state_opens_the_batches_after_it(state_run):
    """A state alone with its dataset shows that run's shards; its batches are those that the loader gives next."""
    state, rest, path = state_run
    with RunningViewer(state, "--dataset", "run_of_state:load", PYTHONPATH=path) as viewer:
        assert json.loads(viewer.line)["url"].endswith(f"#token={viewer.token}&/batch?state=0")
        assert viewer.ask("/api/dataset").value["sides"][0]["shards"] == 2
        for step, keys in enumerate(rest):
            found = viewer.ask(f"/api/batch?state=0&step={step}&confirm=1").value
            assert [sample["key"] for sample in found["samples"]] == keys


def test_a_state_beside_its_shards(state_run, shards):
    """Shards that are given beside a state are those that are shown."""
    state, rest, path = state_run
    with RunningViewer(state, shards[0], "--dataset", "run_of_state:load", PYTHONPATH=path) as viewer:
        assert viewer.ask("/api/dataset").value["sides"][0]["shards"] == 1
        found = viewer.ask("/api/batch?state=0&step=0&confirm=1").value
        assert sorted([*found["batch"]["missing_keys"], *(one["key"] for one in found["samples"])]) == sorted(rest[0])


def test_a_state_without_its_run_is_refused(state_run):
    """A state names no shards, and a mix has no plain list of them: both are said, with what to do."""
    state, _, path = state_run
    alone = run_wds("view", state, status=2)
    assert b"--dataset MODULE:FUNCTION" in alone.stderr
    mixed = run_wds("view", state, "--dataset", "run_of_state:load_mixed", status=2, PYTHONPATH=path)
    assert b"give the shards beside the state" in mixed.stderr
