"""The arithmetic of a request budget: when the next request may be sent, and how refusals change the rate.

Theory. Requests have slots, ``1 / rate`` seconds apart, given out in the order of asking; unused slots of the last
second may be used at once (the *burst*). Hence in any ``t`` seconds at most ``rate * t + burst`` slots begin, and each
request has a slot after a bounded time: no process starves. This is the generic cell rate algorithm (ITU-T I.371), in
which one number, the time of the next slot, is the whole queue.

Where a service refuses (429, 503), the rate is halved and the queue begins anew after the pause that the service asks
for. It then grows in equal steps (additive increase, multiplicative decrease: Chiu and Jain 1989), back to what it was
in ten seconds, and ends when four times the halved rate was reached without a refusal. Requests sent before a decrease
do not cause a second one: the *generation* of a request says what it knew.

Nothing here reads a clock, sleeps, or shares anything. Times are seconds of one clock that all processes share.
"""

from dataclasses import astuple, dataclass, replace

BURST_SECONDS = 1.0
GROWTH_SECONDS = 10.0
LEAST_RATE = 0.5
FIRST_LEAST_RATE = 5.0
"""A program that sends less is not what a service refuses for; a second refusal shows whether it is."""
LONGEST_PAUSE = 120.0
LEAST_PAUSE = 0.1
LONGEST_QUEUE = 24 * 3600.0
_WINDOW_SECONDS = 1.0
_FREE_GROWTH = 4.0
_LARGEST = 1e15
# two processes that read the clock may write in the other order
_SKEW_SECONDS = 1.0


@dataclass(frozen=True)
class RequestRate:
    """The state of one service's budget.

    Args:
        generation: number of decreases so far.
        cut: requests a second right after the last decrease; 0 where nothing bounds them.
        cut_at: when that was, or when the pause that it brought ends.
        next_slot: when the next request may be sent.
        window_start: when counting began.
        window_count: requests since then.
        counted: requests a second in the window before.
    """

    generation: float = 0.0
    cut: float = 0.0
    cut_at: float = 0.0
    next_slot: float = 0.0
    window_start: float = 0.0
    window_count: float = 0.0
    counted: float = 0.0

    def at(self, now: float) -> "RequestRate":
        """Return the state, made plausible for a moment: times of before a restart of the machine are forgotten."""
        numbers = astuple(self)
        valid = (
            all(0 <= number < _LARGEST for number in numbers)
            and self.window_start <= now + _SKEW_SECONDS
            and self.cut_at <= now + LONGEST_PAUSE
            and self.next_slot <= now + LONGEST_QUEUE
        )
        return self if valid else RequestRate(generation=1.0, window_start=now)

    def rate_at(self, now: float, bound: float | None = None) -> float | None:
        """Return the requests a second that are allowed now; None for any number.

        Args:
            now: the moment.
            bound: the user's.
        """
        growth = 1 + max(0.0, now - self.cut_at) / GROWTH_SECONDS
        if not self.cut or growth >= _FREE_GROWTH:
            return bound
        return self.cut * growth if bound is None else min(self.cut * growth, bound)

    def count(self, now: float) -> "RequestRate":
        """Count a request."""
        passed = now - self.window_start
        if passed < _WINDOW_SECONDS:
            return replace(self, window_count=self.window_count + 1)
        counted = self.window_count / passed
        return replace(self, window_start=now, window_count=1.0, counted=counted)

    def reserve(self, now: float, bound: float | None = None) -> tuple["RequestRate", float]:
        """Give out the next slot.

        Args:
            now: the moment.
            bound: the user's requests a second.

        Returns:
            The new state, and the seconds until the slot.
        """
        known = self.at(now).count(now)
        rate = known.rate_at(now, bound)
        if known.cut and now - known.cut_at >= GROWTH_SECONDS * (_FREE_GROWTH - 1):
            known = replace(known, cut=0.0)
        if rate is None:
            return known, 0.0
        # after a decrease nothing is saved up
        unused = max(0.0, BURST_SECONDS - 1 / rate) if not known.cut else 0.0
        slot = max(known.next_slot, now - unused)
        return replace(known, next_slot=slot + 1 / rate), max(0.0, slot - now)

    def refuse(
        self, now: float, generation: float, wish_seconds: float | None = None, bound: float | None = None
    ) -> "RequestRate":
        """Slow down after a refusal.

        Args:
            now: the moment.
            generation: of the state when the refused request was sent.
            wish_seconds: how long the service wants to be left alone.
            bound: the user's requests a second.
        """
        known = self.at(now)
        pause = min(max(wish_seconds or 0.0, LEAST_PAUSE), LONGEST_PAUSE)
        if generation != known.generation:
            # an older request: only a longer pause is news
            later = max(known.next_slot, now + (min(wish_seconds, LONGEST_PAUSE) if wish_seconds else 0.0))
            return replace(known, next_slot=later)
        sent = max(known.counted, known.window_count / max(now - known.window_start, _WINDOW_SECONDS))
        before = known.rate_at(now, bound)
        first = FIRST_LEAST_RATE if not known.cut else LEAST_RATE
        rate = max((sent if before is None else min(before, max(sent, LEAST_RATE))) / 2, first)
        return replace(known, generation=known.generation + 1, cut=rate, cut_at=now + pause, next_slot=now + pause)
