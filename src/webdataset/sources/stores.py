"""Stores: what serves the objects of a scheme.

A store is a module (or folder) beside this one with

* ``object_of(url, storage_options)``: the :class:`~webdataset.sources.objects.ObjectSource` of a url;
* ``upload_to(url, storage_options, **options)``: a writable stream whose ``close`` publishes the object, whose
  ``abort`` does not, and which is a context manager that chooses between them;
* ``split(url)``: the url up to the object's key, and the key (may be empty); absent where nothing can be listed;
* ``keys(stem, prefix, storage_options)``: the keys below ``stem`` (what ``split`` returned) that begin with a text;
* ``service_of(url, storage_options)``: which service and account this is, without secrets, for the names of copies;
  absent where the url says it all.
* ``BY_FOLDER``: True where ``keys`` walks through folders; it then takes ``depth``, beyond which nothing can match.

Everything else is written once, above stores: waiting and asking again (``resuming``), positioned reads
(``object_ranges``), several connections, the cache, folders and wildcards (``listing``).

Flows in: a url, after rewriting. Flows out: its store. Modules are imported when the first url of theirs is opened.
"""

import importlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webdataset.ground.errors import UsageError
from webdataset.ground.locks import forks_wait

if TYPE_CHECKING:
    from .objects import ObjectSource

Opener = Callable[..., Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


def opener_for(name: str) -> Opener:
    """Return the opener of a store, for ``gopen_schemes``.

    Args:
        name: the store's module in this folder.
    """

    def opener(
        url: str,
        mode: str = "rb",
        bufsize: int = 8192,  # noqa: ARG001  an opener's signature
        *,
        storage_options: Any = None,
        **options: Any,
    ) -> Any:
        refuse_unnameable(url, name)
        store = loaded(name)
        if mode == "rb":
            from .resuming import ResumingStream  # noqa: PLC0415  local files need none of it

            return ResumingStream(store.object_of(url, storage_options), **options)
        return store.upload_to(url, storage_options, **options)

    opener.__name__ = opener.__qualname__ = f"gopen_{name}"
    opener.__doc__ = f"Open a url of the store {name!r}: ``rb`` or ``wb``."
    opener.store = opener.room = name  # type: ignore[attr-defined]  # see preparing
    return opener


def refuse_unnameable(url: str, name: str) -> None:
    """Refuse a url that is no text: names of files may hold any bytes, names of objects may not.

    Args:
        url: the url.
        name: the store's module in this folder.

    Raises:
        UsageError: half a surrogate pair, which stands for a byte of a file's name.
    """
    if name != "ssh" and _SURROGATE.search(url):
        raise UsageError(
            "no object can have this name: it is not Unicode text", url=url.encode("utf-8", "replace").decode()
        )


def loaded(name: str) -> Any:
    """Return a store's module.

    Args:
        name: its name in this folder.
    """
    with forks_wait:  # a module that a thread imports at a fork would stay locked in the child
        return importlib.import_module(f"{__package__}.{name}")


def store_of(target: str) -> Any:
    """Return the store of a url, or None where it is served by something else: a file, a command, a user's opener.

    Args:
        target: a url, after rewriting.
    """
    from .open import opener_of  # noqa: PLC0415  openers name their stores, and are made with the help of this module

    name = getattr(opener_of(target), "store", None)
    return None if name is None else loaded(name)


def object_of(target: str, storage_options: Any = None) -> "ObjectSource | None":
    """Return a url's object, or None where it is no object of a store.

    Args:
        target: a url, after rewriting.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: the url names no object.
        ConfigError: options that make no sense for this store.
        MissingExtra: the package for this scheme is not installed.
    """
    store = store_of(target)
    if store is not None:
        refuse_unnameable(target, store.__name__.rpartition(".")[2])
    found: ObjectSource | None = None if store is None else store.object_of(target, storage_options)
    return found


def service_of(target: str, storage_options: Any = None) -> str:
    """Return which service and account a url is of, for the names of copies; empty where the url says it all.

    Args:
        target: a url, after rewriting.
        storage_options: what a dataset says about its storage.

    Raises:
        ConfigError: no such profile, or options that make no sense.
    """
    tell = getattr(store_of(target), "service_of", None)
    return "" if tell is None else str(tell(target, storage_options))
