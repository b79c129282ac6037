"""What opens urls, loaded before it is needed: in the process that will start workers.

The rooms of schemes are loaded when the first url of theirs is opened. A worker that is forked has what its parent has
loaded; what it lacks it loads by itself, each worker once more, and while its threads open shards. So whoever holds a
list of urls says so here.

Flows in: urls. Flows out: nothing, and nothing is opened. What cannot be loaded is not missed here: whoever opens such
a url is told what it lacks.
"""

import contextlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

from webdataset.ground.errors import WebDatasetError

from . import stores
from .open import opener_of
from .rewrite import rewritten

_LOOKED_AT = 100  # a list has few schemes, and they show early


def prepare(urls: Iterable[Any]) -> None:
    """Load what opens some urls.

    Args:
        urls: as they stand in a list of shards; one of each scheme is looked at, among the first hundred.
    """
    seen = set()
    for url in islice(urls, _LOOKED_AT):
        if isinstance(url, str):
            before, colon, _ = url.partition(":")
            scheme = before if colon else ""
            if scheme not in seen:
                seen.add(scheme)
                with contextlib.suppress(WebDatasetError, ImportError):
                    _load(opener_of(rewritten(url)))


def _load(opener: Any) -> None:
    room = getattr(opener, "room", None)
    if room is not None:
        stores.loaded(room)
        if hasattr(opener, "store"):
            stores.loaded("resuming")
