"""What a document is once it is put together: a sample, with its texts and images in order.

Flows in: parts. Flows out: a dict that a decoder can decode. Never knows how the document was stored.
"""

from collections.abc import Container
from typing import Any, Protocol

from webdataset.ground.errors import CodecError, DecodingError, MissingExtra, said

from .names import extension, is_image

MADE = ("parts", "images", "text_list", "matched_text_index", "matched_sim", "image_info", "similarity_matrix", "json")


class Decodes(Protocol):
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

    def decoded(self, decoder: Decodes) -> "Document":
        """Return a copy whose images, and further fields, are decoded.

        Args:
            decoder: a :class:`webdataset.codecs.decoder.Decoder`.

        Raises:
            CodecError: an image or a field that does not decode, with url, key and the image's name.
        """
        fields = decoder.decode({name: value for name, value in self.items() if name not in MADE})
        decoded = Document({name: fields.get(name, value) for name, value in self.items()})
        decoded.decode_images(decoder)
        return decoded

    def decode_images(self, decoder: Decodes, chosen: Container[int] | None = None) -> None:
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
            if part["type"] == "image" and isinstance(part["image"], bytes) and _meant(part, decoder.only, chosen):
                whole = {**part, "image": self._image(decoder, part)}
                images[part["index"]] = whole["image"]
            parts.append(whole)
        self["parts"], self["images"] = parts, images

    def _image(self, decoder: Decodes, part: dict[str, Any]) -> Any:
        try:
            return decoder.decode1(part["field"], part["image"])
        except (CodecError, MissingExtra) as error:
            raise error.locate(url=self.get("__url__"), key=self.get("__key__"), field=part["name"])  # noqa: B904
        except Exception as error:  # handlers are users' code: whatever they raise is a failure of this image
            raise DecodingError(
                self.get("__url__"), self.get("__key__"), part["name"], self,
                message=f"image {part['index']} could not be decoded: {said(error)}",
            ) from error  # fmt: skip


def _meant(part: dict[str, Any], only: set[str] | None, chosen: Container[int] | None) -> bool:
    if chosen is not None and part["index"] not in chosen:
        return False
    return only is None or "images" in only or part["field"] in only


def image_field(name: str | None, stored: str | None) -> str:
    """Return the field under which an image is decoded: that of its member, else of its name, else ``jpg``.

    Args:
        name: what the document calls it.
        stored: the extension of the member that it stands in, if it has one of its own.
    """
    if stored is not None:
        return extension(stored)
    return extension(name) if name is not None and is_image(name) else "jpg"
