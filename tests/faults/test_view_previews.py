"""Hostile fields, and a preview process that hangs, dies or is killed: requests are refused, the server goes on."""

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from support.media_fields import (
    FIELDS,
    encode_image,
    encode_npy,
    endless_gif,
    huge_png,
    lying_npz,
    npz_bomb,
)
from webdataset.viewer.preview_process import MEMORY_BYTES
from webdataset.viewer.previews import MOST_PAYLOAD_BYTES, PreviewRefused, Previews, PreviewsBusy, Thumbnail

_PICTURE = encode_image("PNG")


@pytest.fixture(scope="module")
def previews():
    """One process for the tests that do not harm it."""
    with Previews() as made:
        yield made


def works(previews: Previews) -> bool:
    """Tell whether a picture is shown."""
    return isinstance(previews.thumbnail("png", _PICTURE, 16), Thumbnail)


def child(previews: Previews) -> int:
    """Return the number of the process, started where it is not."""
    assert works(previews)
    return previews._process.pid


def peak_bytes(pid: int) -> int:
    """Return the most address space that a process has used."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmPeak"))


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("png", huge_png, "50000 x 50000 pixels"),
        ("svg", lambda: b"<svg/>", "never rendered"),
        ("jpg", lambda: b"<!DOCTYPE html>", "HTML"),
        ("eps", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "EPS"),
        ("npz", npz_bomb, "would take"),
        ("npz", lying_npz, ""),
        ("npy", lambda: encode_npy([None], pickled=True), "allow_pickle"),
        ("npy", lambda: encode_npy(np.zeros((9, 9))).replace(b"(9, 9)", b"(1<<40)"), ""),
        ("png.gz", lambda: gzip.compress(bytes(1 << 28)), ""),
        ("pkl", lambda: b"cos\nsystem\n(S'touch /tmp/never'\ntR.", "never loaded"),
        ("jpg", lambda: b"", ""),
        ("tiff", lambda: b"II*\0" + bytes(100), ""),
        ("mp4", lambda: b"\0\0\0\x20ftypisom" + bytes(1000), ""),
    ],
)  # fmt: skip
def test_hostile_pictures_are_refused_with_the_reason(previews, name, make, message):
    """Bombs, scripts and pickles are refused by name, and the process that refused them lives and stays small."""
    before = child(previews)
    with pytest.raises(PreviewRefused) as refused:
        previews.thumbnail(name, make(), 256)
    assert message in refused.value.message
    assert 5 < len(refused.value.message) < 600
    assert " at 0x" not in refused.value.message
    assert child(previews) == before
    assert peak_bytes(before) <= MEMORY_BYTES


def test_an_endless_animation_shows_its_first_frame(previews):
    """Frames after the first are not looked at."""
    assert isinstance(previews.thumbnail("gif", endless_gif(), 32), Thumbnail)


def test_bombs_are_described_as_far_as_they_are_safe(previews):
    """An npz that would grow to gigabytes names its array and says why its numbers are not shown."""
    (array,) = previews.array("npz", npz_bomb())["arrays"]
    assert "would take" in array["problem"]
    (array,) = previews.array("npz", lying_npz())["arrays"]
    assert array["problem"]


def test_more_memory_than_the_limit_is_refused(monkeypatch):
    """A user who allows any number of pixels still cannot let a picture fill the memory."""
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "1e12")
    with Previews() as previews:
        with pytest.raises(PreviewRefused, match="2500000000 bytes of memory"):
            previews.thumbnail("png", huge_png(), 32)
        assert peak_bytes(child(previews)) <= MEMORY_BYTES


_MEMORY = """
from webdataset.viewer.preview_process import answer, take_limits
take_limits()
import webdataset.viewer.thumbnails
try:
    bytearray(3 << 30)
except MemoryError:
    print("bounded")
