"""How much code a sample, a state or a cache miss crosses: files and functions of five journeys, and their budgets.

``walks.py`` runs each journey once to warm up and three times to count, prints one line each, and fails if each of
the three crosses more files or functions than ``BUDGETS`` allows: on a slow machine a run may do more, as clocks run
out. Lower them when a journey has become shorter; one is raised only where a promise was not kept without it.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, Self

import webdataset as wds

PACKAGE = str(Path(wds.__file__).resolve().parent) + os.sep
SAMPLES = 10
RUNS = 3
# at most so many files, and functions
BUDGETS = {
    "S3, first sample": (46, 327),
    "local tuple first": (38, 237),
    "local tuple later": (7, 7),
    "loader, state": (4, 9),
    # three for states of datasets that workers read, and for imports that a fork must not cut off
    "loader, continue": (44, 319),
    "cache miss": (52, 349),
    "write first": (11, 81),
    "write later": (4, 10),
}


class Walk:
    """Counts the package's files and functions that calls cross, in all threads.

    Attributes:
        files: paths.
        functions: code objects.
        changes: how often a call went from one file into another.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[Any] = set()
        self.changes = 0

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take a call into account."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        self.files.add(name)
        self.functions.add(frame.f_code)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
            self.changes += caller.f_code.co_filename != name

    def __enter__(self) -> Self:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_failure: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


class Objects(BaseHTTPRequestHandler):
    """Serves one shard under every name, whole and in ranges, as S3 and web servers do."""

    protocol_version = "HTTP/1.1"
    body = b""

    def do_GET(self) -> None:
        """Send the bytes that are asked for."""
        size, first, last = len(self.body), 0, len(self.body) - 1
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            low, _, high = asked.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", '"1"')
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body[first : last + 1])

    do_HEAD = do_GET  # noqa: N815  the name that http.server calls

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def served(body: bytes) -> Iterator[str]:
    """Give the address of a server of one shard."""
    handler = type("Handler", (Objects,), {"body": body})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def write_shard(path: Path) -> None:
    """Write a shard of a few samples."""
    with wds.TarWriter(str(path)) as sink:
        for number in range(SAMPLES):
            sink.write({"__key__": f"{number:04d}", "txt": f"caption {number}", "cls": number})


def s3_first(host: str) -> Callable[[], Iterator[Any]]:
    """The first sample of an object of S3."""
    options = {"endpoint_url": f"http://{host}", "anonymous": True}

    def journey() -> Iterator[Any]:
        yield next(iter(wds.WebDataset("s3://bucket/a.tar", shardshuffle=False, storage_options=options)))

    return journey


def local_tuples(path: Path) -> Callable[[], Iterator[Any]]:
    """Decoded tuples of a local shard: the first, then a later one."""

    def journey() -> Iterator[Any]:
        run = iter(wds.WebDataset(str(path), shardshuffle=False).decode().to_tuple("txt", "cls"))
        yield next(run)
        next(run)
        yield next(run)

    return journey


def loader_states(path: Path) -> Callable[[], Iterator[Any]]:
    """A state of a loader with processes; a loader that continues from one."""

    def journey() -> Iterator[Any]:
        def make() -> wds.Loader:
            dataset = wds.WebDataset(str(path), shardshuffle=False).decode().elastic(2)
            return wds.Loader(dataset, 2, workers=2, mode="processes", start_method="fork")

        loader = make()
        run = iter(loader)
        next(run)
        yield None
        state = loader.state_dict()
        yield state
        following = make()
        following.load_state_dict(state)
        yield next(iter(following))

    return journey


def cache_miss(host: str) -> Callable[[], Iterator[Any]]:
    """The first sample of a shard that is not in the cache yet."""

    def journey() -> Iterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            dataset = wds.WebDataset(f"http://{host}/a.tar", shardshuffle=False, cache_dir=folder)
            run = iter(dataset)
            yield next(run)
            list(run)

    return journey


def writes() -> Iterator[Any]:
    """The first sample that a writer of shards writes; a later one."""
    with tempfile.TemporaryDirectory() as folder, wds.ShardWriter(f"{folder}/%04d.tar", verbose=0) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", "txt": "caption", "cls": number})
            yield None


def counted(journey: Callable[[], Iterator[Any]], steps: tuple[int, ...]) -> list[Walk]:
    """Return what the given steps of a journey cross: of several runs after a first one, the one that crosses least."""
    for _ in journey():
        pass
    runs = [count_steps(journey, steps) for _ in range(RUNS)]
    return [min(walks, key=lambda walk: (len(walk.functions), len(walk.files))) for walks in zip(*runs, strict=True)]


def count_steps(journey: Callable[[], Iterator[Any]], steps: tuple[int, ...]) -> list[Walk]:
    """Make a journey once; return what the given steps of it cross."""
    found = []
    run = journey()
    for number in range(max(steps) + 1):
        with Walk() as walk:
            next(run)
        if number in steps:
            found.append(walk)
    for _ in run:
        pass
    return found


def main() -> int:
    """Print the figures; return 1 if a budget is passed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar"
        write_shard(path)
        with served(path.read_bytes()) as host:
            walks = {
                "S3, first sample": counted(s3_first(host), (0,)),
                "local tuple": counted(local_tuples(path), (0, 1)),
                "loader": counted(loader_states(path), (1, 2)),
                "cache miss": counted(cache_miss(host), (0,)),
                "write": counted(writes, (0, 2)),
            }
    over = 0
    for name, found in walks.items():
        for step, walk in enumerate(found):
            label = name if len(found) == 1 else f"{name} {('first', 'later')[step]}"
            label = {"loader first": "loader, state", "loader later": "loader, continue"}.get(label, label)
            files, functions = len(walk.files), len(walk.functions)
            budget = BUDGETS.get(label, (0, 0))
            over += files > budget[0] or functions > budget[1]
            print(
                f"{label}: {files} files, {functions} functions, {walk.changes} changes of file "
                f"(at most {budget[0]} files, {budget[1]} functions)"
            )
    if over:
        print(f"{over} journeys cross more than their budget (scripts/walks.py)")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
