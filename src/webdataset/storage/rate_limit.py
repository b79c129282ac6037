"""Rate limit: one budget of requests for each service, shared by all processes of this user on this host.

Every request waits for its turn here (:func:`take_turn`), and a refusal for too many requests (429, 503) slows all
processes down together (:func:`note_refusal`). The state is 64 bytes in a file of the runtime folder, mapped into each
process, and changed under a lock that the system frees with its process. Nothing sleeps under the lock, and a process
that dies while it waits wastes one slot. A thread that reads ahead is woken from its wait where its reader leaves
(:func:`stop_waiting_at`); others wait in short sleeps, which Ctrl-C ends.

While no rate is set and no service has refused, a turn costs a look at the mapped bytes and a count, about a
microsecond: no lock, no call of the system. That count may lose some of two processes that count at once; it is an
estimate, from which the first decrease starts. Where no file can be shared, each process has a budget of its own.

Theory. Requests have slots, ``1 / rate`` seconds apart, given out in the order of asking; unused slots of the last
second may be used at once (the *burst*). Hence in any ``t`` seconds at most ``rate * t + burst`` slots begin, and each
request has a slot after a bounded time: no process starves. This is the generic cell rate algorithm (ITU-T I.371), in
which one number, the time of the next slot, is the whole queue.

Where a service refuses (429, 503), the rate is halved and the queue begins anew after the pause that the service asks
for. It then grows in equal steps (additive increase, multiplicative decrease: Chiu and Jain 1989), back to what it was
in ten seconds, and ends when four times the halved rate was reached without a refusal. Requests sent before a decrease
do not cause a second one: the *generation* of a request says what it knew.

:class:`RequestRate` is that arithmetic. It reads no clock, sleeps never, and shares nothing; its times are seconds of
one clock that all processes share.
"""

import contextlib
import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from types import ModuleType
from typing import NamedTuple

from webdataset.core import settings
from webdataset.core.errors import SourceError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.logs import log
from webdataset.core.runtime_folder import open_private_file, open_runtime_folder

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

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
        # later ones would pass for times of before a restart, and the bound would be forgotten
        return replace(known, next_slot=min(slot + 1 / rate, now + LONGEST_QUEUE)), max(0.0, slot - now)

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


REFUSALS = frozenset((429, 503))
"""Statuses by which services say that there are too many requests."""

_SIZE = 64
_STATE = struct.Struct("=8s7d")
_MAGIC = b"wdsrate1"
_NUMBER = struct.Struct("=d")
_GENERATION_OFFSET, _CUT_OFFSET = 8, 16
_COUNTS = struct.Struct("=2d")
_COUNTS_OFFSET = 40
# a process that was stopped while it held the lock does not hold up the others forever
_LOCK_SECONDS = 1.0
# each has descriptors: a program may read from any number of web servers
_MOST_SERVICES = 64

# of the thread: when set, it waits for no turn any more
_thread = threading.local()
# late-bound, for tests
clock = time.monotonic
sleep = time.sleep


class Turn(NamedTuple):
    """What a request knew when it was sent.

    Args:
        budget: of its service.
        generation: number of decreases that there had been.
    """

    budget: "RequestBudget"
    generation: float


