"""The cache shared by many processes, some of them killed: each shard once, every byte right, no leftovers."""

import hashlib
import json
import subprocess
import sys

from support.paced_server import PacedServer
from webdataset.testing import archives

# A zygote that has everything imported forks light readers, kills some of them, and watches the directory.
ZYGOTE = """
import hashlib, json, os, pathlib, random, signal, sys, time
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.samples.shard_opener import open_shards
import urllib3

rules = json.loads(sys.argv[1])
folder, urls, draw = rules["folder"], rules["urls"], random.Random(rules["seed"])
open_shards([{"url": urls[0]}])

def source(shards, handler):
    return open_shards(shards, handler)

def reads(order):
    cache = ShardCache(folder, rules["size_bytes"])
    for shard in cache.open_shards([{"url": url} for url in order], source, reraise_exception):
        digest = hashlib.sha256()
        with shard["stream"] as stream:
            while piece := stream.read(30_000):
                digest.update(piece)
        if digest.hexdigest() != rules["digests"][shard["url"]]:
            os._exit(3)

def child(order):
    number = os.fork()
    if not number:
        try:
            reads(order)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(4)
        os._exit(0)
    return number

def find_sizes(*suffixes):
    # by number of the file: one that is renamed meanwhile may be listed twice
    found = {}
    for path in pathlib.Path(folder).glob("**/*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # renamed or removed since it was listed
            continue
        if path.suffix in suffixes:
            found[status.st_ino] = status.st_size
    return found

def measure():
    # files of both scans were all there when the first ended
    first, second = find_sizes(".tar", ".part"), find_sizes(".tar", ".part")
    return sum(min(first[each], second[each]) for each in first.keys() & second.keys())

children = {}
for number in range(rules["processes"]):
    children[child(draw.sample(urls, len(urls)))] = number
while sum(each > 0 for each in find_sizes(".part").values()) < rules["parts"]:
    time.sleep(0.01)
begin = time.monotonic()
doomed = draw.sample(sorted(children), rules["killed"])
times = sorted(draw.uniform(0.05, rules["seconds"]) for _ in doomed)
outcomes, killed, largest = [], 0, 0
while children:
    while times and time.monotonic() - begin > times[0]:
        times.pop(0)
        victim = doomed.pop()
        if victim in children:
            os.kill(victim, signal.SIGKILL)
            killed += 1
    largest = max(largest, measure())
    number, status = os.waitpid(-1, os.WNOHANG)
    if number:
        children.pop(number)
        outcomes.append(os.waitstatus_to_exitcode(status))
    else:
        time.sleep(0.01)
print(json.dumps({"outcomes": outcomes, "killed": killed, "largest": largest}))
"""


def shard(number, size):
    """Return a shard of about this size, unlike every other."""
    body = hashlib.sha256(bytes([number])).digest() * (size // 32)
    return archives.by_tarfile([("a.bin", body), ("b.txt", b"%d" % number)])


def run(server, folder, **rules):
    """Let processes read all pages of a server."""
    urls = {server.root + path: hashlib.sha256(page).hexdigest() for path, page in server.pages.items()}
    given = {"folder": str(folder), "urls": list(urls), "digests": urls, "size_bytes": -1, "parts": 0, **rules}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", ZYGOTE, json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def hidden(folder):
    """Return the kinds of the files in the hidden folder."""
    return {path.suffix for path in (folder / ".wds").iterdir()}


def test_many_processes_some_killed(memory_folder):
    """64 processes on a cold cache, a fifth of them killed: each shard is downloaded once and after kills."""
    folder = memory_folder / "near"
    folder.mkdir()
    pages = {f"/{number}/x.tar": shard(number, 120_000) for number in range(10)}
    total = sum(map(len, pages.values()))
    with PacedServer(pages, bytes_per_second=150_000) as server:
        report = run(server, folder, processes=64, killed=13, seconds=2.0, seed=1, size_bytes=total)
        assert report["killed"] > 3
        assert sorted(set(report["outcomes"])) == [-9, 0]
        assert report["largest"] <= total
        assert server.downloads() <= 1.1 * len(pages) + report["killed"]
        assert server.sent <= 1.1 * total + report["killed"] * max(map(len, pages.values()))
        before = len(server.asked)
        assert run(server, folder, processes=1, killed=0, seconds=0, seed=0)["outcomes"] == [0]
        kept = {path.read_bytes() for path in folder.glob("*.tar")}
    assert kept == set(pages.values())
    assert hidden(folder) == {".json"}
    assert len(server.asked) - before <= len(pages)  # one question for each, whether it is still the same


def test_a_cache_that_is_too_small(memory_folder):
    """Room for three of ten shards, twelve readers, three killed: the bound holds at all times, every byte is right."""
    folder = memory_folder / "near"
    folder.mkdir()
    pages = {f"/{number}/x.tar": shard(number, 60_000) for number in range(10)}
    limit = 3 * max(map(len, pages.values())) + 1000
    with PacedServer(pages, bytes_per_second=400_000) as server:
        report = run(server, folder, processes=12, killed=3, seconds=1.0, seed=3, size_bytes=limit)
        assert sorted(set(report["outcomes"])) == [-9, 0]
        assert 0 < report["largest"] <= limit
        assert run(server, folder, processes=1, killed=0, seconds=0, seed=0, size_bytes=limit)["outcomes"] == [0]
    assert hidden(folder) == {".json"}
    assert sum(path.stat().st_size for path in folder.glob("*.tar")) <= limit
    assert {path.read_bytes() for path in folder.glob("*.tar")} <= set(pages.values())


def test_everybody_killed(memory_folder):
    """All readers die half way; the next start goes on where they stopped, by range."""
    folder = memory_folder / "near"
    folder.mkdir()
    pages = {f"/{number}/x.tar": shard(number, 200_000) for number in range(3)}
    with PacedServer(pages) as server:
        for path in pages:
            server.hold(path, 100_000)
        report = run(server, folder, processes=6, killed=6, seconds=0.6, seed=4, parts=3)
        assert report["outcomes"] == [-9] * 6
        parts = sorted(path.stat().st_size for path in folder.glob(".wds/*.part"))
        assert parts[0] > 0
        server.release()
        assert run(server, folder, processes=1, killed=0, seconds=0, seed=0)["outcomes"] == [0]
        resumed = [one for one in server.asked if one.start and one.whole]
        assert {one.start for one in resumed} == set(parts)
        assert {one.path for one in resumed} == set(pages)
        assert all(one.condition for one in resumed)
    assert hidden(folder) == {".json"}
    assert {path.read_bytes() for path in folder.glob("*.tar")} == set(pages.values())
