"""Chooses the native core: the usual case of reading samples in C, where it was compiled.

Theory. ``native/take_samples.c`` takes whole plain members out of a chunk and groups them. It keeps no state of the
stream and raises nothing: it stops before the first header that is not plain, which Python reads with the scanner's
real state. So errors, warnings, limits and offsets have one author, and both ways give the same samples.

Bodies that a chunk of a local file cuts off are read in C, straight into the bytes that the sample gets; the samples
are given once the file is seen to be the one that was opened. These bodies are below what ``member_sizes`` bounds, and
end within the file. Before one of 128 KB or more is read, the samples that are complete are given.

Other functions of the module are for states and for loaders: see :mod:`webdataset.flow.elastic_state`,
:mod:`webdataset.stages.address_codec` and :mod:`webdataset.loading.worker`.

It takes no samples where each member costs a call of Python anyway (names that are selected or renamed, keys that are
split by another rule). With ``WDS_NATIVE=0`` nothing of it is used.
"""

import functools
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol

from webdataset.core import settings
from webdataset.samples.grouping import Grouper, Sample
from webdataset.storage.streams import FileIdentity
from webdataset.tar.header import BLOCK
from webdataset.tar.member_assembly import SHORT_NAME, MemberAssembly

if TYPE_CHECKING:
    from webdataset import _native
    from webdataset.tar.scanner import TarScanner

PROTOCOL: Final = 6
"""What the compiled module must say of itself."""


Gather = Callable[[list[object], tuple[object, ...] | None], list[tuple[list[object], type | None, int]] | None]
"""A list of samples, and the keys of dicts (None: of tuples), to (values, their type if bytes or str, size)."""
PackValues = Callable[[list[object]], bytes | None]
"""A list of bytes, or of texts, to what ``UnpackValues`` makes it of again; None for another one."""
UnpackValues = Callable[[bytes, int, bool, list[object], int, int], None]
"""Puts what was packed, so many values (texts or bytes), into a list, from a row on in steps."""
Draw = Callable[..., bool]
"""Draws samples of a worker's share; see ``_native.pyi``."""


@functools.cache
def load_native() -> tuple[ModuleType | None, str]:
    """Return the compiled module, or None, and in words which of the two it is and why."""
    if "t" in getattr(sys, "abiflags", ""):
        # a free-threaded Python finds the module of the others too, whose objects are laid out in another way
        spec = find_spec("webdataset._native")
        if spec is not None and str(spec.origin).endswith(".abi3.so"):
            return None, "no: it was compiled for Pythons that are not free-threaded: install again with this one"
    try:
        module = importlib.import_module("webdataset._native")
    except ModuleNotFoundError:
        return None, "no: it was not compiled when webdataset was installed (no C compiler or no Python headers)"
    except ImportError as error:
        return None, f"no: {error}"
    if module.PROTOCOL != PROTOCOL:
        return None, f"no: it was compiled from another version ({module.PROTOCOL}, not {PROTOCOL}): install again"
    return module, "yes"


def find_native() -> ModuleType | None:
    """Return the compiled module; None where there is none, or ``WDS_NATIVE=0``."""
    return load_native()[0] if settings.NATIVE.get() else None


def describe_native() -> str:
    """Return whether the native core is used, and if not, why."""
    if not settings.NATIVE.get():
        return "no: WDS_NATIVE=0"
    return load_native()[1]


def is_file_unchanged(descriptor: int, length: int, changed_ns: int) -> bool:
    """Tell whether an open file has so many bytes, and was last changed at this time, in nanoseconds.

    Raises:
        OSError: it cannot be asked; the native form of :func:`choose_file_check` returns False then.
    """
    status = os.fstat(descriptor)
    return status.st_size == length and status.st_mtime_ns == changed_ns


def choose_file_check() -> Callable[[int, int, int], bool]:
    """Return :func:`is_file_unchanged`, or what does the same in C, in a quarter of its time."""
    core = find_native()
    return is_file_unchanged if core is None else getattr(core, "is_unchanged", is_file_unchanged)


class CheckedFile(Protocol):
    """An open file that can tell whether it was written to."""

    @property
    def identity(self) -> FileIdentity | None:
        """Its bytes, and when it was last changed."""
        ...

    def fileno(self) -> int:
        """Return its descriptor."""
        ...

    def check_identity(self) -> None:
        """Raise where it was written to."""
        ...


# chunks of a mapped file in one call: little is read of each
_MAPPED_CHUNKS = 8


