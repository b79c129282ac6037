"""After a power failure, names hold complete files: every state is tried that file systems may leave of our writes."""

import json
import os
import sys
from pathlib import Path

import pytest

import webdataset as wds
from support import mapped
from support.command import SRC, run_wds
from support.paced_server import PacedServer
from support.power_failures import check_states, record_program
from webdataset.caching import entry, eviction, metadata
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.samples.shard_opener import open_shards
from webdataset.testing import archives

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="needs strace")]

CONTENT = bytes(range(256)) * 40
# a writer of one file, with or without what makes it right
PLAIN = """
import os, sys
content = bytes(range(256)) * 40
with open(".a.partial", "wb") as file:
    file.write(content[:5000])
    file.write(content[5000:])
    file.flush()
    if "file" in sys.argv:
        os.fsync(file.fileno())
os.rename(".a.partial", "a")
if "folder" in sys.argv:
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
print("done", flush=True)
"""


# two files of which the second says that the first is there; each is synced, and the second's folder
RECEIPT = """
import os, sys
def sync(path):
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
for name in ("one/a", "two/receipt"):
    with open(name, "wb") as file:
        file.write(bytes(range(256)) * 40)
    sync(name)
    if name == "two/receipt" or "folder" in sys.argv:
        sync(os.path.dirname(name))
"""
# a file that is changed where it stands
CHANGE = """
import os
with open("a", "r+b") as file:
    file.write(bytes(10240))
    file.flush()
    os.fsync(file.fileno())
"""


def check_plain(folder, told):
    """A file is complete or absent, and there once the program said so."""
    path = folder / "a"
    if path.exists():
        assert path.read_bytes() == CONTENT, "the file is not complete"
    assert path.exists() or not told, "the file is lost"


@pytest.fixture
def folder(memory_folder):
    """A folder for a program to write in; no call of it is as slow as a disk."""
    place = memory_folder / "root"
    place.mkdir()
    return place


def test_a_writer_that_is_right(folder):
    """The states of a writer that syncs file and folder keep the promise, and are many."""
    assert check_states(record_program(PLAIN, folder, "file", "folder"), check_plain) > 8


@pytest.mark.parametrize(("syncs", "message"), [("folder", "not complete"), ("file", "lost"), ("", "not complete")])
def test_a_writer_that_is_wrong(folder, syncs, message):
    """One that leaves out either sync is found out."""
    with pytest.raises(AssertionError, match=message):
        check_states(record_program(PLAIN, folder, *syncs.split()), check_plain)


@pytest.mark.parametrize("right", [False, True])
def test_a_receipt_in_another_folder(folder, right):
    """What one folder says of a file in another is found out, where nothing brought that one to the disk."""
    for name in ("one", "two"):
        (folder / name).mkdir()
    recording = record_program(RECEIPT, folder, *["folder"] * right)

    def check(place, _told):
        receipt, file = place / "two/receipt", place / "one/a"
        if receipt.exists() and receipt.read_bytes() == CONTENT:
            assert file.exists(), "there is a receipt, and no file"

    if right:
        check_states(recording, check)
    else:
        with pytest.raises(AssertionError, match="no file"):
            check_states(recording, check)


def test_a_file_that_is_changed_where_it_stands(folder):
    """Half of it is old and half of it new, though it was synced."""
    (folder / "a").write_bytes(CONTENT)
    recording = record_program(CHANGE, folder)

    def check(place, _told):
        assert (place / "a").read_bytes() in (CONTENT, bytes(10240)), "half of each"

    with pytest.raises(AssertionError, match="half of each"):
        check_states(recording, check)


# a series of shards; tells each that is complete
SHARDS = """
import json, sys
import webdataset as wds
options = {"maxcount": 2, **json.loads(sys.argv[2])}
post = lambda name: print(name, flush=True)
with wds.ShardWriter(sys.argv[1], encoder=False, verbose=0, post=post, **options) as writer:
    for number in range(6):
        writer.write({"__key__": f"{number:04d}", "txt": bytes([65 + number]) * 3000, "cls": b"%d" % number})
print("closed", flush=True)
"""