"""


def test_the_system_bounds_the_memory():
    """What asks for more gets a MemoryError, whatever asks."""
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "bounded"


def test_a_payload_that_is_too_large_is_refused_before_it_is_sent(previews):
    """Nobody sends 64 MiB and one byte to the process."""
    with pytest.raises(PreviewRefused, match=str(MOST_PAYLOAD_BYTES)):
        previews.thumbnail("png", bytes(MOST_PAYLOAD_BYTES + 1), 32)


def test_a_killed_process_is_started_again(previews):
    """The process dies between requests: the next one is answered. It dies during one: that is refused."""
    for _ in range(3):
        pid = child(previews)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert works(previews)
    pid = child(previews)
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(PreviewRefused, match="died"):
        previews.thumbnail("png", _PICTURE, 32)
    killer.join()
    assert works(previews)


@pytest.mark.parametrize("size_bytes", [100, 8 << 20])
def test_a_process_that_hangs_is_killed(size_bytes):
    """It does not read, or does not answer: the request is refused after its time, and the next is answered."""
    with Previews() as previews:
        pid = child(previews)
        previews._patience = 0.5
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(PreviewRefused, match="takes more than"):
            previews.thumbnail("png", bytes(size_bytes), 32)
        previews._patience = 60
        assert child(previews) != pid
        assert previews.restarts == 1


def test_cpu_time_is_limited_for_each_request_and_not_for_all(previews):
    """The limit that the kernel enforces moves on with what was used."""
    pid = child(previews)
    first = _cpu_limit(pid)
    noise = np.random.default_rng(0).normal(size=(2000, 2000))
    used = 0
    while used < 2:
        previews.array("npy", encode_npy(noise))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    works(previews)
    assert first < _cpu_limit(pid) < 1000


def _cpu_limit(pid: int) -> int:
    text = Path(f"/proc/{pid}/limits").read_text()
    return next(int(line.split()[3]) for line in text.splitlines() if line.startswith("Max cpu time"))


def test_the_process_has_limits_and_no_credentials(monkeypatch):
    """Address space, files and written bytes are bounded; its environment and arguments hold nothing of the user's."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-secret")
    with Previews() as previews:
        pid = child(previews)
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft = {line[:26].strip(): line[26:].split()[0] for line in limits[1:]}
        assert soft["Max address space"] == str(MEMORY_BYTES)
        assert soft["Max file size"] == soft["Max core file size"] == "0"
        assert int(soft["Max open files"]) <= 64
        for part in ("environ", "cmdline"):
            assert b"hunter2" not in Path(f"/proc/{pid}/{part}").read_bytes()
        opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        # some versions of libffi keep themselves open
        files = [name for name in opened if not name.startswith(("pipe:", "/dev/null")) and "/libffi.so" not in name]
        assert not files


_EFFECTS = """
import io, os, pickle, socket, subprocess, sys, tempfile
from webdataset.viewer.preview_process import refuse_effects
path = sys.argv[1]
refuse_effects()
def connect(): socket.create_connection(("127.0.0.1", 9))
def bind(): socket.socket().bind(("127.0.0.1", 0))
def resolve(): socket.getaddrinfo("localhost", 80)
def start(): subprocess.run(["true"])
def shell(): os.system("true")
def fork(): os.fork()
def write(): open(path, "w")
def write_low(): os.open(path, os.O_RDWR | os.O_CREAT)
def remove(): os.remove(path)
def unpickle(): pickle.loads(b"cos\\nsystem\\n(S'true'\\ntR.")
done = []
for effect in (connect, bind, resolve, start, shell, fork, write, write_low, remove, unpickle):
    try:
        effect()
        done.append(effect.__name__)
    except PermissionError:
        pass
print(done)
"""


def test_effects_are_refused(tmp_path):
    """Sockets, processes, written files and pickles are refused within the process, whoever asks for them."""
    done = subprocess.run(
        [sys.executable, "-c", _EFFECTS, str(tmp_path / "written")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())


_PARENT = """
import sys, time
from webdataset.viewer.previews import Previews
previews = Previews()
previews.thumbnail("ppm", b"P5 16 16 255\\n" + bytes(256), 16)
print(previews._process.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_its_parent():
    """A server that is killed leaves no process behind."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.kill()
        import select

        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)


