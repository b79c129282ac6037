"""What a shard is called apart from the command that fetches it."""

import re

_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")


def pipe_cleaner(spec: str) -> str:
    """Return the url inside a ``pipe:`` command: its first word that begins with a remote scheme.

    Args:
        spec: a url or ``pipe:`` command.

    Returns:
        The url; the command without ``pipe:`` where no word is one; anything but a ``pipe:`` command unchanged.
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec.removeprefix("pipe:")
    return next((word for word in command.split() if _REMOTE.match(word)), command)
