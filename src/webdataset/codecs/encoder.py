"""Encodes samples: the table of encoders, and encoders of whole samples.

The last extension of a field's name chooses the encoder; a further ``.gz`` (``.bz2``, ``.xz``, ``.zst``) compresses
its result. Bytes are written unchanged. ``default_handlers`` is the live table that
``webdataset.writer.default_handlers`` shows. An encoder never changes the sample it is given.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from webdataset.codecs.compression import COMPRESSORS, compress_field, is_compressed
from webdataset.codecs.registry import BytesEncoder, LazyCodec, find_plugin
from webdataset.core.errors import EncodingError, MissingExtra, UsageError, WebDatasetError, describe_error
from webdataset.core.tracebacks import warn_user

Sample = dict[str, Any]
_WRITTEN = (bytes, str, bytearray, memoryview)
_MOST_NAMES = 4096
_IMAGES = {
    "jpg jpeg jpe jfif img image": "jpeg",
    "png": "png",
    "pbm": "pbm",
    "pgm": "pgm",
    "ppm pnm": "ppm",
    "tif tiff": "tiff",
    "webp": "webp",
    "avif": "avif",
    "gif": "gif",
    "bmp dib": "bmp",
}


def int_dumps(value: object) -> bytes:
    """Encode a whole number as decimal text.

    Args:
        value: an int, or anything that is one: bool, numpy and torch integers, floats without a fraction.

    Raises:
        TypeError: not a whole number.
    """
    if type(value) is not int:
        value = _to_whole_number(value)
    return b"%d" % value


def _to_whole_number(value: Any) -> int:
    plain = value.item() if getattr(value, "shape", None) == () else value
    if hasattr(plain, "__index__"):
        return int(plain)
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    raise TypeError(f"not a whole number: {value!r:.80}")


def text_dumps(value: object) -> bytes:
    """Refuse what is no text: ``str`` values are written as UTF-8 before an encoder is asked.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"text must be str or bytes, not {type(value).__name__}")


def numpy_dumps(data: object) -> bytes:
    """Encode an array as ``.npy``.

    Args:
        data: an array, number, torch tensor, or nested lists of numbers.

    Raises:
        EncodingError: the array would hold objects.
    """
    return _lazy_encoder("numpy_arrays", "npy_dumps")(data)


def numpy_npz_dumps(data: dict[str, Any]) -> bytes:
    """Encode a dict of arrays as compressed ``.npz``.

    Args:
        data: names to arrays.

    Raises:
        EncodingError: not such a dict, or an array would hold objects.
    """
    return _lazy_encoder("numpy_arrays", "npz_dumps")(data)


def torch_dumps(data: object) -> bytes:
    """Encode with ``torch.save``.

    Args:
        data: anything that torch saves.

    Raises:
        MissingExtra: torch is not installed.
    """
    return _lazy_encoder("torch_files", "torch_dumps")(data)


def imageencoder(image: object, format: str = "PNG") -> bytes:  # noqa: A002  upstream's name
    """Encode an image; see ``webdataset.codecs.images.encode``.

    Args:
        image: a Pillow image, uint8 or float array, or torch tensor.
        format: a Pillow format, or "PGM" or "PBM"; any case.

    Raises:
        EncodingError: not such an image, or the format cannot hold it.
        MissingExtra: Pillow is not installed.
    """
    encoded: bytes = LazyCodec("images.encode", "encode_image").resolve()(image, format)
    return encoded


def _lazy_encoder(module: str, name: str) -> BytesEncoder:
    return LazyCodec(module, name).resolve()


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: BytesEncoder) -> None:
    """Enter one encoder under several extensions.

    Args:
        d: a table of encoders.
        keys: extensions; a list, or a string split at spaces.
        value: takes a value and returns bytes.
    """
    d.update(dict.fromkeys(keys.split() if isinstance(keys, str) else keys, value))


