"""Every error of the tree, triggered once by what a user would do, with the text that it gives.

The texts are kept in ``error_messages.json``, to be read in one go. After a message has changed on purpose:
``python tests/e2e/test_error_messages.py`` writes the file anew.
"""

import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import webdataset as wds
from webdataset.core import errors

# what differs from run to run, or between versions of Python and of optional packages
VARYING = {
    r"127\.0\.0\.1:\d+": "HOST",
    r"process \d+": "process N",
    # profiles that other tests have defined
    r"; known are [^(]*": " ",
    r"pip install -e '[^\[]*": "pip install -e 'CHECKOUT",
    r"(/[^ ]*/)?test_error_messages\.py:\d+": "FILE:LINE",
    r"(read so far: ).*?( \(url)": r"\1REASON\2",
}
RECORDED = Path(__file__).with_name("error_messages.json")


SPEC = b"version: 1\nsplits:\n  train:\n    sources: [/data/private.tar]\n"


class Evil:
    """What unpickles by calling a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def write(folder: Path, name: str, *samples: dict[str, Any]) -> str:
    """Write a shard and return its path."""
    path = str(folder / name)
    with wds.TarWriter(path) as sink:
        for number, sample in enumerate(samples):
            sink.write({"__key__": f"{number:03d}", **sample})
    return path


def write_members(folder: Path, name: str, *members: tuple[str, bytes]) -> str:
    """Write a tar of members as they are named and return its path."""
    path = str(folder / name)
    with tarfile.open(path, "w") as tar:
        for member, body in members:
            info = tarfile.TarInfo(member)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def write_bytes(folder: Path, name: str, content: bytes) -> str:
    """Write a file and return its path."""
    (folder / name).write_bytes(content)
    return str(folder / name)


def plain(folder: Path, name: str = "a.tar") -> str:
    """Write a shard of three plain samples and return its path."""
    return write(folder, name, *({"txt": f"caption {number}", "cls": number} for number in range(3)))


def read(path: str, **options: Any) -> wds.WebDataset:
    """Return a dataset of one shard."""
    return wds.WebDataset(path, shardshuffle=False, **options)


def damage(folder: Path, at: int, content: bytes, *, length: int | None = None) -> str:
    """Return the path of a shard with other bytes at one place, or cut."""
    body = bytearray(Path(plain(folder)).read_bytes())
    body[at : at + len(content)] = content
    return write_bytes(folder, "damaged.tar", bytes(body[:length]))


def write_large_image(folder: Path) -> str:
    """Write a shard of one small file that holds a very large image."""
    image = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    image.new("1", (8000, 7000)).save(content, "png")
    return write_members(folder, "a.tar", ("0.png", content.getvalue()))


class Half(BaseHTTPRequestHandler):
    """Promises more bytes than it sends, and names no version; sends a specification whole."""

    def do_GET(self) -> None:
        """Send half of it."""
        body = SPEC if self.path.endswith(".yaml") else bytes(10240)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if body is SPEC else 20480))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  the name that http.server calls

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serve() -> Iterator[str]:
    """Give the url of a folder on a server that breaks off."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Half)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def read_short_body(_folder: Path) -> None:
    """Read from a server that breaks off."""
    with serve() as host, wds.gopen(f"{host}/a.tar", attempts=1) as stream:
        while stream.read(4096):
            pass


def load_foreign_spec(_folder: Path) -> None:
    """Load a specification from the network that names a local file."""
    with serve() as host:
        list(wds.WebDataset(f"{host}/a.yaml", shardshuffle=False))


def overwrite_while_reading(folder: Path) -> None:
    """Overwrite a shard while it is being read."""
    path = write(folder, "a.tar", *({"bin": bytes(1 << 20)} for _ in range(8)))
    run = iter(read(path))
    next(run)
    with open(path, "r+b") as file:
        file.truncate(3 << 20)
    list(run)


def load_state_of_another(folder: Path) -> None:
    """Load a state into a dataset of other stages."""
    path = plain(folder)
    dataset = read(path).shuffle(10).elastic(2)
    next(iter(dataset))
    other = read(path).batched(2).elastic(2)
    other.load_state_dict(dataset.state_dict())
    next(iter(other))


def kill_worker(folder: Path) -> None:
    """End a worker process of a loader from within."""
    dataset = read(plain(folder)).map(lambda _: os._exit(3))
    with wds.Loader(dataset, 2, workers=1, mode="processes", start_method="fork") as loader:
        list(loader)


def hang_worker(folder: Path) -> None:
    """Let a worker process of a loader wait for too long."""
    dataset = read(plain(folder)).map(lambda _: time.sleep(60))
    with wds.Loader(dataset, 2, workers=1, mode="processes", start_method="fork", timeout=1) as loader:
        list(loader)


def stale_index(folder: Path) -> None:
    """Read a shard by the index of an earlier one."""
    path = plain(folder)
    wds.write_indexes([path], "files")
    write(folder, "a.tar", *({"txt": "x" * 4000, "cls": number} for number in range(5)))
    wds.IndexedDataset([path])[0]


