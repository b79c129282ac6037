"""Which urls stand for a list of objects: folders (``s3://bucket/train/``) and wildcards (``s3://bucket/*.tar``).

Flows in: a url. Flows out: the urls of the objects, where its scheme can list them.
"""

from typing import Any

from .open import gopen_s3, opener_of
from .rewrite import rewritten


def lists(url: str) -> bool:
    """Tell whether a url's scheme can list objects.

    Args:
        url: a url or path; one that the environment rewrites is left alone.
    """
    return "://" in url and opener_of(url) is gopen_s3 and rewritten(url) == url


def listed(url: str, storage_options: Any = None) -> list[str] | None:
    """Return the urls of the objects that a folder or a pattern stands for, or None for any other url.

    Args:
        url: a url or path; one that the environment rewrites is left alone.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no object matches.
        SourceError: the service refuses, or does not answer.
        MissingExtra: the package for this scheme is not installed.
    """
    if not lists(url):
        return None
    from .s3.listing import is_pattern, list_urls  # noqa: PLC0415  only for s3

    return list_urls(url, storage_options) if is_pattern(url) else None
