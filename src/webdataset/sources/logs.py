"""What urllib3 writes into logs, without the secrets in addresses.

Flows in: log records: every request's path, with its query. Flows out: the same records, with signatures and tokens
replaced by ``***``.
"""

import logging

from webdataset.ground.redaction import redacted

LOGGERS = ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry")


class _Masked(logging.Filter):
    """Rewrites records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace what is secret; every record is kept."""
        said = record.getMessage()
        shown = redacted(said)
        if shown != said:
            record.msg, record.args = shown, ()
        return True


_masked = _Masked()


def mask() -> None:
    """Mask urllib3's records in this process; called as often as one likes."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_masked)