def make_handlers() -> dict[str, Any]:
    """Return a new table of all encoders of this library, extension to function."""
    handlers: dict[str, Any] = {}
    add_handlers(handlers, "cls cls2 class count index inx id", int_dumps)
    add_handlers(handlers, "txt text transcript html htm", text_dumps)
    add_handlers(handlers, "json jsn", LazyCodec("json_codec", "json_dumps", takes_text=True))
    add_handlers(handlers, "pyd pickle pkl", LazyCodec("safe_pickle", "pickle_dumps", takes_text=True))
    add_handlers(handlers, "pth", LazyCodec("torch_files", "torch_dumps", takes_text=True))
    add_handlers(handlers, "npy", LazyCodec("numpy_arrays", "npy_dumps"))
    add_handlers(handlers, "npz", LazyCodec("numpy_arrays", "npz_dumps"))
    add_handlers(handlers, "ten tb tenbin", LazyCodec("tenbin", "tenbin_dumps"))
    add_handlers(handlers, "mp msgpack msg", LazyCodec("msgpack_cbor", "msgpack_dumps", takes_text=True))
    add_handlers(handlers, "cbor", LazyCodec("msgpack_cbor", "cbor_dumps", takes_text=True))
    add_handlers(handlers, "yaml yml", LazyCodec("yaml_codec", "yaml_dumps"))
    add_handlers(handlers, "jsonl ndjson", LazyCodec("json_codec", "json_lines_dumps"))
    add_handlers(handlers, "safetensors", LazyCodec("safetensors_codec", "safetensors_dumps"))
    for extensions, kind in _IMAGES.items():
        add_handlers(handlers, extensions, LazyCodec("images.encode", f"encode_{kind}"))
    for extension in ["wav", "flac", "mp3", "ogg", "opus", "m4a"]:
        add_handlers(handlers, extension, LazyCodec("media.audio_codec", f"encode_{extension}"))
    for extension in ["mp4", "mov", "mkv", "webm", "avi"]:
        add_handlers(handlers, extension, LazyCodec("media.video_encode", f"encode_{extension}"))
    return handlers


default_handlers: dict[str, Any] = make_handlers()


def encode_based_on_extension1(data: object, tname: str, handlers: Mapping[str, Any]) -> str | bytes:
    """Encode one field by the last extension of its name.

    Args:
        data: its value. Bytes are returned as they are (compressed, where the name ends in ``.gz`` and they are not).
        tname: the field's name; metadata (names starting with "_") must be text and is returned as it is.
        handlers: table of encoders.

    Returns:
        Bytes; for metadata the text.

    Raises:
        EncodingError: no encoder takes this value.
        MissingExtra: the format needs a package that is not installed.
    """
    if tname.startswith("_"):
        if not isinstance(data, (str, bytes)):
            raise EncodingError(f"values of metadata must be text, not {type(data).__name__}", field=tname)
        return data
    return _encode_field(data, tname, *_split_extensions(tname), handlers)


def encode_based_on_extension(sample: Sample, handlers: Mapping[str, Any]) -> Sample:
    """Encode all fields of a sample; see :func:`encode_based_on_extension1`.

    Args:
        sample: names to values.
        handlers: table of encoders.

    Returns:
        A new dict with the same names in the same order.

    Raises:
        EncodingError: a field that no encoder takes.
    """
    return {name: encode_based_on_extension1(value, name, handlers) for name, value in sample.items()}


