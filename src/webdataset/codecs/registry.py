"""Tables of codecs by extension, and codecs that are loaded at their first use.

Tables are ordinary dicts that users may change at any time; installed packages add to them by entry points
(``webdataset.decoders``, ``webdataset.encoders``), which are read only when an extension is in no table. Nothing here
decodes.
"""

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class BytesDecoder(Protocol):
    """Decodes one field: an entry of the table of decoders.

    It depends on the bytes alone, changes nothing outside, and may be called by several threads at once. Whatever it
    raises becomes a ``DecodingError`` that names shard, sample and field; it never returns less than the bytes hold.
    """

    def __call__(self, data: bytes, /) -> Any:
        """Return the value; None is a value, too."""


class BytesEncoder(Protocol):
    """Encodes one field: an entry of the table of encoders.

    It writes equal values as equal bytes, never changes the value, and raises what it cannot write. Text and bytes
    do not come here, but for encoders whose attribute ``takes_text`` is true: they get ``str`` values.
    """

    def __call__(self, value: Any, /) -> bytes:
        """Return the bytes of the field."""


Codec = BytesDecoder | BytesEncoder


def _count_changes(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    @functools.wraps(method)
    def change(self: "LiveTable", *args: object, **kw: object) -> object:
        LiveTable.changes += 1
        return method(self, *args, **kw)

    return change


class LiveTable(dict[str, Any]):
    """A dict that counts its changes, so that plans made from it can be dropped when it changes.

    Attributes:
        changes: number of changes of all such tables so far. It is asked for each sample, and stands in the class:
            where Python has no global lock, threads wait for the reference count of an object that they share.
    """

    changes: ClassVar[int] = 0

    __setitem__ = _count_changes("__setitem__")
    __delitem__ = _count_changes("__delitem__")
    __ior__ = _count_changes("__ior__")
    update = _count_changes("update")
    setdefault = _count_changes("setdefault")
    pop = _count_changes("pop")
    popitem = _count_changes("popitem")
    clear = _count_changes("clear")


class LazyCodec:
    """A codec named by module and function, imported at its first use.

    Args:
        module: module of this layer ("numpy_arrays", "images.encode").
        name: function in it.
        trusting: the function takes ``trust=`` as well.
        takes_text: an encoder that wants ``str`` values too (others get them as UTF-8 written unchanged).
        maker: function in the module that makes a codec like it, with objects of its own, for one user.
    """

    def __init__(
        self, module: str, name: str, *, trusting: bool = False, takes_text: bool = False, maker: str = ""
    ) -> None:
        self.module = module
        self.name = name
        self.trusting = trusting
        self.takes_text = takes_text
        self.maker = maker
        self._function: Callable[..., Any] | None = None

    def __call__(self, value: Any) -> Any:
        """Decode or encode one field."""
        return (self._function or self.resolve())(value)

    def resolve(self, trust: str | None = None) -> Callable[..., Any]:
        """Return the function itself, or one made for the caller, bound to a trust level where it takes one.

        Args:
            trust: the level that a decoder was given, or None.
        """
        if self._function is None:
            self._function = getattr(importlib.import_module(f"{__package__}.{self.module}"), self.name)
        found: Callable[..., Any] = self._function
        if self.maker:
            found = getattr(importlib.import_module(f"{__package__}.{self.module}"), self.maker)()
        return functools.partial(found, trust=trust) if self.trusting and trust is not None else found

    def __reduce__(self) -> tuple[object, ...]:
        return _make_lazy_codec, (self.module, self.name, self.trusting, self.takes_text, self.maker)

    def __repr__(self) -> str:
        return f"LazyCodec({self.module}.{self.name})"


def _make_lazy_codec(module: str, name: str, trusting: bool, takes_text: bool, maker: str = "") -> LazyCodec:  # noqa: FBT001  for pickle only
    return LazyCodec(module, name, trusting=trusting, takes_text=takes_text, maker=maker)


@functools.cache
def _find_entry_points(group: str) -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415  20 ms, for an extension that is in no table

    return {point.name: point for point in entry_points(group=group)}


@functools.cache
def find_plugin(group: str, extension: str) -> Callable[..., Any] | None:
    """Return the codec that an installed package offers for an extension, or None.

    Raises:
        ImportError: the package offers it but cannot be imported.
    """
    point = _find_entry_points(group).get(extension)
    return None if point is None else point.load()