def write_long_header(folder: Path) -> str:
    """Write a tar whose PAX header is larger than any that makes sense."""
    path = str(folder / "a.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("0.txt")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(info)
    return path


def missing_image(folder: Path) -> None:
    """Assemble a document whose image is not there."""
    document = {"texts": ["a picture", None], "images": [None, "0.jpg"]}
    path = write_members(folder, "a.tar", ("000.json", json.dumps(document).encode()))
    list(read(path).decode().interleaved())


def missing_extra(_folder: Path) -> None:
    """Use an optional package where it is not installed."""
    code = (
        "import sys; sys.modules['zstandard'] = sys.modules['isal'] = sys.modules['botocore'] = None\n"
        "import webdataset as wds\n"
        "try: list(wds.WebDataset('s3://bucket/a.tar', shardshuffle=False))\n"
        "except wds.errors.MissingExtra as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    raise errors.MissingExtra(run.stdout.strip() or run.stderr)


TRIGGERS: dict[str, Callable[[Path], object]] = {
    "NotFound": lambda f: list(read(str(f / "none.tar"))),
    "AlreadyExists": lambda f: [wds.TarWriter(plain(f), overwrite=False)],
    "CommandFailed": lambda _f: list(read("pipe:exit 3")),
    "ShortRead": read_short_body,
    "ShardChanged": overwrite_while_reading,
    "BadHeader": lambda f: list(read(damage(f, 0, b"\xff" * 40))),
    "Truncated": lambda f: list(read(damage(f, 0, b"", length=700))),
    "BadCompression": lambda f: list(read(write_bytes(f, "a.tar.gz", b"\x1f\x8b\x08\x00" + bytes(30)))),
    "DuplicateField": lambda f: list(read(write_members(f, "a.tar", ("0.txt", b"a"), ("0.txt", b"b")))),
    "SplitSample": lambda f: list(
        read(write_members(f, "a.tar", ("0.txt", b"a"), ("1.txt", b"b"), ("0.cls", b"1")), split_samples="error")
    ),
    "MissingField": lambda f: list(read(plain(f)).to_tuple("jpg")),
    "MissingImage": missing_image,
    "NoSuchSample": lambda f: wds.IndexedDataset([plain(f)])[7],
    "NoSamples": lambda f: list(read(write_members(f, "a.tar"), empty_check=True)),
    "AllDropped": lambda f: list(read(plain(f)).map(lambda _: None)),
    "DecodingError": lambda f: list(read(write_members(f, "a.tar", ("0.json", b"{"))).decode()),
    "EncodingError": lambda f: write(f, "b.tar", {"json": {1, 2}}),
    "UnsafeContent": lambda f: list(read(write(f, "a.tar", {"pyd": pickle.dumps(Evil())})).decode()),
    "StateMismatch": load_state_of_another,
    "WorkerDied": kill_worker,
    "WorkerTimeout": hang_worker,
    "JobFailed": lambda f: wds.map_shards(lambda _: 1 / 0, [plain(f)], [f"{f}/out.tar"]),
    "NoShards": lambda _f: wds.WebDataset([], shardshuffle=False),
    "MissingExtra": missing_extra,
    "StaleIndex": stale_index,
    "UnsafeSpec": load_foreign_spec,
    "ConfigError": lambda _f: list(read("s3://bucket/a.tar", storage_options={"profile": "none"})),
    "LimitExceeded": lambda f: list(read(write_long_header(f))),
    "NoRandomAccess": lambda f: wds.IndexedShard(f"pipe:cat {plain(f)}")[0],
    "NotRepresentable": lambda f: wds.write_indexes([write_members(f, "a.tar")], "dali"),
    "FieldTooLarge": lambda f: list(read(write_large_image(f)).decode("rgb")),
}


def leaves(kind: type = errors.WebDatasetError) -> set[str]:
    """The names of the errors from which no other error of the tree is derived."""
    found = set()
    names = [name for name in dir(errors) if isinstance(getattr(errors, name), type)]
    kinds = [getattr(errors, name) for name in names if issubclass(getattr(errors, name), kind)]
    for each in kinds:
        if not any(other is not each and issubclass(other, each) for other in kinds):
            found.add(each.__name__)
    return found


def describe(name: str) -> tuple[str, str]:
    """Trigger an error; return the name of its class, and its text without what differs from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        try:
            TRIGGERS[name](Path(folder))
        except Exception as error:  # noqa: BLE001  the table says which one it is
            text = str(error).replace(folder, "FOLDER")
            for pattern, word in VARYING.items():
                text = re.sub(pattern, word, text)
            return type(error).__name__, text
    return "nothing", ""


def test_every_leaf_is_triggered():
    """No kind of error is left out, and none is named that is not there."""
    assert leaves() <= set(TRIGGERS)
    assert all(issubclass(getattr(errors, name), errors.WebDatasetError) for name in TRIGGERS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(TRIGGERS))
def test_messages(name):
    """The error is of its kind, its text is the one that is kept, and it is short."""
    kind, text = describe(name)
    assert kind == name
    assert text == json.loads(RECORDED.read_text(encoding="utf-8"))[name]
    assert len(text) <= 5 * 120
    assert len(text.splitlines()) <= 5


def test_errors_have_a_public_home():
    """``wds.errors`` is where programs find what they catch."""
    assert wds.errors is errors
    with pytest.raises(wds.errors.NotFound):
        next(iter(read("/no/such/shard.tar")))


if __name__ == "__main__":
    found = {name: describe(name) for name in sorted(TRIGGERS)}
    texts = {name: text if kind == name else f"{kind}: {text}" for name, (kind, text) in found.items()}
    RECORDED.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")
