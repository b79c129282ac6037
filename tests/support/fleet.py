"""Light processes that do one thing at once: forks of one small program, as the ranks and workers of a host.

``python -m support.fleet COUNT MODULE:FUNCTION WORDS…`` loads the function, forks, calls ``function(number, *words)``
in each child, and prints one line of JSON: what each child returned, by number (None where it died). All children live
until the last one has its answer, as those of a job do.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run(count: int, function: Callable[..., object], words: Sequence[str]) -> list[Any]:
    """Return what the children returned."""
    arrived, here = os.pipe()
    leave, hold = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for number in range(count):
            pid = os.fork()
            if not pid:
                os.close(hold)
                _be_child(Path(folder, str(number)), number, function, words, here, leave)
            pids.append(pid)
        os.close(here)
        while os.read(arrived, 4096):
            pass
        os.close(hold)
        for pid in pids:
            os.waitpid(pid, 0)
        paths = [Path(folder, str(number)) for number in range(count)]
        return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def _be_child(
    path: Path, number: int, function: Callable[..., object], words: Sequence[str], here: int, leave: int
) -> None:
    try:
        answer = function(number, *words)
        path.with_suffix(".part").write_text(json.dumps(answer))
        path.with_suffix(".part").rename(path)
        os.close(here)
        os.read(leave, 1)
    finally:
        os._exit(0)


def expand(_number: int, url: str) -> list[str]:
    """Return the urls that an expression stands for."""
    from webdataset.shards.expand import expand_urls

    return expand_urls(url)


def fetch(number: int, root: str, count: str) -> list[int]:
    """Read objects, each through a stream of its own; return how many bytes came of each."""
    from webdataset.storage.open_url import open_url

    sizes = []
    for each in range(int(count)):
        with open_url(f"{root}/{number}-{each}") as stream:
            sizes.append(len(stream.read()))
    return sizes


def main() -> None:
    """Run what the command line says."""
    count, place, *words = sys.argv[1:]
    module, _, name = place.partition(":")
    # imported once, before the forks
    import webdataset.shards.shared_listing
    import webdataset.storage.backends.gcs
    import webdataset.storage.backends.http
    import webdataset.storage.listing  # noqa: F401

    print(json.dumps(run(int(count), getattr(importlib.import_module(module), name), words)))


if __name__ == "__main__":
    main()
