"""``wds show`` as a program, in a terminal and outside."""

import io
import json
import os
import pty
import subprocess

import pytest

from support.command import WDS, command_environment, run_wds
from webdataset.cli import exit_status
from webdataset.testing import archives

Image = pytest.importorskip("PIL.Image")


def png(shade):
    """An image of one shade."""
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def here(tmp_path):
    """A shard with an image, a text, JSON and bytes."""
    members = [
        ("a.png", png(255)),
        ("a.txt", b"hello\nworld\x1b[2J"),
        ("a.json", b'{"n": [1]}'),
        ("a.bin", b"\0\1"),
        ("b.txt", b"2"),
    ]
    (tmp_path / "s.tar").write_bytes(archives.by_hand(members))
    return tmp_path


def test_outside_a_terminal(here):
    """Texts and JSON as they are, images without colours, other fields in a line; no control character passes."""
    text = run_wds("show", "s.tar", cwd=here).stdout.decode()
    assert text == (
        "== a\n-- png (74B, 4 x 4)\n@@@@\n@@@@\n-- txt (14B)\nhello\nworld\\033[2J\n"
        '-- json (10B)\n{\n  "n": [\n    1\n  ]\n}\n-- bin (2B)\n00 01\n\n== b\n-- txt (1B)\n2\n'
    ).replace("74B", f"{len(png(255))}B").replace("14B", "15B")


def test_choices(here):
    """By key and field, so many, and images not at all."""
    assert run_wds("show", "-k", "b", "s.tar", cwd=here).stdout == b"== b\n-- txt (1B)\n2\n"
    assert b"txt" not in run_wds("show", "-n", "1", "-f", "json", "s.tar", cwd=here).stdout
    assert b"@@" not in run_wds("show", "-i", "none", "s.tar", cwd=here).stdout
    assert b"\x1b_Ga=T" in run_wds("show", "-i", "kitty", "s.tar", cwd=here).stdout


def test_what_is_not_there_is_told(here):
    """A key that no shard has, and a field that no shown sample has, may be misspelt."""
    done = run_wds("show", "-k", "c", "s.tar", cwd=here, status=exit_status.NONE_FOUND)
    assert (done.stdout, done.stderr) == (b"", b"wds: warning: no shard has the key c\n")
    done = run_wds("show", "-k", "c", "-k", "b", "s.tar", cwd=here, status=exit_status.PARTIAL)
    assert b"== b" in done.stdout
    done = run_wds("show", "-f", "jsn", "-f", "txt", "s.tar", cwd=here)
    assert done.stderr == b"wds: warning: not in the samples shown: jsn\n"
    assert run_wds("show", "-n", "1", "-k", "a", "-k", "b", "s.tar", cwd=here).stderr == b""


def test_broken_image_is_told(here):
    """An image that does not decode is said in its place; the rest is shown."""
    (here / "b.tar").write_bytes(archives.by_hand([("a.png", b"\x89PNG"), ("a.txt", b"still here")]))
    text = run_wds("show", "b.tar", cwd=here).stdout
    assert b"cannot be decoded: no format that Pillow reads\n" in text
    assert b"still here" in text


def test_in_a_terminal(here):
    """A terminal of colours gets half blocks."""
    master, slave = pty.openpty()
    environment = command_environment(TERM="xterm-256color", NO_COLOR="", TERM_PROGRAM="", KITTY_WINDOW_ID="")
    with subprocess.Popen([*WDS, "show", "-f", "png", "s.tar"], stdout=slave, cwd=here, env=environment):
        os.close(slave)
        text = b""
        while b"\n== b" not in text:
            text += os.read(master, 4096)
    os.close(master)
    assert text.count("\u2580".encode()) == 8


def test_documents(here):
    """Texts and images of a document in the order that its JSON says."""
    record = {
        "text_list": ["one", "two"],
        "image_info": [{"image_name": "x.png", "matched_text_index": 1}],
    }
    (here / "d.tar").write_bytes(archives.by_hand([("d-x.png", png(0)), ("d.json", json.dumps(record).encode())]))
    lines = run_wds("show", "--documents", "-i", "none", "d.tar", cwd=here).stdout.decode().splitlines()
    assert lines[0] == "== d"
    assert [line for line in lines if line in ("one", "two") or "png" in line][0::2] == ["one", "two"]
