"""Which files of a cache directory are the cache's own, and the bound on its size.

Flows in: names of downloads. Flows out: fewer files. A download is known by the hash in its name, or, where
``url_to_name`` chose the name, by a line in a hidden list; everything else belongs to the user and stays.
"""

import os
from pathlib import Path

from .cleanup import LRUCleanup
from .names import is_stored_name

_LIST = ".wds-named"


def note(folder: str, name: str) -> None:
    """Note that a file with a chosen name is a download.

    Args:
        folder: the cache directory.
        name: the file's path in it.
    """
    with Path(folder, _LIST).open("a", encoding="utf-8") as lines:
        lines.write(f"{name}\n")


def shrink(folder: str, size_bytes: float, *, verbose: bool) -> None:
    """Delete the downloads that were used least recently, but none that this process has open.

    Args:
        folder: the cache directory.
        size_bytes: what may stay in it.
        verbose: log each deletion.
    """
    noted = Path(folder, _LIST)
    chosen = set(noted.read_text(encoding="utf-8").splitlines()) if noted.exists() else set()

    def deletable(path: str) -> bool:
        return is_stored_name(Path(path).name) or os.path.relpath(path, folder) in chosen

    LRUCleanup(
        folder, size_bytes, keyfn=os.path.getatime, verbose=verbose, interval=None, deletable=deletable
    ).cleanup()  # fmt: skip
