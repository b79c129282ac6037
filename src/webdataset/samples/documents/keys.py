"""Keys that take siblings for fields: ``D-0.jpg`` behind ``D.json`` is field ``0.jpg`` of ``D``.

Flows in: names of members, in the order of the shard. Flows out: key and extension. Needs the JSON first; the stage
``sibling_fields`` does the same for any order.
"""

from webdataset.samples.names import base_plus_ext


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
        """Split a member's name into key and extension.

        Args:
            path: the member's full name.

        Returns:
            (key, extension); (None, None) for a name that belongs to no sample.
        """
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