def read_files(folder):
    """Return the files of a folder that have final names, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".part" not in str(path.relative_to(folder))
    }


def expect_whole(recording, *, earlier=None):
    """Return a check: each file is as it was before the run or after it, and what the program told is there."""
    before, after = earlier or {}, read_files(recording.after)

    def check(folder, told):
        found = read_files(folder)
        for name, content in found.items():
            assert content in (before.get(name), after.get(name)), f"{name} is not complete"
        for name in told:
            if name == "closed":
                assert found == after, "what was there when the writer was closed is lost"
            elif name in after:
                assert found.get(name) == after[name], f"{name} is lost"
        return found

    return check


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("a-%d.tar", {}),
        ("a-%d.tar.gz", {}),
        ("a-%d.tar", {"overwrite": False}),
        ("a-%d.tar", {"index": ["binary", "files", "wids"]}),
        ("a-%d.tar", {"index": ["energon"]}),
        ("a-%d.tar", {"index": ["energon"], "maxcount": 9}),
    ],
    ids=["plain", "gz", "no overwrite", "indexes", "energon", "energon of one"],
)
def test_shards(folder, pattern, options):
    """A shard and its indexes are complete or absent; those reported, and all when it is closed, are there."""
    recording = record_program(SHARDS, folder, pattern, json.dumps(options))
    assert check_states(recording, expect_whole(recording)) > 20


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("options", [{"index": ["binary"]}, {"index": ["wids"], "compress": "gz"}], ids=["plain", "gz"])
def test_shards_that_replace_others(folder, linked, options):
    """Beside a shard stands its own index or none, also where the shard's name is a link to another folder."""
    (folder / "far").mkdir()
    for number in range(3):
        with wds.TarWriter(f"{folder}/a-{number}.tar", index="binary") as writer:
            writer.write({"__key__": f"{number:04d}", "txt": "before" * 500, "cls": 7})
        if linked:
            (folder / f"a-{number}.tar").rename(folder / f"far/a-{number}.tar")
            (folder / f"a-{number}.tar").symlink_to(f"far/a-{number}.tar")
    before = read_files(folder)
    recording = record_program(SHARDS, folder, "a-%d.tar", json.dumps(options))
    whole, after = expect_whole(recording, earlier=before), read_files(recording.after)

    def check(folder, told):
        found = whole(folder, told)
        for name in (f"a-{number}.tar" for number in range(3)):
            index = name.replace(".tar", ".wdsindex")
            if index in found and name in found:
                era = before if found[name] == before[name] else after
                assert found[index] == era.get(index), "the index is another shard's"

    assert check_states(recording, check) > 20


# -- the shard cache

FETCH = """
import os, sys
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.samples.shard_opener import open_shards
folder, chosen, *urls = sys.argv[1:]
for url in urls:
    cache = ShardCache(folder, size_bytes=70_000, url_to_name=os.path.basename if chosen == "chosen" else None)
    (shard,) = cache.open_shards([{"url": url}], open_shards, reraise_exception)
    with shard["stream"] as stream:
        stream.read()
"""

CLEAN = """
import sys
from webdataset.caching.eviction import LRUCleanup
LRUCleanup(sys.argv[1], 10, interval=None).cleanup()
"""


def version(number, size=40_000):
    """Return a shard's bytes."""
    return archives.by_hand([("0.bin", b"%d" % number * size)])


def fetch(url, folder, names):
    """Read a shard through the cache, under a name of the cache's own or a chosen one."""
    cache = ShardCache(str(folder), size_bytes=70_000, url_to_name=os.path.basename if names == "chosen" else None)
    (shard,) = cache.open_shards([{"url": url}], open_shards, reraise_exception)
    with shard["stream"] as stream:
        return stream.read()


