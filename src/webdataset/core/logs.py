"""The logger ``webdataset``, created when the first record is logged.

``logging`` takes longer to import than the rest of this layer, and most programs never log anything here.
"""

from typing import TYPE_CHECKING


class _LazyLogger:
    """The logger, asked for at the first use of an attribute."""

    def __getattr__(self, name: str) -> object:
        """Return what the logger has under this name."""
        import logging  # noqa: PLC0415  see above

        return getattr(logging.getLogger("webdataset"), name)


if TYPE_CHECKING:
    import logging

    log: logging.Logger
else:
    log = _LazyLogger()
