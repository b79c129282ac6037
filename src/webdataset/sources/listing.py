"""Which urls stand for a list of objects: folders (``s3://bucket/train/``) and wildcards (``s3://bucket/*.tar``).

Flows in: a url. Flows out: the urls of the objects, where its scheme can list them.
"""

from .open import gopen_s3, opener_of
from .rewrite import rewritten


def listed(url: str) -> list[str] | None:
    """Return the urls of the objects that a folder or a pattern stands for, or None for any other url.

    Args:
        url: a url or path; one that the environment rewrites is left alone.

    Raises:
        NotFound: no object matches.
        SourceError: the service refuses, or does not answer.
        MissingExtra: the package for this scheme is not installed.
    """
    if "://" not in url or opener_of(url) is not gopen_s3 or rewritten(url) != url:
        return None
    from .s3_listing import is_pattern, list_urls  # noqa: PLC0415  only for s3

    return list_urls(url) if is_pattern(url) else None
