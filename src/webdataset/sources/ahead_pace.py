"""Does the reader wait for bytes?

Flows in: the moments at which reads begin and end, and what they gave. Flows out: whether a faster source would help.
"""

FAST_BYTES_PER_SECOND = 150e6
FAR_SECONDS = 0.005
WINDOW_SECONDS = 0.05
WINDOW_BYTES = 1 << 20


class Pace:
    """How the time of one reader passes.

    Attributes:
        latency_seconds: between asking for the latest stream and its first bytes.
        waited_seconds: spent in reads, in the present window.
        elapsed_seconds: in all, in the present window.
        given_bytes: what the reads gave, in the present window.
    """

    def __init__(self) -> None:
        self.latency_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Open a window."""
        self.waited_seconds = self.elapsed_seconds = 0.0
        self.given_bytes = 0

    def note(self, before: float, began: float, ended: float, given_bytes: int) -> None:
        """Take note of a read.

        Args:
            before: when the read before it had ended, in seconds of a clock.
            began: when it began.
            ended: when it ended.
            given_bytes: what it gave.
        """
        self.waited_seconds += ended - began
        self.elapsed_seconds += ended - before
        self.given_bytes += given_bytes

    @property
    def telling(self) -> bool:
        """True where the window is long enough to judge by."""
        return self.elapsed_seconds >= WINDOW_SECONDS and self.given_bytes >= WINDOW_BYTES

    @property
    def share(self) -> float:
        """The share of its time that the reader waited."""
        return self.waited_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """What came in, for each second of waiting."""
        return self.given_bytes / self.waited_seconds if self.waited_seconds else float("inf")

    @property
    def far(self) -> bool:
        """True where opening a stream takes longer than a thread that does it ahead of time costs."""
        return self.latency_seconds > FAR_SECONDS

    @property
    def starving(self) -> bool:
        """True where the reader mostly waits, for a source that is slower than a plain one nearby."""
        return self.share > 0.5 and self.bytes_per_second < FAST_BYTES_PER_SECOND
