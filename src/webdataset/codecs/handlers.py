"""Handlers that decode fields, the tables of basic decoders, and the switch ``pytorch_weights_only``.

Any ``f(key, data)`` is a handler; it returns the value, None ("not mine") or a :class:`Continue`. Handlers that can
tell from the key alone whether a field is theirs also have ``claim(key, trust)``, so that a decoder asks once per
field name. ``decoders`` is the live table that ``webdataset.autodecode.decoders`` shows: entries take effect at the
next sample. ``auto_decoders`` has the formats that no published version decodes: programs get bytes, as before, unless
they ask for ``decode("auto")`` or name the format. A decoder's result is the value, None included.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeGuard

from webdataset.codecs.compression import decompress
from webdataset.codecs.registry import BytesDecoder, LazyCodec, LiveTable, find_plugin
from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.core.lazy_modules import LazyModule


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    return data.decode("utf-8")


def decode_label(data: bytes) -> int | bytes:
    """Decode a whole number, or return the bytes where they are none: a class may have a name."""
    try:
        return int(data)
    except ValueError:
        return data


def decode_page(data: bytes) -> str | bytes:
    """Decode UTF-8, or return the bytes of a page in another encoding, which its parser finds out."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def keep_bytes(data: bytes) -> bytes:
    """Return the bytes as they are."""
    return data


decoders: LiveTable = LiveTable()
decoders.update(dict.fromkeys(("txt", "text", "transcript"), decode_utf8))
decoders.update(dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int))
decoders.update(dict.fromkeys(("json", "jsn"), LazyCodec("json_codec", "json_loads", maker="make_json_loads")))
decoders.update(dict.fromkeys(("pyd", "pkl", "pickle"), LazyCodec("safe_pickle", "unpickle_loads", trusting=True)))
decoders.update(dict.fromkeys(("mp", "msg"), LazyCodec("msgpack_cbor", "msgpack_loads")))
decoders["cbor"] = LazyCodec("msgpack_cbor", "cbor_loads")
decoders["pth"] = LazyCodec("torch_files", "torch_loads", trusting=True)
decoders["npy"] = LazyCodec("numpy_arrays", "npy_loads")
decoders["npz"] = LazyCodec("numpy_arrays", "npz_loads")
decoders.update(dict.fromkeys(("ten", "tb"), LazyCodec("tenbin", "tenbin_loads")))
decoders["bin"] = keep_bytes

auto_decoders: dict[str, BytesDecoder] = {
    **dict.fromkeys(("html", "htm"), decode_page),
    **dict.fromkeys(("class", "count"), decode_label),
    **dict.fromkeys(("yaml", "yml"), LazyCodec("yaml_codec", "yaml_loads")),
    **dict.fromkeys(("jsonl", "ndjson"), LazyCodec("json_codec", "json_lines_loads")),
    "msgpack": LazyCodec("msgpack_cbor", "msgpack_loads"),
    "tenbin": LazyCodec("tenbin", "tenbin_loads"),
    "safetensors": LazyCodec("safetensors_codec", "safetensors_loads"),
}


def stays_bytes(key: str) -> bool:
    """Tell whether ``WDS_KEEP_BYTES`` names the last extension of a key: then only users' own handlers decode it.

    Args:
        key: the field's key (".a.json").
    """
    return key.rpartition(".")[2].lower() in settings.KEEP_BYTES.get()


def decoder_for(extension: str, trust: str | None = None) -> BytesDecoder | None:
    """Return the decoder of an extension: from the table, else from an installed package, else None.

    Args:
        extension: last component of the field's name; case matters.
        trust: the trust level that a decoder was given, or None for the one in force.
    """
    entry = decoders.get(extension)
    if entry is None and extension:
        return find_plugin("webdataset.decoders", extension)
    return entry.resolve(trust) if isinstance(entry, LazyCodec) else entry


def auto_decoder_for(extension: str) -> BytesDecoder | None:
    """Return the decoder of a format that is decoded on request only, or None.

    Args:
        extension: last component of the field's name; case matters.
    """
    entry = auto_decoders.get(extension)
    return entry.resolve() if isinstance(entry, LazyCodec) else entry


Handler = Callable[[str, Any], Any]


class Continue:
    """A handler's answer: "continue with the handlers after me, under this key and with this data".

    Args:
        key: the key to continue with, dot included (".json").
        data: what to decode under it.

    Attributes:
        again: continue with all handlers instead.
    """

    again = False

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data


