"""The writer of interleaved documents: parts in, shards out, in any of four layouts.

Each document becomes one sample of a TarWriter or ShardWriter, or, for siblings, one sample for each member, never in
two shards. All images of a document are encoded before anything of it is written. It reads back as the same parts.
"""

import binascii
import importlib
import io
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from webdataset.core.errors import EncodingError, SampleError, UsageError, WebDatasetError, describe_error
from webdataset.core.optional_imports import require
from webdataset.samples.documents.assembly import locate_images
from webdataset.samples.documents.document import DocumentRules, extension, is_image, stem
from webdataset.samples.documents.outline import parse_outline
from webdataset.samples.documents.serialize import FORMS, Illustration, SerializedDocument, member_names, serialize
from webdataset.writing.shard_writer import ShardWriter
from webdataset.writing.tar_writer import TarWriter

LAYOUTS = ("siblings", "inline", "fields", "pages")
_MAGIC = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"BM": "bmp",
}


class DocumentWriter:
    """Write interleaved documents.

    Args:
        target: a path or url (one shard), a pattern with ``%06d`` or ``{shard:06d}`` (a series of shards), a file
            object, or an open TarWriter or ShardWriter, which this writer then closes.
        layout: ``siblings`` (``D.json``, ``D-<name>.jpg``), ``inline`` (base64 in the JSON), ``fields`` (``D.json``,
            ``D.<name>.jpg``), or ``pages`` (``D.json``, ``D.tiff``: images are decoded and stored anew, without loss).
        form: ``matched`` (the JSON of MMC4), ``parallel`` (that of OBELICS), or ``auto``: ``matched`` where it can say
            the order of the document (for ``pages`` always ``parallel``, as MINT-1T has it).
        image_format: extension under which images are encoded that are not bytes.
        place: an image that is matched to a text stands ``before`` or ``after`` it, as for reading.
        separator: stands between a document's key and the names of its siblings.
        **kw: as for TarWriter or ShardWriter; ``maxcount`` counts documents.

    Raises:
        UsageError: arguments that cannot mean anything.
        SourceError: the target cannot be opened.
    """

    def __init__(
        self,
        target: object,
        layout: str = "siblings",
        *,
        form: str = "auto",
        image_format: str = "jpg",
        place: str = "before",
        separator: str = "-",
        **kw: Any,
    ) -> None:
        for name, value, choices in (
            ("layout", layout, LAYOUTS),
            ("form", form, FORMS),
            ("place", place, ("before", "after")),
        ):
            if value not in choices:
                raise UsageError(f"{name}={value!r} is not one of {', '.join(choices)}")
        if not is_image(image_format):
            raise UsageError(f"image_format={image_format!r} is no extension of images")
        self.layout, self.place = layout, place
        self.form = "parallel" if layout == "pages" and form == "auto" else form
        self.image_format, self.separator = image_format, separator
        self.sink = _open_writer(target, kw)

    def write(self, document: Mapping[str, object]) -> int:
        """Write one document; return its bytes of payload.

        Args:
            document: ``__key__``, and ``parts`` or ``images``, ``text_list`` and ``matched_text_index``; and, where
                they are there, ``matched_sim``, ``image_info``, ``similarity_matrix``, ``json`` and further fields.
                Images that are bytes are written as they are.

        Raises:
            SampleError: parts that do not fit each other. Nothing is written; the writer can continue.
            EncodingError: an image that cannot be encoded; likewise.
            SourceError: the output failed.
        """
        try:
            described = serialize(document, self.form, self.place)
            stored = [self._load_image(number, image) for number, image in enumerate(described.images)]
            samples = self._samples(_check_key(document), described, stored)
            self._check(samples[0], described)
        except WebDatasetError as error:
            key = document.get("__key__") if isinstance(document, Mapping) else None
            raise error.locate(key=key)  # noqa: B904  the same error, with its place
        if "__key__" not in document:
            # refused by the sink, as any sample without one
            del samples[0]["__key__"]
        if len(samples) > 1:
            self._fits(samples[1:])
        size = self.sink.write(samples[0])
        writer = self.sink.tarstream
        behind = sum(writer.write(sample) for sample in samples[1:]) if writer is not None else 0
        if isinstance(self.sink, ShardWriter):
            self.sink.size += behind
        return size + behind

    def _load_image(self, number: int, image: Illustration) -> Illustration:
        """Return an image with its bytes, their extension and a name."""
        value, where = image.image, image.name or f"image {number}"
        if value is None or (isinstance(value, bytes) and not value):
            raise EncodingError(
                f"an image is {'None' if value is None else 'empty'}: leave missing images out", field=where
            )
        if isinstance(value, bytes | bytearray | memoryview):
            content, known = bytes(value), image.field if image.field and is_image(image.field) else None
            ending = known or _detect_kind(content[:16]) or _find_extension(image.name) or self.image_format
        else:
            content, ending = self._encode_image(value, where), self.image_format
        return image._replace(image=content, field=ending, name=image.name or f"{number}.{ending}")

    def _encode_image(self, image: object, where: str) -> bytes:
        # only writers that encode pay for it
        codecs = importlib.import_module("webdataset.codecs.encoder")
        try:
            encoded: bytes = codecs.encode_based_on_extension1(image, f"0.{self.image_format}", codecs.default_handlers)
        except WebDatasetError as error:
            error.field = where
            raise
        except Exception as error:  # encoders are users' code: whatever they raise is a failure of this image
            raise EncodingError(f"an image could not be encoded: {describe_error(error)}", field=where) from error
        return encoded

    def _samples(self, key: str, document: SerializedDocument, images: list[Illustration]) -> list[dict[str, object]]:
        """Return the samples that a document is written as; the first holds its JSON."""
        if self.layout == "pages":
            for entry, image in zip(document.entries, images, strict=True):
                entry["image_name"] = image.name
            return [self._first(key, document, {"tiff": _stack_pages(images)} if images else {})]
        members: dict[str, Illustration] = {}
        for entry, image, name in zip(document.entries, images, member_names(images), strict=True):
            entry["image_name"] = image.name
            if self.layout == "inline":
                entry["image_base64"] = binascii.b2a_base64(image.image, newline=False).decode("ascii")
                continue
            members[name] = image
            if stem(str(image.name)) != name:
                entry["member"] = f"{name}.{image.field}"
        if self.layout == "siblings":
            siblings = [
                {"__key__": f"{key}{self.separator}{name}", str(image.field): image.image}
                for name, image in members.items()
            ]
            return [self._first(key, document, {}), *siblings]
        return [self._first(key, document, {f"{name}.{image.field}": image.image for name, image in members.items()})]

    @staticmethod
    def _first(key: str, document: SerializedDocument, fields: dict[str, bytes]) -> dict[str, object]:
        from webdataset.codecs.json_codec import json_dumps  # noqa: PLC0415  codecs are loaded when they are used

        taken = fields.keys() & document.fields.keys()
        if taken:
            raise SampleError(f"the document has a field {min(taken)!r} already", field=min(taken))
        try:
            record = json_dumps(document.record)
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"the document's JSON cannot be written: {describe_error(error)}", field="json"
            ) from error
        return {"__key__": key, **document.fields, "json": record, **fields}

    def _fits(self, siblings: list[dict[str, Any]]) -> None:
        """Refuse siblings that cannot be written, before their document is."""
        writer = self.sink.tarstream
        if writer is None and isinstance(self.sink, ShardWriter):
            writer = self.sink.next_stream()
        if writer is None:
            return
        for sibling in siblings:
            try:
                writer.check(sibling)
            except WebDatasetError as error:
                raise error.locate(key=sibling["__key__"])  # noqa: B904  the same error, with its place

    def _check(self, sample: Mapping[str, object], document: SerializedDocument) -> None:
        """Refuse further fields that would be read back as images of the document."""
        further = [name for name in document.fields if is_image(name)]
        outline = parse_outline(document.record) if further else None
        for place in (
            locate_images(sample, outline, DocumentRules(separator=self.separator)) if outline is not None else ()
        ):
            if place.kind in ("field", "page") and place.names[0] in document.fields:
                name = place.names[0]
                raise SampleError(
                    f"field {name!r} would be read back as an image of the document: rename it", field=name
                )

    def close(self) -> None:
        """Complete the last shard.

        Raises:
            SourceError: it cannot be completed.
        """
        self.sink.close()

    def abort(self) -> None:
        """Give up the shard in progress."""
        self.sink.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the last shard, or give it up if an exception passes."""
        self.sink.__exit__(kind, error, trace)


def _check_key(document: Mapping[str, object]) -> str:
    key = str(document.get("__key__", ""))
    if "." in key.rpartition("/")[2]:
        raise SampleError("a dot in the last part of __key__ ends it on reading: replace the dot", field="__key__")
    return key


def _open_writer(target: Any, kw: dict[str, Any]) -> TarWriter | ShardWriter:
    if isinstance(target, TarWriter | ShardWriter):
        if kw:
            raise UsageError(f"an open writer takes no further arguments: {', '.join(kw)}")
        return target
    series = callable(target)
    if isinstance(target, str | os.PathLike):
        series = any(mark in os.fspath(target) for mark in "%{")
    return ShardWriter(target, **kw) if series else TarWriter(target, **kw)


def _stack_pages(images: list[Illustration]) -> bytes:
    """Return a TIFF file with a page for each image."""
    pillow = require("PIL.Image", extra="images", purpose="writing pages")
    frames = []
    for image in images:
        try:
            frame = pillow.open(io.BytesIO(image.image))
            frame.load()
        except (OSError, ValueError) as error:
            raise EncodingError(f"an image cannot become a page: {describe_error(error)}", field=image.name) from error
        frames.append(frame)
    stream = io.BytesIO()
    frames[0].save(stream, "TIFF", save_all=True, append_images=frames[1:], compression="tiff_deflate")
    return stream.getvalue()


def _detect_kind(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((ending for magic, ending in _MAGIC.items() if head.startswith(magic)), None)


def _find_extension(name: str | None) -> str | None:
    return extension(name) if name is not None and is_image(name) else None