@pytest.fixture
def restart(monkeypatch):
    """Return a function after which this process is one of a system that was started anew."""
    monkeypatch.setattr(metadata, "boot_id", lambda: "another boot")
    monkeypatch.setattr(entry, "boot_id", lambda: "another boot")

    def forget():
        for known in (entry._compared_copies, metadata._checked_paths, eviction._swept_folders, eviction._trimmed):
            known.clear()

    return forget


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("names", ["own", "chosen"])
@pytest.mark.parametrize("case", ["new", "replaced", "evicted", "cleaned"])
def test_cache(folder, restart, case, names):
    """After it the cache gives what the store has, also of a shard that was replaced or evicted before, or after."""
    with PacedServer({"/x.tar": version(1), "/y.tar": version(7)}) as server:
        url, other = f"{server.root}/x.tar", f"{server.root}/y.tar"
        if case != "new":
            fetch(url, folder, names)
            restart()
        if case == "replaced":
            server.pages["/x.tar"] = version(2)
        program = CLEAN if case == "cleaned" else FETCH
        recording = record_program(program, folder, str(folder), names, other if case == "evicted" else url)

        def check(place, _told):
            server.pages["/x.tar"] = version(3)
            restart()
            assert fetch(url, place, names) == version(3), "the cache gives what the store had"
            (copy,) = place.glob("x.*")
            assert copy.read_bytes() == version(3), "the cache kept something else"
            restart()
            assert fetch(url, place, names) == version(3)

        assert check_states(recording, check) >= (2 if case == "cleaned" else 20)


# -- jobs

TESTS = {"PYTHONPATH": os.pathsep.join([str(SRC), str(Path(__file__).parents[1])])}
JOB = """
import sys
import webdataset as wds
from support import mapped
wds.map_shards(mapped.fail_some, sys.argv[1] + "/*.tar", "out/", on_sample_error="quarantine")
print("closed", flush=True)
"""


@pytest.mark.parametrize("again", [False, True])
def test_mapped_shards(folder, memory_folder, again):
    """A receipt implies its output and quarantine; the next run ends with the bytes of a run without a failure."""
    mapped.make_shards(memory_folder / "in", [12, 9, 4])
    if again:
        # outputs and receipts of another function are there
        wds.map_shards(mapped.vary, f"{memory_folder}/in/*.tar", f"{folder}/out/")
    before = mapped.read_outputs(folder / "out")
    recording = record_program(JOB, folder, str(memory_folder / "in"), environment=TESTS)
    expected = mapped.read_outputs(recording.after / "out")
    assert any(name.endswith(".quarantined") for name in expected)

    def check(place, told):
        found = mapped.read_outputs(place / "out")
        assert not told or found == expected, "what a finished job made is lost"
        assert all(content in (before.get(name), expected.get(name)) for name, content in found.items())
        for name in (name for name in found if found[name] == expected.get(name) and name.endswith(".json")):
            output = name.removesuffix(".receipt.json")
            quarantine = [each for each in expected if f"{int(output[:3]):06d}." in each]
            for each in (output, *quarantine):
                assert found.get(each) == expected[each], f"there is a receipt, and {each} is lost"
        wds.map_shards(mapped.fail_some, f"{memory_folder}/in/*.tar", f"{place}/out/", on_sample_error="quarantine")
        assert mapped.read_outputs(place / "out") == expected

    assert check_states(recording, check, most=200) > 20


# -- commands and other files