class RestartChain(Continue):
    """A handler's answer: "ask all handlers, under this key and with this data"; the key must get shorter."""

    again = True


class KeyHandler(Protocol):
    """A handler that decides by the key alone.

    Attributes:
        final: what its function returns is the value, even None; else None means "not mine" as for any handler.
    """

    final: bool

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:
        """Return the function for fields under ``key``, or None where they are not this handler's."""

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode one field, or return None where it is not this handler's."""
        decode = self.claim(key)
        return None if decode is None else decode(data)


def is_key_handler(handler: object) -> TypeGuard[KeyHandler]:
    """Tell whether a handler decides by the key alone (``isinstance`` with a protocol takes fifty times as long)."""
    return hasattr(handler, "claim") and hasattr(handler, "final")


class BasicHandlers(KeyHandler):
    """The last handler: decodes by the last extension through the table of decoders."""

    final = True

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:
        """Return the table's decoder for the key's last extension (case matters)."""
        return None if stays_bytes(key) else decoder_for(key.rpartition(".")[2], trust)


class AutoHandlers(KeyHandler):
    """The handler of formats that are decoded on request: ``decode("auto")``, or their names."""

    final = True

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:  # noqa: ARG002  none of them runs code
        """Return the decoder of the key's last extension, where it is one of these (case matters)."""
        extension = key.rpartition(".")[2]
        return None if extension not in self.kinds or stays_bytes(key) else auto_decoder_for(extension)

    def __repr__(self) -> str:
        return f"AutoHandlers({sorted(self.kinds)!r})"


