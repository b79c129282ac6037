"""The logger of this library, which is made when something is logged.

Flows in: messages. Flows out: records of the logger ``webdataset``. ``logging`` takes longer to load than the rest of
this floor, and most programs never log anything here.
"""

from typing import TYPE_CHECKING, Any


class _Later:
    """The logger, asked for at the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        """Return what the logger has under this name."""
        import logging  # noqa: PLC0415  see above

        return getattr(logging.getLogger("webdataset"), name)


if TYPE_CHECKING:
    import logging

    log: logging.Logger
else:
    log = _Later()