class NativeTaker:
    """Takes samples of one shard in C, between the members that Python reads.

    Args:
        core: ``Taker`` of the compiled module.
        grouper: has the sample in progress; it is handed over, and back, in each call.

    Attributes:
        samples: complete samples that were not given yet.
        offsets: where each starts.
        paused: the last call took as much as it was to take from the file, or stopped before a large body because
            samples wait to be given; the next one continues.
    """

    __slots__ = ("_file", "_grouper", "_is_unchanged", "_mapped", "_take", "offsets", "paused", "samples")

    def __init__(self, core: "_native.Taker", grouper: Grouper) -> None:
        self._take = core.take
        self._grouper = grouper
        self._is_unchanged = choose_file_check()
        self.samples: list[Sample] = []
        self.offsets: list[int] = []
        self.paused = False
        self._file: CheckedFile | None = None
        self._mapped: memoryview | None = None

    def read_from(self, file: "CheckedFile", mapped: memoryview | None = None) -> None:
        """Read on in this file where a chunk ends; the chunks are read from it, each up to where the file stands.

        Args:
            file: the file.
            mapped: a view of all of it, whose parts samples get; then where the file stands does not matter.
        """
        self._file, self._mapped = file, mapped

    def take(self, buf: bytes, pos: int, base: int, most: int) -> tuple[bytes, int, int]:
        """Take what is plain; return the last chunk, the position after it, and the chunk's offset.

        The position is at most 511 bytes after the chunk.

        Args:
            buf: a chunk.
            pos: where a header begins.
            base: offset of the chunk in the stream.
            most: bytes from which on no more are read from the file.

        Raises:
            ShardChanged: the file has been written to since it was opened.
        """
        grouper, file = self._grouper, self._file
        if grouper.odd_samples:
            self.paused = False
            return buf, pos, base
        samples, offsets = self.samples, self.offsets
        count, end = len(samples), base + len(buf)
        descriptor, identity = (-1, None) if file is None else (file.fileno(), file.identity)
        length = 0 if identity is None else identity.length
        if self._mapped is not None:
            most *= _MAPPED_CHUNKS
        buf, pos, base, sample, key, start, self.paused = self._take(
            buf, pos, base, *grouper.progress, samples, offsets, descriptor, length, most, self._mapped
        )
        moved = base + len(buf) != end
        if file is not None and moved and not (identity and self._is_unchanged(descriptor, *identity)):
            try:
                file.check_identity()
            except BaseException:  # taken back whatever it is, and raised again
                del samples[count:], offsets[count:]
                raise
        grouper.progress = sample, key, start
        return buf, pos, base

    def add(self, samples: list[Sample], offsets: list[int]) -> None:
        """Add samples that Python made after those that were taken.

        Args:
            samples: complete ones.
            offsets: where each starts.
        """
        self.samples += samples
        self.offsets += offsets

    def take_lists(self, scanner: "TarScanner") -> Iterator[tuple[list[Sample], list[int]]]:
        """Yield the lists of samples that come while this pauses again and again, between large ones.

        This way is short, since the bytes of large samples have driven all code out of the processor's cache.

        Args:
            scanner: the one that this taker belongs to.
        """
        while scanner.take_waiting():
            if self.samples:
                yield self.collect()

    def collect(self) -> tuple[list[Sample], list[int]]:
        """Return the samples that were not given yet, and where each starts; then forget them."""
        samples, offsets, self.samples, self.offsets = self.samples, self.offsets, [], []
        return samples, offsets


def open_taker(assembly: MemberAssembly, grouper: Grouper) -> NativeTaker | None:
    """Return what takes samples in C, or None where Python reads them all.

    Args:
        assembly: the scanner of the shard.
        grouper: groups its members.
    """
    limits = assembly.limits
    usual = limits.name_bytes >= SHORT_NAME and limits.record_bytes >= BLOCK and limits.chain > 0
    if assembly.admit is not None or not usual or not grouper.is_plain:
        return None
    module = find_native()
    return None if module is None else NativeTaker(module.Taker(*grouper.template), grouper)


# two records: the last one may be full
_ZEROS = bytes(2 * 20 * BLOCK)


def take_small_shard(content: bytes, stamp: Sample, common: dict[str, str]) -> tuple[list[Sample], list[int]] | None:
    """Return the samples of a whole archive, and where each starts; None where something in it is not plain.

    All members are plain ones, with extensions seen before and keys that rise, and the usual end follows: Python would
    give the same, and say nothing.

    Args:
        content: the archive.
        stamp: what each sample begins with; its first name is ``__key__``.
        common: extensions seen before under the same rules, and their fields.
    """
    module = find_native()
    if module is None:
        return None
    samples: list[Sample] = []
    offsets: list[int] = []
    taker = module.Taker(stamp, common, common)
    _, pos, _, sample, _, start, _ = taker.take(content, 0, 0, None, None, 0, samples, offsets, -1, 0, 0, None)
    left = len(content) - pos
    if not (2 * BLOCK <= left <= len(_ZEROS) and left % BLOCK == 0 and content.endswith(_ZEROS[:left])):
        return None
    if sample is not None:
        samples.append(sample)
        offsets.append(start)
    keys = [sample["__key__"] for sample in samples]
    rising = all(map(operator.lt, keys, keys[1:]))
    return (samples, offsets) if rising and "" not in keys[:1] else None