COMMAND = """
import sys
from webdataset.cli.main import main
assert main(sys.argv[2:]) == int(sys.argv[1])
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    "words",
    [
        "0 index create ../in/{0..1}.tar -o index.json",
        "0 columns cls ../in/{0..1}.tar -o .",
        "0 reshard -N 3 -o new-%d.tar ../in/{0..1}.tar",
        "0 shuffle --seed 1 -o new.tar ../in/{0..1}.tar",
        "0 sort --by txt -o new-%d.tar.gz -c 3 ../in/{0..1}.tar",
        "0 recompress --to gz -o . ../in/{0..1}.tar",
        "1 check --fix . ../in/broken.tar",
        "0 convert ../in/{0..1}.tar -o rows-%d.parquet -c 5",
        "0 convert ../in/{0..1}.tar -o rows --to hf",
        "0 convert ../in/{0..1}.tar -o files --to folder",
    ],
    ids=lambda words: " ".join(words.split()[1:2]) + words[-6:],
)
def test_commands(folder, memory_folder, words):
    """What a command writes is complete or absent, and there when it has ended."""
    source = memory_folder / "in"
    source.mkdir()
    for shard in range(2):
        with wds.TarWriter(f"{source}/{shard}.tar") as writer:
            for number in range(4):
                writer.write({"__key__": f"{shard}{number}", "txt": f"{number}" * 3000, "cls": number})
    (source / "broken.tar").write_bytes((source / "0.tar").read_bytes()[:9000] + b"\1" * 512 + bytes(5000))
    recording = record_program(COMMAND, folder, *words.split())
    assert check_states(recording, expect_whole(recording)) > 5


# -- single files

STATE = """
import sys
from pathlib import Path
from webdataset.loading.torch_trainers import write_state
write_state(Path("checkpoint-1"), {"state": "x" * 9000})
print("closed", flush=True)
"""
COPY = """
import shutil, sys
from webdataset.index.wids.local_copies import download_file
download_file("x:" + sys.argv[1], "copy.tar", {"x": lambda remote, local: shutil.copyfile(remote[2:], local)})
"""
SHARD = """
import sys
from webdataset.index.wids.local_copies import copy_shard
copy_shard(sys.argv[1], "copy.tar")
"""
SAMPLES = """
import sys
import webdataset as wds
list(wds.WebDataset(sys.argv[1], shardshuffle=False).compose(wds.LMDBCached("samples.lmdb", map_size=1 << 20)))
"""
INDEXES = """
import sys
import webdataset as wds
wds.write_indexes(sys.argv[1], ["binary", "dali", "files", "wids", "energon"], folder=".")
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    "program", [STATE, COPY, SHARD, SAMPLES, INDEXES], ids=["state", "copy", "shard", "lmdb", "indexes"]
)
def test_single_files(folder, memory_folder, program):
    """A saved state, copies of wids (one by a function of the user's), kept samples and indexes: complete or absent."""
    with wds.TarWriter(f"{memory_folder}/0.tar") as writer:
        for number in range(5):
            writer.write({"__key__": f"{number}", "txt": f"{number}" * 3000})
    recording = record_program(program, folder, f"{memory_folder}/0.tar")
    assert check_states(recording, expect_whole(recording)) > 5


REPLACE = """
import sys
from webdataset.cli.main import main
assert main(["convert", sys.argv[1], "-o", "rows", "--to", sys.argv[2], "--force"]) == 0
print("closed", flush=True)
"""


@pytest.mark.parametrize("kind", ["hf", "folder"])
def test_folders_that_are_replaced(folder, memory_folder, kind):
    """Where a dataset is replaced, the whole old one is there, the whole new one, or none under the name."""
    sources = [f"{memory_folder}/{name}.tar" for name in ("old", "new")]
    for source in sources:
        with wds.TarWriter(source) as writer:
            for number in range(3):
                writer.write({"__key__": f"{number}", "txt": source + f"{number}" * 3000})
    run_wds("convert", sources[0], "-o", f"{folder}/rows", "--to", kind)
    before = read_files(folder)
    recording = record_program(REPLACE, folder, sources[1], kind)
    whole, after = expect_whole(recording, earlier=before), read_files(recording.after)

    def check(folder, told):
        found = whole(folder, told)
        # files are added to a folder one by one
        assert kind == "folder" or found in (before, after, {})

    assert check_states(recording, check) > 10