def test_a_server_that_closes_waits_for_nothing():
    """Requests in progress and those that wait are refused; closing twice is fine; later requests are refused."""
    previews = Previews()
    pid = child(previews)
    os.kill(pid, signal.SIGSTOP)
    refused = []

    def ask() -> None:
        try:
            previews.thumbnail("png", _PICTURE, 32)
        except PreviewRefused as error:
            refused.append(error.message)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while not previews._turn.locked():
        pass
    previews.close()
    for thread in threads:
        thread.join(60)
    assert refused == ["the viewer is closing"] * 4
    previews.close()
    with pytest.raises(PreviewRefused, match="closing"):
        previews.thumbnail("png", _PICTURE, 32)
    assert not Path(f"/proc/{pid}").exists()


def test_many_threads_are_answered_each_with_its_own_and_too_many_are_told_to_come_back():
    """Answers never go to another request; the queue is bounded."""
    with Previews(most_waiting=8) as previews:
        pid = child(previews)
        results: dict[int, object] = {}

        def ask(number: int) -> None:
            payload = encode_npy(np.full((8, 8), number))
            while True:
                try:
                    results[number] = previews.array("npy", payload)["arrays"][0]["maximum"]
                    return
                except PreviewsBusy:
                    continue

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {number: number for number in range(40)}
        os.kill(pid, signal.SIGSTOP)
        waiting = [threading.Thread(target=_ask, args=(previews,)) for _ in range(8)]
        for thread in waiting:
            thread.start()
        while previews._places._value:
            pass
        with pytest.raises(PreviewsBusy):
            previews.thumbnail("png", _PICTURE, 32)
        os.kill(pid, signal.SIGCONT)
        for thread in waiting:
            thread.join()


def _ask(previews: Previews) -> None:
    with contextlib.suppress(PreviewRefused):
        previews.thumbnail("png", _PICTURE, 32)


@contextlib.contextmanager
def _typed_refusal():
    """Let a request be refused, with a reason that is fit for people."""
    refusals = []
    try:
        yield
    except PreviewRefused as refused:
        refusals.append(refused.message)
    assert all(0 < len(message) < 600 and " at 0x" not in message for message in refusals)


_made: dict[str, bytes] = {}


@settings(max_examples=int(os.environ.get("WDS_FUZZ_EXAMPLES", "300")), deadline=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.data())
def test_mutated_fields_never_harm_the_server(previews, data):
    """Real fields, changed, cut, doubled, renamed: every answer is of its type, or a refusal that says why."""
    made = data.draw(st.sampled_from(list(FIELDS)))
    content = bytearray(_made.setdefault(made, FIELDS[made]()))
    for _ in range(data.draw(st.integers(0, 8))):
        place = data.draw(st.integers(0, max(0, len(content) - 1)))
        what = data.draw(st.sampled_from(["change", "cut", "double", "ones", "insert"]))
        if what == "cut":
            del content[place : place + data.draw(st.integers(1, 64))]
        elif what == "double":
            content[place:place] = content[place : place + 64]
        elif what == "insert":
            content[place:place] = data.draw(st.binary(max_size=8))
        elif content:
            content[place] = 255 if what == "ones" else data.draw(st.integers(0, 255))
    name = data.draw(st.just(made) | st.sampled_from(list(FIELDS)) | st.text(max_size=6))
    payload = bytes(content)
    ask = data.draw(st.sampled_from(["thumbnail", "thumbnail", "waveform", "array", "media"]))
    with _typed_refusal():
        if ask == "thumbnail":
            size = data.draw(st.integers(1, 1024))
            partial, page = data.draw(st.booleans()), data.draw(st.none() | st.integers(0, 3))
            found = previews.thumbnail(name, payload, size, page=page, partial=partial)
            assert max(Image.open(io.BytesIO(found)).size) <= max(16, size)
        elif ask == "waveform":
            found = previews.waveform(name, payload, data.draw(st.integers(1, 1000)))
            assert all(-1 <= low <= high <= 1 for low, high in found["peaks"])
        else:
            found = getattr(previews, ask)(name, payload)
        if ask != "thumbnail":
            text = json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
            assert len(text) < 1 << 20
    if previews._process is not None and previews._process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            assert peak_bytes(previews._process.pid) <= MEMORY_BYTES


def test_the_process_survived_the_mutations(previews):
    """The decoders that are installed crash on none of what was tried: else their names belong into an issue."""
    assert works(previews)
