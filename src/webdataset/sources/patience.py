"""How often, and how long, a server is waited for.

Flows in: failures and progress. Flows out: a pause before the next attempt, or the news that there were enough. What
is counted are failures *without progress*: a shard may be read for days over a line that drops every minute, but a
server that gives nothing is given up soon. The first retry comes within 0.2 s, later ones double up to a bound,
spread so that many ranks do not return together; the wish of a server (``Retry-After``) is heard.
"""

import datetime as dt
import email.utils
import time
from collections.abc import Callable

from webdataset.ground.seeds import fresh

ATTEMPTS = 8
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 20.0
LONGEST_WISH_SECONDS = 120.0
PROGRESS_BYTES = 4_000
"""Bytes that make up for all failures before: a line that drops after each 4 kB is read to its end."""

sleep = time.sleep


class Patience:
    """Counts failures without progress.

    Args:
        attempts: failures in a row after which no more attempt is made.
    """

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self._attempts = attempts
        self._failures = 0
        self._mark = 0

    def progress(self, received: int) -> None:
        """Forget the failures before, if enough bytes came since the first of them.

        Args:
            received: bytes received since the beginning.
        """
        if received - self._mark >= PROGRESS_BYTES:
            self._failures = 0
            self._mark = received

    def spent(self) -> bool:
        """Count a failure, and tell whether it was the last one allowed."""
        self._failures += 1
        return self._failures >= self._attempts

    def pause(self, wish_seconds: float | None = None, wait: Callable[[float], object] | None = None) -> None:
        """Wait before the next attempt.

        Args:
            wish_seconds: what the server asked for.
            wait: waits so many seconds, or less where it is interrupted.
        """
        (wait or sleep)(pause_seconds(max(0, self._failures - 1), wish_seconds))


def pause_seconds(failures: int, wish_seconds: float | None = None) -> float:
    """Return seconds to wait after some failures in a row.

    Args:
        failures: how many there were before the present one.
        wish_seconds: what the server asked for; at most two minutes are granted.
    """
    spread = 0.5 + fresh() / 2**64
    pause = min(FIRST_SECONDS * 2.0 ** min(failures, 30) * spread, LONGEST_SECONDS)
    return pause if wish_seconds is None else max(pause, min(wish_seconds * (1 + spread / 10), LONGEST_WISH_SECONDS))


def wish_of(header: str | None, now: str | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for: a number, or a date (RFC 9110, 10.2.3).

    Args:
        header: the header's text, or None.
        now: ``Date`` of the same answer: clocks differ, and a date is one of the server's clock.
    """
    text = (header or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    until = _seconds_of(text)
    if until is None:
        return None
    answered = _seconds_of(now or "")
    return max(0.0, until - (time.time() if answered is None else answered))


def _seconds_of(date: str) -> float | None:
    """Return the seconds since 1970 that a date of a header stands for; None where it is none."""
    try:
        moment = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    utc = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)  # "-0000", or no zone at all
    return utc.timestamp()
