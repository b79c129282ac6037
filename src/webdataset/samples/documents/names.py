"""Names of images: what a document's JSON calls them, and what the members are called.

Flows in: names. Flows out: stems, which are what both have in common. Never looks at a payload.
"""

from collections.abc import Iterator
from functools import lru_cache

_IMAGES = "apng avif bmp gif heic heif image img j2k jfif jp2 jpe jpeg jpg jxl pbm pgm png pnm ppm tif tiff webp"
IMAGES = frozenset(_IMAGES.split())
TIFF = frozenset(("tif", "tiff"))


@lru_cache(4096)
def extension(name: str) -> str:
    """Return what stands behind the last dot, in lower case; the whole name where there is no dot."""
    return name.rpartition(".")[2].lower()


@lru_cache(4096)
def is_image(field: str) -> bool:
    """Tell whether a field holds an image, going by its last extension."""
    return extension(field) in IMAGES


def stem(name: str) -> str:
    """Return an image's name without folders and without an image's extension.

    Args:
        name: ``b1946ac9.png``, ``images/b1946ac9.jpg``, ``b1946ac9`` (all three: ``b1946ac9``).
    """
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


def parent(key: str, separator: str) -> str | None:
    """Return the shortest key that a sample with this key may be a sibling of, or None.

    Args:
        key: ``shard/000000007-0``.
        separator: what stands between a document's key and an image's name.
    """
    cut = key.rfind(separator, 1) if "/" in separator else key.find(separator, key.rfind("/") + 2)
    return key[:cut] if cut > 0 else None


def parents(key: str, separator: str) -> Iterator[str]:
    """Yield all keys that a sample with this key may be a sibling of, the longest first.

    Args:
        key: ``shard/a-b-0`` (``shard/a-b``, then ``shard/a``).
        separator: what stands between a document's key and an image's name.
    """
    least = 1 if "/" in separator else key.rfind("/") + 2
    cut = key.rfind(separator, least)
    while cut > 0:
        yield key[:cut]
        cut = key.rfind(separator, least, cut + len(separator) - 1)


def is_address(name: str) -> bool:
    """Tell whether a name is a url: it says where an image came from, not what a member is called."""
    return "://" in name