class RequestBudget:
    """The budget of one service.

    Args:
        descriptor: of the shared file; None for a budget of this process alone.
        service: host and port, for the log.
    """

    def __init__(self, descriptor: int | None = None, service: str = "a service") -> None:
        self._service = service
        self._lock = ForkSafeLock()
        self._bytes: mmap.mmap | bytearray = bytearray(_SIZE)
        self._descriptor: int | None = None
        if descriptor is not None:
            # its block is there before it is mapped: on a full disk a write to the mapping would end the process
            if os.fstat(descriptor).st_size < _SIZE:
                os.pwrite(descriptor, bytes(_SIZE), 0)
            self._bytes = mmap.mmap(descriptor, _SIZE)
            self._descriptor = descriptor

    def __del__(self) -> None:
        """Close the file when no request needs it any more."""
        descriptor = self.__dict__.get("_descriptor")
        if descriptor is not None:
            os.close(descriptor)

    def take_turn(self, bound: float | None) -> Turn:
        """Wait until a request may be sent.

        Args:
            bound: requests a second that the user allows; 0 for no budget.

        Raises:
            SourceError: what this thread reads is not wanted any more.
        """
        if bound == 0:
            return Turn(self, -1.0)
        if bound is None and not _NUMBER.unpack_from(self._bytes, _CUT_OFFSET)[0]:
            return Turn(self, self._count())
        while True:
            with self._hold_lock():
                state, wait = self._load().reserve(clock(), bound)
                self._save(state)
            if not self._wait(wait, state.generation):
                return Turn(self, state.generation)

    def refuse(self, generation: float, wish_seconds: float | None, bound: float | None) -> None:
        """Slow all processes down; arguments as for :meth:`RequestRate.refuse`."""
        if bound == 0:
            return
        with self._hold_lock():
            before = self._load()
            state = before.refuse(clock(), generation, wish_seconds, bound)
            self._save(state)
        # a service that refuses for hours is told of once at its lowest rate
        if state.generation != before.generation and f"{state.cut:.1f}" != f"{before.cut:.1f}":
            log.info("%s refuses for too many requests: now %.1f a second on this host", self._service, state.cut)

    def _count(self) -> float:
        """Count a request without a lock; return the generation."""
        place, now = self._bytes, clock()
        start, count = _COUNTS.unpack_from(place, _COUNTS_OFFSET)
        if 0 <= now - start < 1.0:
            _COUNTS.pack_into(place, _COUNTS_OFFSET, start, count + 1)
        else:
            with self._hold_lock():
                self._save(self._load().count(now))
        generation: float = _NUMBER.unpack_from(place, _GENERATION_OFFSET)[0]
        return generation

    def _wait(self, seconds: float, generation: float) -> bool:
        """Sleep until a slot; tell whether a refusal came meanwhile, so that the slot is void."""
        until = clock() + seconds
        while (left := until - clock()) > 0:
            stopped: threading.Event | None = getattr(_thread, "stopped", None)
            if stopped is not None and stopped.is_set():
                raise SourceError("a request waited for its turn, and its reader has left")
            # a decrease is noticed within the pause that it brings
            sleep(min(left, 0.1))
            if _NUMBER.unpack_from(self._bytes, _GENERATION_OFFSET)[0] != generation:
                return True
        return False

    def _load(self) -> RequestRate:
        magic, *numbers = _STATE.unpack_from(self._bytes)
        return RequestRate(*numbers).at(clock()) if magic == _MAGIC else RequestRate(window_start=clock())

    def _save(self, state: RequestRate) -> None:
        _STATE.pack_into(self._bytes, 0, _MAGIC, *astuple(state))

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with self._lock:
            held = self._descriptor is not None and _lock_record(self._descriptor)
            try:
                yield
            finally:
                if held and fcntl is not None:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _lock_record(descriptor: int) -> bool:
    """Lock a file for this process; tell whether it could be done in time.

    Record locks are the process's own, also on a descriptor that was inherited, unlike those of ``flock``.
    """
    if fcntl is None:
        return False
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        except OSError:
            return False
        else:
            return True


# of this process and its forked children, by service; a mapping is shared over a fork
_budgets: dict[str, RequestBudget] = {}
_opening = ForkSafeLock()


@contextlib.contextmanager
def stop_waiting_at(stopped: threading.Event) -> Iterator[None]:
    """Let requests of this thread wait for their turns no longer than until an event.

    Args:
        stopped: is set by another thread.
    """
    before, _thread.stopped = getattr(_thread, "stopped", None), stopped
    try:
        yield
    finally:
        _thread.stopped = before


def take_turn(address: str) -> Turn:
    """Wait until a request to a service may be sent.

    Args:
        address: the url that is requested; its host and port are the service.

    Returns:
        What :func:`note_refusal` needs.

    Raises:
        SourceError: what this thread reads is not wanted any more.
    """
    budget = _budgets.get(service := _service_of(address)) or _open_budget(service)
    return budget.take_turn(settings.REQUESTS_PER_SECOND.get())


def note_refusal(turn: Turn, wish_seconds: float | None = None) -> None:
    """Slow down all processes of the host, since a service answered 429 or 503.

    Args:
        turn: of the refused request.
        wish_seconds: what ``Retry-After`` says.
    """
    turn.budget.refuse(turn.generation, wish_seconds, settings.REQUESTS_PER_SECOND.get())


def _service_of(address: str) -> str:
    """Return host and port of a url: no user, no password."""
    start = address.find("://") + 3
    end = address.find("/", start)
    return address[start : end if end > 0 else len(address)].rpartition("@")[2].partition("?")[0].lower()


def _open_budget(service: str) -> RequestBudget:
    """Return the budget of a service, shared where that is possible."""
    with _opening:
        # a second descriptor of one file would end, when closed, the locks on the first
        if service not in _budgets:
            if len(_budgets) >= _MOST_SERVICES:
                _budgets.pop(next(iter(_budgets)))
            try:
                _budgets[service] = _share_budget(service)
            except (OSError, ValueError) as error:
                log.warning("requests are budgeted in this process alone: %s", error)
                _budgets[service] = RequestBudget(service=service)
        return _budgets[service]


def _share_budget(service: str) -> RequestBudget:
    name = hashlib.blake2b(service.encode("utf-8", "replace"), digest_size=12).hexdigest()
    descriptor = open_private_file(f"{open_runtime_folder()}/rate-{name}")
    try:
        return RequestBudget(descriptor, service)
    except (OSError, ValueError):
        os.close(descriptor)
        raise
