"""Member names: key and extension, and names that are metadata.

Flows in: a member's name. Flows out: the sample's key and the field's name. Never normalises a name.
"""

import re

META_PREFIX = "__"
META_SUFFIX = "__"
_META = re.compile(r"__[^/]*__($|/)")


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a member's name at the first dot of its last component.

    Args:
        path: the member's full name.

    Returns:
        (key, extension): ``("a/b.c/d", "tar.gz")`` for ``a/b.c/d.tar.gz``; (None, None) for a name that belongs to no
        sample: without a dot, or hidden at the top level.
    """
    slash = path.rfind("/")
    dot = path.find(".", slash + 1)
    if dot < 0:
        return None, None
    if dot == slash + 1 and (slash < 0 or "." in path[path.rfind("/", 0, slash) + 1 : slash]):
        return None, None
    return path[:dot], path[dot + 1 :]


def last_dot(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a member's name at the last dot of its last component (for keys that hold dots themselves).

    Args:
        path: the member's full name.

    Returns:
        (key, extension), or (None, None) as for :func:`base_plus_ext`.
    """
    slash = path.rfind("/")
    dot = path.rfind(".")
    if dot <= slash + 1:
        return None, None
    return path[:dot], path[dot + 1 :]


def is_meta(path: str, pattern: re.Pattern[str] | str | None = _META) -> bool:
    """Tell whether a name is metadata of the shard: ``__name__`` at the top level, or below such a folder.

    Args:
        path: the member's full name.
        pattern: what such names start with; None: no name is metadata.
    """
    return pattern is not None and re.match(pattern, path) is not None
