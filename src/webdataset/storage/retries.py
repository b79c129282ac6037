"""Retries: which failures may be retried, how often, and how long to wait between two attempts.

A backend that gets no answer, or one that a retry may change, raises :class:`RetryableError`. :func:`retry` repeats a
request until it has an answer; :class:`~webdataset.storage.resumable_stream.ResumableStream` continues a body.

:class:`RetryBudget` counts failures *without progress*: a shard may be read for days over a line that drops every
minute, but a server that gives nothing is given up soon. The first retry comes within 0.2 s, later ones double up to a
bound, spread so that many ranks do not return together; ``Retry-After`` of the server is honoured. Where
``WDS_RETRY_SECONDS`` is set, attempts continue for so long.
"""

import datetime as dt
import email.utils
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from webdataset.core import process_limits, settings
from webdataset.core.errors import SourceError
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.core.seeds import random_seed

BUSY = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
"""Statuses that a retry may change."""
ATTEMPTS = 8
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 20.0
LONGEST_WISH_SECONDS = 120.0
# readers that give up after fewer have another way
_PATIENT_ATTEMPTS = 7
PROGRESS_BYTES = 4_000
"""Bytes that make up for all failures before: a line that drops after each 4 kB is read to its end."""

# late-bound, for tests
sleep = time.sleep

T = TypeVar("T")


class RetryableError(Exception):
    """No answer this time, and asking again may help. Never leaves this folder.

    Args:
        reason: what happened, without secrets.
        wait_seconds: how long the server wants to be left alone, or None.
        expired: the credentials are said to be too old.
        refused: the server answered, and gives nothing more at present: a request beside others is best left out.
    """

    def __init__(
        self, reason: str, *, wait_seconds: float | None = None, expired: bool = False, refused: bool = False
    ) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds
        self.expired = expired
        self.refused = refused


@dataclass
class RetryBudget:
    """Counts failures without progress; after ``attempts`` in a row no more attempt is made.

    Where ``WDS_RETRY_SECONDS`` is set, attempts continue for so long after the first failure, but for readers that give
    up early because they have another way.

    Args:
        attempts: failures in a row.
        url: what is asked for, which the log names.
    """

    attempts: int = ATTEMPTS
    url: str = ""
    _failures: int = field(default=0, init=False)
    # bytes received when the failures were last forgotten
    _mark: int = field(default=0, init=False)
    # of the first failure, on the monotonic clock
    _began: float = field(default=0.0, init=False)

    def progress(self, received: int) -> None:
        """Forget earlier failures if enough of the ``received`` bytes came since the first of them."""
        if received - self._mark >= PROGRESS_BYTES:
            self._failures = 0
            self._mark = received

    def spent(self) -> bool:
        """Count a failure, and tell whether it was the last one allowed."""
        self._failures += 1
        if self._failures == 1:
            self._began = time.monotonic()
        if self._failures < self.attempts:
            return False
        seconds = settings.RETRY_SECONDS.get() if self.attempts >= _PATIENT_ATTEMPTS else 0.0
        if time.monotonic() - self._began >= seconds:
            return True
        if self._failures == self.attempts:
            log.warning(
                "%s: no answer after %d attempts; it is asked again for up to %g seconds (WDS_RETRY_SECONDS)",
                redact(self.url),
                self._failures,
                seconds,
            )
        return False

    def describe(self) -> str:
        """Return how many attempts have failed, for an error."""
        return f"{self._failures} attempts"

    def hint(self) -> str:
        """Return what to do where a store is away for longer, for the end of an error."""
        if not process_limits.can_open_files():
            return process_limits.FILES_HINT
        if self.attempts < _PATIENT_ATTEMPTS:
            return ""
        longer = "" if settings.RETRY_SECONDS.get() else "; WDS_RETRY_SECONDS=600 keeps asking for ten minutes"
        return f"; is the address right? 'wds config check URL' shows endpoint and credentials{longer}"

    def pause(self, wish_seconds: float | None = None, wait: Callable[[float], object] | None = None) -> None:
        """Wait before the next attempt.

        Args:
            wish_seconds: what the server asked for.
            wait: waits so many seconds, or less where it is interrupted.
        """
        # such as a socket, or what the names of hosts are looked up in
        if not process_limits.can_open_files():
            process_limits.raise_file_limit()
        (wait or sleep)(pause_seconds(max(0, self._failures - 1), wish_seconds))


def pause_seconds(failures: int, wish_seconds: float | None = None) -> float:
    """Return the seconds to wait after ``failures`` in a row; of the server's wish at most two minutes are granted."""
    spread = 0.5 + random_seed() / 2**64
    pause = min(FIRST_SECONDS * 2.0 ** min(failures, 30) * spread, LONGEST_SECONDS)
    return pause if wish_seconds is None else max(pause, min(wish_seconds * (1 + spread / 10), LONGEST_WISH_SECONDS))


def parse_retry_after(header: str | None, now: str | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for: a number, or a date (RFC 9110, 10.2.3).

    Args:
        header: the header's text, or None.
        now: ``Date`` of the same response: clocks differ, and a date is one of the server's clock.
    """
    text = (header or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    until = _parse_http_date(text)
    if until is None:
        return None
    answered = _parse_http_date(now or "")
    return max(0.0, until - (time.time() if answered is None else answered))


def _parse_http_date(date: str) -> float | None:
    """Return the seconds since 1970 that a date of a header stands for; None where it is none."""
    try:
        moment = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    # "-0000", or no zone at all
    utc = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return utc.timestamp()


def retry(ask: Callable[[], T], url: str, refresh: Callable[[], object], attempts: int | None = None) -> T:
    """Retry a request until it has a response.

    Args:
        ask: sends it once.
        url: the url of the user.
        refresh: discards credentials that have expired.
        attempts: failures after which to give up.

    Raises:
        SourceError: the service refuses, or does not answer.
    """
    budget = RetryBudget(attempts or ATTEMPTS, url)
    while True:
        try:
            return ask()
        except RetryableError as again:
            failure = again
        if budget.spent():
            raise SourceError(f"no answer after {budget.describe()}: {failure}{budget.hint()}", url=url)
        budget.pause(failure.wait_seconds)
        if failure.expired:
            refresh()
