"""The document value, the rules by which documents are read, and the names of images.

A :class:`Document` is a sample with its texts and images in order, which a decoder can decode. It does not know how
it was stored. :class:`DocumentRules` holds layout, policies and limits as one value.

Names of images differ between a document's JSON and the members of the shard; their stems are what both have in
common. :class:`SiblingKeys` is a rule for ``keys=`` that makes ``D-0.jpg`` after ``D.json`` the field ``0.jpg`` of
``D``. It needs the JSON first; the stage ``sibling_fields`` does the same for any order. Nothing here looks at a
payload.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from webdataset.core.errors import CodecError, DecodingError, MissingExtra, UsageError, describe_error
from webdataset.samples.grouping import base_plus_ext

_IMAGES = "apng avif bmp gif heic heif image img j2k jfif jp2 jpe jpeg jpg jxl pbm pgm png pnm ppm tif tiff webp"
IMAGES = frozenset(_IMAGES.split())
TIFF = frozenset(("tif", "tiff"))


@lru_cache(4096)
def extension(name: str) -> str:
    """Return what stands after the last dot, in lower case; the whole name where there is no dot."""
    return name.rpartition(".")[2].lower()


@lru_cache(4096)
def is_image(field: str) -> bool:
    """Tell whether a field holds an image, going by its last extension."""
    return extension(field) in IMAGES


def stem(name: str) -> str:
    """Return an image's name without folders and an image's extension: ``b1946ac9`` for ``images/b1946ac9.jpg``."""
    base = name.rpartition("/")[2]
    front, dot, last = base.rpartition(".")
    return front if dot and front and last.lower() in IMAGES else base


def field_stem(field: str) -> str:
    """Return a field's name without its last extension: ``0`` for ``0.jpg``, nothing for ``jpg``."""
    return field.rpartition(".")[0]


def member_stem(key: str, field: str) -> str:
    """Return the name of a sample's member without its last extension."""
    front = field_stem(field)
    return f"{key}.{front}" if front else key


def parent_key(key: str, separator: str) -> str | None:
    """Return the shortest key that a sample with this key may be a sibling of, or None."""
    cut = key.rfind(separator, 1) if "/" in separator else key.find(separator, key.rfind("/") + 2)
    return key[:cut] if cut > 0 else None


def parent_keys(key: str, separator: str) -> Iterator[str]:
    """Yield all keys that a sample with this key may be a sibling of, the longest first.

    For ``shard/a-b-0``: ``shard/a-b``, then ``shard/a``.
    """
    least = 1 if "/" in separator else key.rfind("/") + 2
    cut = key.rfind(separator, least)
    while cut > 0:
        yield key[:cut]
        cut = key.rfind(separator, least, cut + len(separator) - 1)


def is_image_url(name: str) -> bool:
    """Tell whether a name is a url: it says where an image came from, not what a member is called."""
    return "://" in name


DOCUMENT_FIELDS = (
    "parts",
    "images",
    "text_list",
    "matched_text_index",
    "matched_sim",
    "image_info",
    "similarity_matrix",
    "json",
)


