"""Lists of the files of a repository, page by page.

Flows in: a repository's url and the text that paths begin with. Flows out: paths, in the hub's order.
"""

from collections.abc import Iterator
from typing import Any

from webdataset.ground.errors import NotFound

from .hub import Hub
from .places import place_of


def keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the paths in a repository that begin with a text.

    Args:
        stem: ``hf://datasets/user/repo@revision/``, as the user writes it.
        prefix: what paths begin with.
        storage_options: ``token``, ``endpoint_url``.

    Raises:
        NotFound: no such repository, or revision.
        SourceError: the hub refuses, or does not answer.
    """
    hub, place = Hub(storage_options, stem), place_of(stem)
    folder = prefix.rpartition("/")[0]
    try:
        for entry in hub.pages(f"{place.tree(folder)}?recursive=true&expand=false", place):
            if entry.get("type") == "file" and str(entry.get("path", "")).startswith(prefix):
                yield entry["path"]
    except NotFound as error:
        if "EntryNotFound" not in error.message:  # a folder that is not there holds nothing
            raise
