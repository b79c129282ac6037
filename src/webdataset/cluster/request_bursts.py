"""What happens when all hosts of a job send requests at once to a store that answers only so many a second.

Theory. Only time and the store are modelled. The hosts are the library's own: each has a
:class:`~webdataset.storage.rate_limit.RequestRate`, which is halved by refusals and grows again, and each request a
:class:`~webdataset.storage.retries.RetryBudget`, which gives up after eight failures. The store is a token
bucket: it answers ``limit`` requests a second, one second's worth at once, and refuses the others (429, 503). Hosts of
a job are alike, so that a sample of them stands for all, at the same share of the limit.
"""

import heapq
import itertools
from typing import Final, NamedTuple

from webdataset.storage.rate_limit import RequestRate
from webdataset.storage.retries import RetryBudget

MOST_HOSTS: Final = 64
MOST_REQUESTS: Final = 60_000
# a clock that has just begun is taken for one of a machine that was started again
_BEGINNING: Final = 1000.0


class RequestBurst(NamedTuple):
    """What came of a burst.

    Args:
        seconds: until the last request was answered, or given up.
        sent: requests, with those that were sent again.
        refused: how many of these the store refused.
        failed: requests that were given up: each would end a run.
    """

    seconds: float
    sent: int
    refused: int
    failed: int


class _Store:
    """Answers ``limit`` requests a second, and as many at once as come in one second."""

    def __init__(self, limit: float) -> None:
        self._limit, self._left, self._seen = limit, limit, 0.0

    def answer(self, now: float) -> bool:
        self._left = min(self._limit, self._left + (now - self._seen) * self._limit)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Request:
    """A request of a host, and the failures that it may still have."""

    def __init__(self) -> None:
        self.budget = RetryBudget()
        self.generation = 0.0
        # of the newest event: one that was planned before counts no more
        self.event = -1


class _Host:
    """Sends the requests of one host under one budget."""

    def __init__(self, bound: float | None, requests: int) -> None:
        self.rate = RequestRate()
        self.left = requests
        self.waiting: set[_Request] = set()
        self._bound = bound

    def wait_for_turn(self, request: _Request, now: float) -> float:
        """Return the seconds until a request may be sent."""
        self.rate, seconds = self.rate.reserve(_BEGINNING + now, self._bound)
        request.generation = self.rate.generation
        self.waiting.add(request)
        return seconds

    def note_refusal(self, request: _Request, now: float) -> bool:
        """Slow down; tell whether those that wait have to ask again."""
        before = self.rate.generation
        self.rate = self.rate.refuse(_BEGINNING + now, request.generation, None, self._bound)
        return self.rate.generation != before


def simulate_burst(
    hosts: int, requests: int, limit: float, *, bound: float | None = None, lanes: int | None = None
) -> RequestBurst:
    """Return what happens when hosts begin to send at the same moment.

    Args:
        hosts: how many.
        requests: of each host.
        limit: requests a second that the store answers, over all hosts.
        bound: requests a second that a host may send, as ``WDS_REQUESTS_PER_SECOND`` says; None for any number.
        lanes: requests of a host that are under way at once; by default all.
    """
    if hosts < 1 or requests < 1:
        return RequestBurst(0.0, 0, 0, 0)
    chosen = min(hosts, MOST_HOSTS, max(1, MOST_REQUESTS // requests))
    store = _Store(max(limit * chosen / hosts, 1e-9))
    crowd = _Crowd([_Host(bound, requests) for _ in range(chosen)], store)
    crowd.run(min(lanes or requests, requests))
    scale = hosts / chosen
    return RequestBurst(crowd.last, *(round(count * scale) for count in (crowd.sent, crowd.refused, crowd.failed)))


class _Crowd:
    """The hosts, and what they will do next, in the order of time."""

    def __init__(self, hosts: list[_Host], store: _Store) -> None:
        self.sent = self.refused = self.failed = 0
        self.last = 0.0
        self._hosts, self._store = hosts, store
        self._order = itertools.count()
        # when, which event it is, whose, and whether a pause ends there
        self._events: list[tuple[float, int, _Host, _Request, bool]] = []

    def run(self, lanes: int) -> None:
        """Let each host begin ``lanes`` requests, and continue until none is left."""
        for _ in range(lanes):
            for host in self._hosts:
                self._begin(host, 0.0)
        while self._events:
            now, event, host, request, pause_over = heapq.heappop(self._events)
            if event != request.event:
                continue
            if pause_over:
                self._plan(now + host.wait_for_turn(request, now), host, request)
            else:
                host.waiting.discard(request)
                self._send(now, host, request)

    def _plan(self, when: float, host: _Host, request: _Request, *, pause_over: bool = False) -> None:
        request.event = next(self._order)
        heapq.heappush(self._events, (when, request.event, host, request, pause_over))

    def _begin(self, host: _Host, now: float) -> None:
        if host.left:
            host.left -= 1
            request = _Request()
            self._plan(now + host.wait_for_turn(request, now), host, request)

    def _send(self, now: float, host: _Host, request: _Request) -> None:
        self.sent += 1
        self.last = now
        if self._store.answer(now):
            self._begin(host, now)
            return
        self.refused += 1
        if host.note_refusal(request, now):
            for other in list(host.waiting):
                self._plan(now + host.wait_for_turn(other, now), host, other)
        if request.budget.spent():
            self.failed += 1
            self._begin(host, now)
            return
        pauses: list[float] = []
        request.budget.pause(None, pauses.append)
        self._plan(now + pauses[0], host, request, pause_over=True)
