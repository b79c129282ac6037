"""Tags: hostile keys come back, nothing is lost by concurrency or kills, commands read the file."""

import io
import multiprocessing
import os
import signal
import tarfile
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command import run_wds
from webdataset.core.errors import UsageError
from webdataset.reshaping.tag_lines import choose_keys, escape_key, parse_tags, restore_key
from webdataset.viewer.tags import TagFile

KEYS = st.text(
    st.characters(exclude_categories=()).filter(lambda sign: not "\ud800" <= sign <= "\udfff")
    | st.sampled_from(["\n", "\t", "\r", "\\", "\0", "\x85", "\u2028", "\x1c", "\udc80", "\udcff", "n", "0"]),
    max_size=12,
)


@given(KEYS)
def test_keys_come_back(key):
    """Whatever stands in a key: it fits in one cell of one line, and is read back."""
    text = escape_key(key)
    assert len(text.splitlines()) <= 1
    assert "\t" not in text
    assert restore_key(text) == key


@given(st.lists(st.tuples(KEYS, st.sampled_from(["keep", "drop", "to look at", "ß"]), st.booleans()), max_size=12))
@settings(max_examples=40, deadline=None)
def test_changes(tmp_path_factory, changes):
    """The file holds what was given and not taken away, after each change, for this and another reader."""
    path = tmp_path_factory.mktemp("tags") / "tags.tsv"
    file, wanted = TagFile(str(path)), {}
    for key, tag, on in changes:
        given_tags = wanted.setdefault(key, [])
        if on and tag not in given_tags:
            given_tags.append(tag)
        if not on and tag in given_tags:
            given_tags.remove(tag)
        wanted = {name: tags for name, tags in wanted.items() if tags}
        assert file.change(key, tag, on=on) == wanted
        assert TagFile(str(path)).all() == wanted
        assert file.of(key) == wanted.get(key, [])
    assert not [each for each in path.parent.iterdir() if each != path]


@given(st.text(max_size=30))
def test_any_line_can_be_restored(text):
    """A line that this library did not write is read without an error."""
    restore_key(text)


@pytest.mark.parametrize("content", [b"key\n", b"a\tb\tc\n", b"a\tkeep\nb\n", b"\x1f\x8b\0\0", b"a\t\n", bytes(1024)])
def test_other_files_are_refused(tmp_path, content):
    """A file that holds something else is not taken, and stays as it is."""
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no file of tags"):
        TagFile(str(path))
    assert path.read_bytes() == content


def test_file_that_becomes_another(tmp_path):
    """Where another program has replaced the file by something else, nothing is written over it."""
    path = tmp_path / "tags"
    file = TagFile(str(path))
    file.change("a", "keep", on=True)
    path.write_bytes(b"something else")
    with pytest.raises(UsageError, match="no file of tags"):
        file.change("b", "keep", on=True)
    assert path.read_bytes() == b"something else"


@pytest.mark.parametrize("place", ["s3://bucket/tags", "/no/such/folder/tags", "."])
def test_bad_places(place):
    """A url, a folder and a file in a folder that is not there are refused at the start."""
    with pytest.raises(UsageError):
        TagFile(place)


def test_link(tmp_path):
    """A link stays a link."""
    (tmp_path / "real").write_bytes(b"a\tkeep\n")
    (tmp_path / "link").symlink_to("real")
    TagFile(str(tmp_path / "link")).change("b", "keep", on=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"a\tkeep\nb\tkeep\n"


def test_threads(tmp_path):
    """Tags of many threads with two file objects: none is lost."""
    path = str(tmp_path / "tags")
    files = [TagFile(path), TagFile(path)]
    threads = [
        threading.Thread(target=lambda n=n: [files[n % 2].change(f"{n}-{i}", "keep", on=True) for i in range(10)])
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(files[0].all()) == {f"{n}-{i}" for n in range(6) for i in range(10)}


def keep_tagging(path, name, pipe):
    """Tag one key after the other, and say each one that was written."""
    file = TagFile(path)
    for number in range(100_000):
        file.change(f"{name}-{number}", "keep", on=True)
        pipe.send_bytes(f"{name}-{number}".encode())
        # the other one asks every 20 ms whether the lock is free: a loop without a pause may hold it for half a minute
        time.sleep(0.04 * (number % 2))


def test_killed_writers(tmp_path):
    """Writers that are killed at any moment: the file is always whole, and has every tag that was confirmed."""
    path = str(tmp_path / "tags")
    context = multiprocessing.get_context("spawn")
    confirmed: set[str] = set()
    for turn in range(3):
        writers = []
        for number in range(2):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=keep_tagging, args=(path, f"{turn}-{number}", theirs), daemon=True)
            process.start()
            theirs.close()
            writers.append((process, ours))
        for _, pipe in writers:
            confirmed.add(pipe.recv_bytes().decode())
        time.sleep(0.05 * turn)
        for process, _ in writers:
            os.kill(process.pid or 0, signal.SIGKILL)
            list(parse_tags((tmp_path / "tags").read_bytes(), path))
            process.join()
        for _, pipe in writers:
            try:
                while pipe.poll():
                    confirmed.add(pipe.recv_bytes().decode())
            except EOFError:
                pass
            pipe.close()
        assert confirmed <= set(TagFile(path).all())
    TagFile(path).change("after", "keep", on=True)
    assert len(confirmed) >= 6


def test_select_keys(tmp_path):
    """``wds select --keys`` takes a file of tags: of one tag as it is, of several with --tag; hostile keys too."""
    keys = ["plain", "back\\slash", "tab\there", "line\nend", "odd\udcff", "dropped"]
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for key in keys:
            member = tarfile.TarInfo(f"{key}.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    file = TagFile(str(tmp_path / "tags.tsv"))
    for key in keys[:-1]:
        file.change(key, "keep", on=True)
    run_wds("select", "--keys", tmp_path / "tags.tsv", "-o", tmp_path / "one.tar", tmp_path / "x.tar")
    file.change("dropped", "drop", on=True)
    done = run_wds("select", "--keys", tmp_path / "tags.tsv", "-o", tmp_path / "two.tar", tmp_path / "x.tar", status=2)
    assert b"--tag" in done.stderr
    run_wds("select", "--keys", tmp_path / "tags.tsv", "--tag", "keep", "-o", tmp_path / "two.tar", tmp_path / "x.tar")
    for name in ("one.tar", "two.tar"):
        with tarfile.open(tmp_path / name) as archive:
            assert [each.removesuffix(".txt") for each in archive.getnames()] == keys[:-1]
    run_wds("select", "--tag", "keep", "-o", tmp_path / "three.tar", tmp_path / "x.tar", status=2)


def test_choose_keys():
    """Of a tag that nothing has, no key; a file of several tags needs one."""
    assert choose_keys(b"a\tx\r\nb\ty\n", "f", "y") == {"b"}
    assert choose_keys(b"", "f") == frozenset()
    with pytest.raises(UsageError, match=r"x, y"):
        choose_keys(b"a\tx\nb\ty\n", "f")
