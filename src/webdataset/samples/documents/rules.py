"""How documents are read: layout, policies and limits, as one value."""

from dataclasses import dataclass
from typing import Any

from webdataset.ground.errors import UsageError

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
        min_images: leave out documents with fewer images than this.

    Raises:
        UsageError: a value that cannot mean anything.
    """

    layout: str = "auto"
    match: str = "name"
    separator: str = "-"
    place: str = "before"
    ties: str = "json"
    missing_image: str = "error"
    placeholder: Any = None
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