def _split_extensions(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a field's last extension before any ``.gz`` and its like, and these, innermost first."""
    stem = name.lower()
    layers: list[str] = []
    while True:
        head, dot, kind = stem.rpartition(".")
        if not dot or kind not in COMPRESSORS:
            return kind, tuple(reversed(layers))
        layers.append(kind)
        stem = head


def _check_text(value: str, name: str, extension: str) -> None:
    """Refuse a text for an array; warn where it is none that ``decode`` reads as a whole number."""
    if extension in _ARRAYS:
        # what is no text can be read as none
        raise EncodingError(f"text is no content of {extension!r}: pass an array, or its bytes", field=name)
    try:
        int(value)
    except ValueError:
        # without the text: Python shows each message once
        warn_user(
            f"the field {name!r} is decoded as a whole number, and a text that is none was written to it: write class "
            "names to a field .txt, or decode it by a function of your own"
        )


def _encode_field(
    value: object, name: str, extension: str, layers: tuple[str, ...], handlers: Mapping[str, Any]
) -> bytes:
    # a compression that a user's table has an encoder of its own for
    if layers and layers[-1] in handlers:
        extension, layers = layers[-1], ()
    handler = handlers.get(extension)
    if handler is None:
        handler = default_handlers.get(extension) or find_plugin("webdataset.encoders", extension)
    if isinstance(value, _WRITTEN) and not (isinstance(value, str) and getattr(handler, "takes_text", False)):
        try:
            content = _encode_bytes(value, layers)
        except UnicodeEncodeError as error:
            raise EncodingError(f"a text that UTF-8 cannot hold: {describe_error(error)}", field=name) from error
        if isinstance(value, str) and extension in _TEXTLESS and handler is default_handlers.get(extension):
            _check_text(value, name, extension)
        return content
    try:
        written = handler(value)  # type: ignore[misc]  # None is told below, where it costs nothing
    except (EncodingError, MissingExtra) as error:
        error.locate(field=name)
        raise
    except Exception as error:  # encoders are users' code too: whatever they raise is a failure of this field
        raise _encoding_error(value, name, extension, handler, error) from error
    if type(written) is not bytes:
        if not isinstance(written, (bytes, bytearray, memoryview)):
            raise EncodingError(f"the encoder returned {type(written).__name__} instead of bytes", field=name)
        written = bytes(written)
    return _compress_layers(written, layers) if layers else written


# decoded as whole numbers
_NUMBERS = frozenset(["cls", "cls2", "index", "inx", "id"])
_ARRAYS = frozenset(["npy", "npz", "ten", "tb", "tenbin", "safetensors"])
_TEXTLESS = _NUMBERS | _ARRAYS
# by type of a value, an extension that holds it; json for others
_EXTENSIONS = {"int": "cls", "ndarray": "npy", "Tensor": "npy", "Image": "jpg"}


def _encoding_error(value: object, name: str, extension: str, handler: object, error: Exception) -> EncodingError:
    kind = type(value).__name__
    if handler is None:
        reason = (
            f"no encoder for extension {extension!r}: name the field by a format that holds {kind}, such as "
            f"{name}.{_EXTENSIONS.get(kind, 'json')}, pass bytes or str, or add an encoder to "
            "webdataset.writer.default_handlers"
        )
    else:
        reason = f"a value of type {kind} cannot be encoded: {describe_error(error)}"
    return EncodingError(reason, field=name)


def _encode_bytes(value: str | bytes | bytearray | memoryview, layers: tuple[str, ...]) -> bytes:
    if isinstance(value, str):
        return _compress_layers(value.encode("utf-8"), layers)
    written = bytes(value)
    return written if layers and is_compressed(written, layers[-1]) else _compress_layers(written, layers)


def _compress_layers(written: bytes, layers: tuple[str, ...]) -> bytes:
    for kind in layers:
        written = compress_field(written, kind)
    return written


_LOSSY = frozenset(["jpg", "jpeg", "jpe", "jfif", "img", "image", "avif"])


class Encoder:
    """Encodes samples by the extensions of their fields.

    Args:
        handlers: table of encoders, asked before the default ones; later changes of it are heeded.
    """

    def __init__(self, handlers: Mapping[str, Any] = default_handlers) -> None:
        self.handlers = handlers
        self._names: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._warned = False

    def __call__(self, sample: Mapping[str, Any]) -> Sample:
        """Encode one sample: return a new dict with the same names in the same order.

        Args:
            sample: names to values. Metadata (names starting with "_") is left as it is.

        Raises:
            EncodingError: a field that no encoder takes; names key, field and type.
            MissingExtra: a format needs a package that is not installed.
        """
        encoded: Sample = {}
        names = self._names
        handlers = self.handlers
        try:
            for name, value in sample.items():
                if name[:1] == "_":
                    encoded[name] = value
                    continue
                known = names.get(name) or self._split_once(name)
                if type(value) is bytes and not known[1]:
                    encoded[name] = value
                else:
                    encoded[name] = _encode_field(value, name, *known, handlers)
                    if known[0] in _LOSSY and not self._warned and "__url__" in sample and type(value) not in _WRITTEN:
                        self._warn_lossy(name)
        except WebDatasetError as error:
            key = sample.get("__key__")
            error.locate(key=None if key is None else str(key))
            raise
        return encoded

    def _warn_lossy(self, name: str) -> None:
        self._warned = True
        warn_user(
            f"field {name!r} of samples that were read from shards is encoded again, which loses quality each time. To "
            "write images as they were, do not decode them: decode(only=…) names the fields to decode (told once)",
        )

    def _split_once(self, name: str) -> tuple[str, tuple[str, ...]]:
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        known = self._names[name] = _split_extensions(name)
        return known

    def __repr__(self) -> str:
        return "Encoder()" if self.handlers is default_handlers else f"Encoder({self.handlers!r})"


def _keep_sample(sample: Sample) -> Sample:
    return sample


def make_encoder(spec: object) -> Callable[[Any], Any]:
    """Return the encoder that a writer's ``encoder=`` means.

    Args:
        spec: True for the table of encoders, False or None for none, a dict of encoders to ask before that table, or a
            function of samples.

    Raises:
        UsageError: anything else.
    """
    if spec is True:
        return Encoder()
    if spec is None or spec is False:
        return _keep_sample
    if isinstance(spec, Mapping):
        return Encoder(spec)
    if callable(spec):
        return spec
    raise UsageError(f"{spec!r} is no encoder: pass True, False, a dict of functions or a function of samples")