class FieldDecoder(Protocol):
    """The part of a decoder that documents need."""

    only: set[str] | None

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode a sample."""

    def decode1(self, key: str, data: bytes) -> Any:
        """Decode the bytes of one field."""


class Document(dict[str, Any]):
    """A document: a sample with these fields, which ``decode`` knows how to decode.

    ====================== ==============================================================================
    ``__key__``, ``__…__`` those of the sample that holds the JSON
    ``parts``              the document in order: ``{"type": "text", "text"}`` and
                           ``{"type": "image", "image", "index", "name", "field"}``
    ``images``             the images in order; ``parts[…]["index"]`` counts in it
    ``text_list``          the texts in order
    ``matched_text_index`` for each image the index of the text it stands at; ascending
    ``matched_sim``        for each image its similarity, or None; absent where no image has one
    ``image_info``         for each image what else the JSON says about it
    ``similarity_matrix``  a row for each image; absent where the JSON has none
    ``json``               what else the JSON holds
    ====================== ==============================================================================

    Further fields of the sample (``D.txt`` …) stay as they are.
    """

    def decode_with(self, decoder: FieldDecoder) -> "Document":
        """Return a copy whose images, and further fields, are decoded by a :class:`~webdataset.codecs.decoder.Decoder`.

        Raises:
            CodecError: an image or a field that does not decode, with url, key and the image's name.
        """
        fields = decoder.decode({name: value for name, value in self.items() if name not in DOCUMENT_FIELDS})
        decoded = Document({name: fields.get(name, value) for name, value in self.items()})
        decoded.decode_images(decoder)
        return decoded

    def decode_images(self, decoder: FieldDecoder, chosen: Container[int] | None = None) -> None:
        """Decode images that are bytes, in place.

        Args:
            decoder: a decoder; its ``only`` may name ``images``, or the fields they came from (``jpg``).
            chosen: indices of the images to decode; None decodes all.

        Raises:
            CodecError: an image that does not decode, with url, key and its name.
        """
        images = list(self["images"])
        parts = []
        for part in self["parts"]:
            whole = part
            if (
                part["type"] == "image"
                and isinstance(part["image"], bytes)
                and _wants_decoding(part, decoder.only, chosen)
            ):
                whole = {**part, "image": self._image(decoder, part)}
                images[part["index"]] = whole["image"]
            parts.append(whole)
        self["parts"], self["images"] = parts, images

    def _image(self, decoder: FieldDecoder, part: dict[str, Any]) -> Any:
        try:
            return decoder.decode1(part["field"], part["image"])
        except (CodecError, MissingExtra) as error:
            raise error.locate(url=self.get("__url__"), key=self.get("__key__"), field=part["name"])  # noqa: B904
        except Exception as error:  # handlers are users' code: whatever they raise is a failure of this image
            raise DecodingError(
                self.get("__url__"), self.get("__key__"), part["name"], self,
                message=f"image {part['index']} could not be decoded: {describe_error(error)}",
            ) from error  # fmt: skip


def _wants_decoding(part: dict[str, Any], only: set[str] | None, chosen: Container[int] | None) -> bool:
    if chosen is not None and part["index"] not in chosen:
        return False
    return only is None or "images" in only or part["field"] in only


def image_field(name: str | None, stored: str | None) -> str:
    """Return the field under which an image is decoded: that of its member, else of its name, else ``jpg``."""
    if stored is not None:
        return extension(stored)
    return extension(name) if name is not None and is_image(name) else "jpg"


class SiblingKeys:
    """A rule for ``keys=``: remembers the last ``.json`` of a shard.

    Args:
        separator: stands between a document's key and the names of its siblings.
    """

    def __init__(self, separator: str = "-") -> None:
        self.separator = separator
        self._prefix: str | None = None

    def restart(self) -> None:
        """Begin a shard: forget the last document."""
        self._prefix = None

    def __call__(self, path: str) -> tuple[str, str] | tuple[None, None]:
        """Split a member's name into key and extension; (None, None) where it belongs to no sample."""
        key, extension = base_plus_ext(path)
        if key is None or extension is None:
            return None, None
        prefix = self._prefix
        if extension.lower() == "json":
            self._prefix = key + self.separator
        elif prefix is not None and len(key) > len(prefix) and key.startswith(prefix):
            return prefix[: -len(self.separator)], f"{key[len(prefix) :]}.{extension}"
        return key, extension

    def __repr__(self) -> str:
        return "sibling_keys" if self.separator == "-" else f"SiblingKeys({self.separator!r})"


sibling_keys = SiblingKeys()


LAYOUTS = ("auto", "siblings", "inline", "fields", "pages")
_CHOICES = {
    "layout": LAYOUTS,
    "match": ("name", "number"),
    "place": ("before", "after"),
    "ties": ("json", "similarity"),
    "keep": ("first", "similar"),
    "missing_image": ("error", "drop_image", "drop_document", "placeholder"),
}


@dataclass(frozen=True)
class DocumentRules:
    """How documents are read.

    Args:
        layout: ``siblings`` (``D.json``, ``D-<name>.jpg``), ``inline`` (base64 in the JSON), ``fields`` (``D.json``,
            ``D.0.jpg``), ``pages`` (``D.json`` and a ``D.tiff`` of many pages), or ``auto``: each image wherever it is.
        match: siblings and fields are found by the images' ``name`` (by number where there is none, or it is a url), or
            always by ``number``: ``D-0.jpg``, ``D.0.jpg``.
        separator: stands between a document's key and the names of its siblings.
        place: an image that is matched to a text stands ``before`` or ``after`` it.
        ties: images at one text stand in the order of the JSON (``json``), or the most similar first (``similarity``).
        missing_image: what to do about an image that is not there: ``error``, ``drop_image``, ``drop_document``, or
            put the ``placeholder`` there.
        placeholder: stands for missing images: encoded bytes, or any value.
        min_similarity: leave out images whose ``matched_sim`` is lower.
        min_image_bytes: leave out images of fewer bytes (encoded).
        max_images: leave out images beyond this number.
        keep: which images these are: the ``first``, or the most ``similar``.
        min_images: leave out documents with fewer images than this, before ``max_images`` leaves any out.

    Raises:
        UsageError: a value that cannot mean anything.
    """

    layout: str = "auto"
    match: str = "name"
    separator: str = "-"
    place: str = "before"
    ties: str = "json"
    missing_image: str = "error"
    placeholder: object = None
    min_similarity: float | None = None
    min_image_bytes: int = 0
    max_images: int | None = None
    keep: str = "first"
    min_images: int = 0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        if not isinstance(self.separator, str) or not self.separator or "." in self.separator:
            raise UsageError(f"separator={self.separator!r}: one or more characters, without a dot")
        if self.placeholder is not None and self.missing_image != "placeholder":
            raise UsageError("a placeholder is used with missing_image='placeholder' only; pass both")
        for name in ("min_image_bytes", "min_images", "max_images"):
            bound = getattr(self, name)
            if bound is not None and bound < 0:
                raise UsageError(f"{name}={bound} is below 0")

    @property
    def searches(self) -> bool:
        """Whether images may be members of other keys."""
        return self.layout in ("auto", "siblings")
