"""What the profiles of readers have in common: predictions about a shard, and the rules of Python's tarfile.

Each profile takes what a check finds, in order, and knows the rules of one reader.

Readers built on :mod:`tarfile` end at the first block of zeros and at the first header that they cannot read, without
an error; they fail where a payload is cut.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from webdataset.inspection.header_walk import MemberObserver
from webdataset.samples.grouping import base_plus_ext
from webdataset.tar.header import BLOCK
from webdataset.tar.walker import MemberPosition

if TYPE_CHECKING:
    from webdataset.inspection.findings import ShardResult

_ENDS: Final = ("bad-header", "bad-extension", "lone-zero-block", "joined-archives", "limit")
_UNREADABLE: Final = ("wrong-file", "empty-file", "bad-compression")


class _Prediction(NamedTuple):
    """Something that a reader does otherwise."""

    code: str
    message: str
    offset: int | None
    member: str | None


class ReaderProfile(MemberObserver):
    """What one reader makes of a list of shards.

    Attributes:
        name: of the profile.
        reader: name of the reader, for messages.
        first: whether the present shard is the first.
    """

    name = ""
    reader = ""

    def __init__(self) -> None:
        self.first = True
        self._links: dict[int, str] = {}
        self._predictions: list[_Prediction] = []
        self._last: MemberPosition | None = None
        self._told: set[str] = set()

    def take_links(self, targets: dict[int, str]) -> None:
        """Remember which members are hard links."""
        self._links.update(targets)

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Take the next members."""
        for name, place, offset in members:
            if offset in self._links:
                self._differ("it leaves hard links out", offset, name, once="link")
                continue
            self._last = place
            self.take_member(name, place)

    def take_member(self, name: str, place: MemberPosition) -> None:
        """Take one member that is no link.

        Args:
            name: its full name.
            place: where it is.
        """

    def end_shard(self, check: "ShardResult") -> None:
        """Tell what the reader makes of the shard.

        Args:
            check: of the shard, which has ended; takes the findings.
        """
        self.judge_shard(check)
        for code, message, offset, member in self._predictions:
            key, field = base_plus_ext(member) if member is not None else (None, None)
            text = f"{self.reader}: {message}"
            check.findings.add(f"{code}-{self.name}", text, offset=offset, member=member, key=key, field=field)
        self.first = False
        self._predictions, self._links, self._last = [], {}, None
        self._told = set()

    def judge_shard(self, check: "ShardResult") -> None:
        """Add predictions about the shard as a whole.

        Args:
            check: of the shard.
        """

    def _refuse(self, message: str, offset: int | None = None, member: str | None = None, *, once: str = "") -> None:
        self._predict("refused", message, offset, member, once)

    def _differ(self, message: str, offset: int | None = None, member: str | None = None, *, once: str = "") -> None:
        self._predict("differs", message, offset, member, once)

    def _predict(self, code: str, message: str, offset: int | None, member: str | None, once: str) -> None:
        if once and once in self._told:
            return
        self._told.add(once)
        self._predictions.append(_Prediction(code, message, offset, member))


class TarfileProfile(ReaderProfile):
    """A reader that is built on Python's tarfile."""

    def judge_shard(self, check: "ShardResult") -> None:
        """Find where tarfile stops, and forget what comes after it."""
        for code in _UNREADABLE:
            if check.findings.counts[code]:
                self._predictions = []
                self._refuse(f"it cannot read the file ({code})", 0)
                return
        if check.findings.counts["cut"]:
            self._judge_cut(check)
        ends = [finding for finding in check.findings.kept if finding.code in _ENDS and finding.offset is not None]
        if not ends:
            return
        stop = min(finding.offset or 0 for finding in ends)
        self._predictions = [each for each in self._predictions if (each.offset or 0) < stop]
        if stop == 0:
            self._refuse("it cannot read the first header", 0)
        else:
            self._differ(f"it ends at byte {stop} without an error, and reads nothing after it", stop)

    def _judge_cut(self, check: "ShardResult") -> None:
        length = check.size_bytes
        last = self._last
        end = 0 if last is None else last.payload + (last.size + BLOCK - 1) // BLOCK * BLOCK
        if end > length or last is None:
            self._refuse("the archive is cut in a payload: unexpected end of data", length)
        else:
            self._differ("the archive is cut in a header: it ends there without an error", length)
