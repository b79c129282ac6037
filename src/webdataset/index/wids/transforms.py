"""Decodes samples as wids has them: names with a dot at their start, bytes in ``BytesIO`` objects.

Takes ``{".jpg": BytesIO, "__key__": …}`` and gives a new dict with values. Which extensions are decoded is a closed
list, that of wids; all others stay as they are, for the transformations that follow.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from webdataset.core.errors import CodecError, DecodingError, MissingExtra, UsageError, describe_error

Sample = dict[str, Any]
Transformation = Callable[[Any], Any]

IMAGES = frozenset({"png", "jpg", "ppm", "pgm", "pbm", "pnm"})
BASIC = {
    "txt": "txt",
    "text": "text",
    "cls": "cls",
    "cls2": "cls2",
    "json": "json",
    "npy": "npy",
    "mp": "mp",
    "pt": "pth",
    "pth": "pth",
    "pickle": "pickle",
    "pkl": "pkl",
    "safetensors": "safetensors",
}
_FORMATS = ("PIL", "numpy")


def interpret_transformations(transformations: object, trust: str | None = None) -> list[Transformation]:
    """Return the functions that ``transformations`` stands for.

    Args:
        transformations: ``"PIL"`` or ``"numpy"`` for the decoders of wids, an image spec of ``.decode`` such as
            ``"rgb"`` for all decoders of webdataset, a function of the sample, a list of these, or None for none.
        trust: trust level of decoding; None is the process's.

    Raises:
        UsageError: none of these.
    """
    if transformations is None:
        return []
    if isinstance(transformations, str):
        return [_find_transformation(transformations, trust)]
    if callable(transformations):
        return [transformations]
    if isinstance(transformations, Sequence):
        return [each for part in transformations for each in interpret_transformations(part, trust)]
    raise UsageError(
        f"transformations={transformations!r}: pass 'PIL', 'numpy', an image spec, a function, a list of them or None"
    )


def _find_transformation(name: str, trust: str | None) -> Transformation:
    if name.lower() in ("pil", "numpy"):
        return partial(default_decoder, format=name, trust=trust)
    from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

    return partial(_apply_decoder, Decoder([name], trust=trust))


def _apply_decoder(decoder: Any, sample: Sample) -> Sample:
    plain = {key.removeprefix("."): _read_bytes(value) for key, value in sample.items()}
    return dict(zip(sample, decoder.decode(plain).values(), strict=True))


def default_decoder(
    sample: Sample,
    format: bool | str | None = True,  # noqa: A002, FBT001, FBT002  upstream's signature
    gz_update_key: bool = False,  # noqa: FBT001, FBT002
    *,
    trust: str | None = None,
) -> Sample:
    """Decode a sample: fields that end in ``.gz`` are decompressed, images and the basic types decoded.

    Args:
        sample: fields with a dot at the start of their names, as bytes or ``BytesIO``.
        format: ``"PIL"`` or ``"numpy"``: what images become; True is PIL, False and None leave them.
        gz_update_key: take ``.gz`` off the names of decompressed fields.
        trust: trust level; None is the process's.

    Raises:
        DecodingError: a field does not decode.
        UnsafeContent: a pickle would run code that is not allowed.
        UsageError: an unknown format.
    """
    chosen = _parse_format(format)
    result = {}
    for key, value in sample.items():
        if not key.startswith("."):
            result[key] = value
            continue
        name, value = _decompress_field(key, value, sample)  # noqa: PLW2901
        decode = _find_decoder(name, chosen, trust)
        shown = name if gz_update_key else key
        result[shown] = value if decode is None else _decode_field(decode, value, key, sample)
    return result


def decode_all_gz(
    sample: Sample,
    format: bool | str | None = True,  # noqa: A002, ARG001, FBT001, FBT002  upstream's signature
    update_key: bool = True,  # noqa: FBT001, FBT002
) -> Sample:
    """Decompress the fields whose names end in ``.gz``.

    Args:
        sample: as for :func:`default_decoder`.
        format: not used.
        update_key: take ``.gz`` off their names.

    Raises:
        DecodingError: a field does not decompress.
    """
    result = {}
    for key, value in sample.items():
        name, content = _decompress_field(key, value, sample) if key.startswith(".") else (key, value)
        result[name if update_key else key] = content
    return result


def decode_basic(
    sample: Sample,
    format: bool | str | None = True,  # noqa: A002, ARG001, FBT001, FBT002  upstream's signature
) -> Sample:
    """Decode text, numbers, JSON, arrays, msgpack, pickles and torch fields.

    Args:
        sample: as for :func:`default_decoder`.
        format: not used.

    Raises:
        DecodingError: a field does not decode.
    """
    return _decode_only(sample, None)


def decode_images_to_pil(
    sample: Sample,
    format: bool | str | None = True,  # noqa: A002, ARG001, FBT001, FBT002  upstream's signature
) -> Sample:
    """Decode images to Pillow images, in the mode of the file.

    Args:
        sample: as for :func:`default_decoder`.
        format: not used.

    Raises:
        DecodingError: an image does not decode.
    """
    return _decode_only(sample, "PIL", basic=False)


def decode_images_to_numpy(
    sample: Sample,
    format: bool | str | None = True,  # noqa: A002, ARG001, FBT001, FBT002  upstream's signature
) -> Sample:
    """Decode images to arrays, in the mode of the file: uint8[H, W] or uint8[H, W, C] for most.

    Args:
        sample: as for :func:`default_decoder`.
        format: not used.

    Raises:
        DecodingError: an image does not decode.
    """
    return _decode_only(sample, "numpy", basic=False)


def check_keys(sample: Sample) -> None:
    """Check that each name starts with a dot, or is metadata.

    Args:
        sample: a sample.

    Raises:
        UsageError: one does neither.
    """
    for key in sample:
        if not key.startswith((".", "__")):
            raise UsageError(f"field {key!r} must start with a dot", field=key)


def _decode_only(sample: Sample, images: str | None, *, basic: bool = True) -> Sample:
    result = dict(sample)
    for key, value in sample.items():
        decode = _find_decoder(key, images, None, basic=basic) if key.startswith(".") else None
        if decode is not None:
            result[key] = _decode_field(decode, value, key, sample)
    return result


def _parse_format(asked: bool | str | None) -> str | None:  # noqa: FBT001
    if asked is True:
        return "PIL"
    if asked is None or asked is False:
        return None
    for known in _FORMATS:
        if asked.lower() == known.lower():
            return known
    raise UsageError(f"format={asked!r} is not one of {', '.join(_FORMATS)}")


def _find_decoder(
    key: str, images: str | None, trust: str | None, *, basic: bool = True
) -> Callable[[Any], Any] | None:
    extension = key.rpartition(".")[2].lower()
    if extension in IMAGES:
        return None if images is None else partial(_decode_image, images)
    if not basic or extension not in BASIC:
        return None
    from webdataset.codecs.handlers import auto_decoder_for, decoder_for  # noqa: PLC0415  loaded when they are used

    return auto_decoder_for(BASIC[extension]) or decoder_for(BASIC[extension], trust)


def _decode_image(library: str, data: bytes) -> Any:
    from webdataset.codecs.images import decode  # noqa: PLC0415  loads numpy and Pillow

    image = decode.decode_picture(data, None)
    if library == "PIL":
        return image
    import numpy  # noqa: ICN001, PLC0415

    return numpy.array(image)


def _decompress_field(key: str, value: object, sample: Sample) -> tuple[str, object]:
    if not key.lower().endswith(".gz"):
        return key, value
    from webdataset.codecs.compression import decompress  # noqa: PLC0415  codecs are loaded when they are used

    plain = _decode_field(lambda data: decompress(data, "gz"), value, key, sample)
    return key[: -len(".gz")], io.BytesIO(plain)


def _read_bytes(value: object) -> object:
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def _decode_field(decode: Callable[[Any], Any], value: Any, key: str, sample: Sample) -> Any:
    places = {"url": sample.get("__shard__"), "key": sample.get("__key__"), "field": key}
    data = _read_bytes(value)
    if not isinstance(data, bytes):
        return value
    try:
        return decode(data)
    except (CodecError, MissingExtra) as error:
        error.locate(**places)
        raise
    except Exception as error:  # decoders are users' code too: whatever they raise is a failure of this field
        raise DecodingError(message=f"a field could not be decoded: {describe_error(error)}", **places) from error