class ExtensionHandler:
    """Decodes fields whose last name components equal one of some extensions.

    Args:
        extensions: extensions of one or more components, separated by spaces ("seg.jpg png"), any case.
        f: takes the bytes and returns the value, or None for "not mine".
    """

    final = False

    def __init__(self, extensions: str, f: BytesDecoder) -> None:
        if not isinstance(extensions, str) or not callable(f):
            raise UsageError(
                f"handle_extension({extensions!r:.60}, {f!r:.60}): it takes extensions and a function of bytes, as in "
                "handle_extension('jpg png', function)"
            )
        self.extensions = extensions.lower().split()
        self.f = f

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:  # noqa: ARG002  the same at every level
        """Return ``f`` where the key's last components match."""
        return self.f if _ends_with(key, self.extensions) else None

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode one field, or return None where its key does not match."""
        return call_extension_handler(key, data, self.f, self.extensions)


def handle_extension(extensions: str, f: BytesDecoder) -> ExtensionHandler:
    """Return a handler that decodes fields with the given extensions.

    Args:
        extensions: separated by spaces, compared by components and without regard to case: "seg.jpg" matches
            ".a.seg.JPG" but not ".xseg.jpg".
        f: takes the bytes and returns the value.
    """
    return ExtensionHandler(extensions, f)


def call_extension_handler(key: str, data: bytes, f: BytesDecoder, extensions: Iterable[str]) -> Any:
    """Return ``f(data)`` where the key's last components equal one of ``extensions``, else None.

    Args:
        key: the field's key (".a.seg.jpg").
        data: its bytes.
        f: the decoder.
        extensions: lower-case extensions of one or more components.
    """
    return f(data) if _ends_with(key, extensions) else None


def _ends_with(key: str, extensions: Iterable[str]) -> bool:
    parts = key.lower().split(".")
    return any(parts[-len(wanted) :] == wanted for wanted in (extension.split(".") for extension in extensions))


# Formats of which a few bytes become a value of many: compressed, they may grow less.
_GROWING = frozenset(
    ["json", "jsn", "jsonl", "ndjson", "yaml", "yml", "mp", "msg", "msgpack", "cbor", "pyd", "pkl", "pickle"]
)
_GROWING_BYTES = 8 << 20
_GROWING_TIMES = 50


class CompressionFilter:
    """Decompresses fields named ``.gz`` (or another suffix) and continues under the name before it, repeatedly.

    Args:
        *suffixes: the suffixes to act on, with their dots: ".gz", ".bz2", ".xz", ".zst".
        limit_bytes: a field may not grow larger than this, in bytes; None means ``WDS_MAX_FIELD_BYTES``, and less for
            formats whose values are much larger than their bytes (JSON, YAML, msgpack, CBOR, pickles).
        again: continue with all handlers, not with those after this one.
    """

    final = False

    def __init__(self, *suffixes: str, limit_bytes: int | None = None, again: bool = False) -> None:
        self.suffixes = suffixes
        self.limit_bytes = limit_bytes
        self.answer = RestartChain if again else Continue

    def claim(self, key: str, trust: str | None = None) -> BytesDecoder | None:  # noqa: ARG002  the same at every level
        """Return the decompressor where the key ends in one of the suffixes; the limit is that of this moment."""
        kinds: list[str] = []
        while key.endswith(self.suffixes) and not stays_bytes(key):
            key, _, kind = key.rpartition(".")
            kinds.append(kind)
        if not kinds:
            return None
        limit = settings.MAX_FIELD_BYTES.get() if self.limit_bytes is None else self.limit_bytes
        growing = self.limit_bytes is None and key.rpartition(".")[2] in _GROWING
        return partial(self._unwrap, key, tuple(kinds), limit, growing)

    def _unwrap(self, key: str, kinds: tuple[str, ...], limit: int, growing: bool, data: bytes) -> Continue:  # noqa: FBT001  bound above
        if growing:
            limit = min(limit, max(_GROWING_BYTES, len(data) * _GROWING_TIMES))
        for kind in kinds:
            data = decompress(data, kind, limit)
        return self.answer(key, data)

    def __call__(self, key: str, data: bytes) -> Continue | None:
        """Decompress until the key ends in no suffix any more, or return None where it does not end in one.

        Raises:
            BadCompression: the data is cut short, damaged or too large.
            MissingExtra: zst without a zstd library.
        """
        unwrap = self.claim(key)
        return None if unwrap is None else unwrap(data)

    def __repr__(self) -> str:
        return f"CompressionFilter{self.suffixes!r}"


gzfilter = CompressionFilter(".gz")
basichandlers = BasicHandlers()
default_pre_handlers: list[Handler] = [gzfilter]
default_post_handlers: list[Handler] = [basichandlers]

AUTO_COMPRESSION = ("bz2", "xz", "zst")
AUTO_KINDS = (*auto_decoders, *AUTO_COMPRESSION)


def auto_handlers(kinds: Iterable[str]) -> list[Handler]:
    """Return the handlers that decode formats which no published version of webdataset decodes.

    They are asked after all others, since programs have used these names for formats of their own.
    """
    formats = [kind for kind in kinds if kind in auto_decoders]
    suffixes = [f".{kind}" for kind in kinds if kind in AUTO_COMPRESSION]
    handlers: list[Handler] = [AutoHandlers(formats)] if formats else []
    return [*handlers, CompressionFilter(*suffixes, again=True)] if suffixes else handlers


_LATER = {
    "cbor_loads": "msgpack_cbor",
    "json_loads": "json_codec",
    "msgpack_loads": "msgpack_cbor",
    "npy_loads": "numpy_arrays",
    "npz_loads": "numpy_arrays",
    "tenbin_loads": "tenbin",
}


class WeightsOnlySwitch:
    """What the program has assigned.

    Attributes:
        weights_only: None leaves it to ``WDS_PYTORCH_WEIGHTS_ONLY``.
    """

    weights_only: bool | None = None


weights_only_switch = WeightsOnlySwitch()


def weights_only() -> bool:
    """Return False where the program or the environment has switched ``pytorch_weights_only`` off."""
    return (
        settings.PYTORCH_WEIGHTS_ONLY.get()
        if weights_only_switch.weights_only is None
        else weights_only_switch.weights_only
    )


class SwitchModule(LazyModule):
    """The kind of module that ``webdataset.autodecode`` is: a switch, and decoders that are loaded when asked for."""

    @property
    def pytorch_weights_only(self) -> bool:
        """Whether ``.pth`` fields are loaded with ``weights_only=True``; may be assigned."""
        return weights_only()

    @pytorch_weights_only.setter
    def pytorch_weights_only(self, only: bool) -> None:
        weights_only_switch.weights_only = None if bool(only) == settings.PYTORCH_WEIGHTS_ONLY.get() else bool(only)

    def __getattr__(self, name: str) -> Any:
        """Load a decoder that needs numpy or msgspec.

        Raises:
            AttributeError: there is no such name.
        """
        if name == "utils":
            return importlib.import_module("webdataset.utils")
        if name in _LATER:
            return getattr(importlib.import_module(f"webdataset.codecs.{_LATER[name]}"), name)
        raise AttributeError(f"module 'webdataset.autodecode' has no attribute {name!r}")
