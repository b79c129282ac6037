"""The tables of basic decoders: text, numbers and bytes here, other formats by name.

Takes a field's bytes and returns its value. ``decoders`` is the live table that ``webdataset.autodecode.decoders``
shows; entries set there take effect at the next sample. It has the formats that a published version of webdataset
decodes. ``auto_decoders`` has those that none of them decodes: programs that parse such fields themselves get bytes, as
before, unless they ask for ``decode("auto")`` or name the format. A decoder's result is the value, None included.
"""

from typing import Any

from webdataset.ground import settings

from .registry import Codec, Deferred, LiveTable, plugged_in


def text(data: bytes) -> str:
    """Decode UTF-8.

    Args:
        data: encoded text.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    return data.decode("utf-8")


def label(data: bytes) -> int | bytes:
    """Decode a whole number, or return the bytes where they are none: a class may have a name.

    Args:
        data: digits, or anything.
    """
    try:
        return int(data)
    except ValueError:
        return data


def page(data: bytes) -> str | bytes:
    """Decode UTF-8, or return the bytes of a page in another encoding, which its parser finds out.

    Args:
        data: a page of HTML.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def unchanged(data: Any) -> Any:
    """Return the bytes as they are."""
    return data


decoders: LiveTable = LiveTable()
decoders.update(dict.fromkeys(("txt", "text", "transcript"), text))
decoders.update(dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int))
decoders.update(dict.fromkeys(("json", "jsn"), Deferred("json_fields", "json_loads")))
decoders.update(dict.fromkeys(("pyd", "pkl", "pickle"), Deferred("pickles", "unpickle_loads", trusting=True)))
decoders.update(dict.fromkeys(("mp", "msg"), Deferred("records", "msgpack_loads")))
decoders["cbor"] = Deferred("records", "cbor_loads")
decoders["pth"] = Deferred("torch_fields", "torch_loads", trusting=True)
decoders["npy"] = Deferred("arrays", "npy_loads")
decoders["npz"] = Deferred("arrays", "npz_loads")
decoders.update(dict.fromkeys(("ten", "tb"), Deferred("tenbin", "tenbin_loads")))
decoders["bin"] = unchanged

auto_decoders: dict[str, Any] = {
    **dict.fromkeys(("html", "htm"), page),
    **dict.fromkeys(("class", "count"), label),
    **dict.fromkeys(("yaml", "yml"), Deferred("yaml_fields", "yaml_loads")),
    **dict.fromkeys(("jsonl", "ndjson"), Deferred("json_lines", "json_lines_loads")),
    "msgpack": Deferred("records", "msgpack_loads"),
    "tenbin": Deferred("tenbin", "tenbin_loads"),
    "safetensors": Deferred("safetensors_fields", "safetensors_loads"),
}


def stays_bytes(key: str) -> bool:
    """Tell whether ``WDS_KEEP_BYTES`` names the last extension of a key: then only users' own handlers decode it.

    Args:
        key: the field's key (".a.json").
    """
    return key.rpartition(".")[2].lower() in settings.KEEP_BYTES.get()


def decoder_for(extension: str, trust: str | None = None) -> Codec | None:
    """Return the decoder of an extension: from the table, else from an installed package, else None.

    Args:
        extension: last component of the field's name; case matters.
        trust: the trust level that a decoder was given, or None for the one in force.
    """
    entry = decoders.get(extension)
    if entry is None and extension:
        return plugged_in("webdataset.decoders", extension)
    return entry.resolved(trust) if isinstance(entry, Deferred) else entry


def auto_decoder_for(extension: str) -> Codec | None:
    """Return the decoder of a format that is decoded on request only, or None.

    Args:
        extension: last component of the field's name; case matters.
    """
    entry = auto_decoders.get(extension)
    return entry.resolved() if isinstance(entry, Deferred) else entry
