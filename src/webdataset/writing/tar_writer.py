"""The writer of one shard: samples in, a tar file out, complete or not there at all.

Each field of a sample becomes one member ``key.field``. A sample is written whole or, if a field cannot be encoded, not
at all. Samples are given to the output in pieces that are never joined or copied;
:class:`~webdataset.writing.tar_writer.ShardOutput` is this without the format, for writers of other formats too.

The rules for keys are those of reading, so that each sample reads back as it was written: a key ends at the first dot
of its last component. Never changes a key, and never reads what it wrote.
"""

import atexit
import contextlib
import importlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, get_args

from webdataset.core.errors import EncodingError, SampleError, SourceError, UsageError, WebDatasetError
from webdataset.core.logs import log
from webdataset.core.tracebacks import trim_traceback, warn_user
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.tar.builder import END_MARK, EPOCH, PADDING, MemberStyle, make_header_maker, parse_format
from webdataset.writing.compression import ArchiveOutput, CompressedOutput, choose_compression, make_compressor
from webdataset.writing.local_file import Buffer
from webdataset.writing.outputs import BorrowedOutput, open_output

if TYPE_CHECKING:
    import tarfile

GATHERED_BYTES = 1 << 17
GATHERED_PIECES = 900


class ShardOutput:
    """A writer of one shard, without its format.

    A subclass calls ``_begin`` when its output is open, adds to ``_pieces``, ``_gathered`` (their bytes) and ``_count``
    (samples), and calls ``_hand_on`` when enough is gathered.

    Attributes:
        url: the target, or None for a file object.
        stream: the file object that receives the bytes.
    """

    url: str | None = None
    stream: Any = None
    _state = "unopened"
    # what stands after the last sample
    _end: ClassVar[bytes] = b""
    _output: ArchiveOutput
    _process: int
    _pieces: list[Buffer]
    _gathered = _handed_on = _count = 0

    def _begin(self, output: ArchiveOutput) -> None:
        self._output = output
        self._process = os.getpid()
        self._pieces = []
        self._state = "open"
        _open_outputs.add(self)
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            _watch_child_process()

    @property
    def offset(self) -> int:
        """Bytes of the shard so far, before compression: where the next sample starts."""
        return self._handed_on + self._gathered

    @property
    def closed(self) -> bool:
        """Whether the shard is complete or given up."""
        return self._state in ("closed", "aborted", "abandoned")

    def _hand_on(self) -> None:
        """Give what is gathered to the output; if that fails, the shard is lost."""
        if os.getpid() != self._process:
            raise UsageError("a writer belongs to the process that made it: give every process its own", url=self.url)
        pieces, size = self._pieces, self._gathered
        self._pieces, self._gathered = [], 0
        self._handed_on += size
        self._state = "broken by a failed write"
        self._output.write(pieces, size)
        self._state = "open"

    def _finish(self) -> None:
        if self._end:
            self._pieces.append(self._end)
            self._gathered += len(self._end)
        self._hand_on()

    def close(self) -> None:
        """Complete the shard: it appears under its name. Closing again does nothing.

        Raises:
            SourceError: it cannot be completed, or an earlier write failed; nothing appears.
            AlreadyExists: another writer made the file meanwhile.
        """
        if self._state == "broken by a failed write":
            self.abort()
            raise SourceError("the shard is not complete, for an earlier write failed: it was given up", url=self.url)
        if self._state != "open":
            return
        try:
            end = self.offset
            self._finish()
            self._complete(end)
            self._state = "closed"
        finally:
            # does nothing to a closed shard
            self.abort()

    def _complete(self, end: int) -> None:  # noqa: ARG002  for writers that index
        """Let the shard appear; ``end`` is where the last sample ends."""
        self._output.commit()

    def abort(self) -> None:
        """Give up: nothing appears under the shard's name. A file object is left as it is, without an end mark."""
        if self._state in ("closed", "aborted", "unopened") or os.getpid() != self._process:
            return
        self._state = "aborted"
        self._pieces = []
        self._give_up()

    def _give_up(self) -> None:
        self._output.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the shard, or give it up if an exception passes."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Complete what a forgotten writer wrote, and say so."""
        self.finish_forgotten()

    def finish_forgotten(self) -> None:
        """Complete a shard that was never closed, as programs without ``with`` or ``close()`` expect, and warn."""
        if self._state != "open" or os.getpid() != self._process:
            return
        # an object that goes away cannot raise
        with contextlib.suppress(Exception):
            try:
                self.close()
            except (WebDatasetError, OSError, ValueError) as error:
                self._warn_of_forgetting(f"it could not be completed ({error})")
            else:
                self._warn_of_forgetting(f"it was completed with its {self._count} samples")

    def abandon(self) -> None:
        """Keep what was written under its partial name, and warn; nothing appears under the shard's name."""
        if self._state != "open" or os.getpid() != self._process:
            return
        with contextlib.suppress(Exception):
            self._finish()
            where = self._output.abandon()
            self._state = "abandoned"
            self._warn_of_forgetting(
                f"its {self._count} samples are in {where}" if where else "its shard is incomplete"
            )

    def _warn_of_forgetting(self, what: str) -> None:
        message = f"{type(self).__name__} for {self.url or self.stream!r} was never closed: {what}"
        log.warning("%s; use `with` or call close()", message)
        warnings.warn(message, ResourceWarning, stacklevel=3)


_open_outputs: "weakref.WeakSet[ShardOutput]" = weakref.WeakSet()


@atexit.register
def _finish_open_outputs() -> None:
    """Complete what is open where the program ends; after an error that ended it, keep it under its partial name.

    Later, when its globals go away, nothing can be said any more.
    """
    # set by the interpreter for an uncaught error
    failed = getattr(sys, "last_value", None) is not None
    for output in list(_open_outputs):
        if failed:
            output.abandon()
        else:
            output.finish_forgotten()


_watched: set[int] = set()


def _watch_child_process() -> None:
    """Have what is open completed at the end of a child of multiprocessing, too: it runs no ``atexit``."""
    if os.getpid() not in _watched:
        _watched.add(os.getpid())
        sys.modules["multiprocessing.util"].Finalize(None, _finish_open_outputs, exitpriority=0)


KeyPolicy = Literal["warn", "error", "ignore"]
EncodingPlan = tuple[tuple[str, str], ...]


class KeyRules:
    """The rules for keys under one policy.

    Args:
        policy: what to do about keys that read back differently: ``warn`` (once), ``error``, ``ignore``.

    Raises:
        UsageError: an unknown policy.
    """

    def __init__(self, policy: str = "warn") -> None:
        if policy not in get_args(KeyPolicy):
            raise UsageError(f"check_keys={policy!r} is none of {', '.join(map(repr, get_args(KeyPolicy)))}")
        self.policy: Final = policy
        self._warned = False

    def check(self, key: object) -> None:
        """Check a key that is out of the ordinary.

        Args:
            key: the key.

        Raises:
            SampleError: it cannot be written, or (by policy) it would not read back.
        """
        if not isinstance(key, str):
            raise SampleError(f"__key__ must be text, not {type(key).__name__}: {key!r:.100}")
        if not key or key.endswith("/") or "\0" in key:
            raise SampleError("__key__ is empty, ends in a slash or holds a NUL", key=key)
        if is_meta(f"{key}.x"):
            raise SampleError(
                "a __key__ that is, or starts with, a folder like __this__/ names metadata of the shard: every reader "
                "skips it, and the sample would be lost; choose another key",
                key=key,
            )
        if self.policy == "ignore":
            return
        flaw = self._flaw(key)
        if flaw is not None:
            self._report(flaw, key)

    def _report(self, flaw: str, key: str) -> None:
        if self.policy == "error":
            raise SampleError(flaw, key=key)
        if not self._warned:
            self._warned = True
            warn_user(f"{flaw} (key={key!r}; further keys are not reported)")

    def check_part(self, key: str, repeated: Collection[str]) -> None:
        """Check a sample whose key is that of the sample before: it reads back as a part of it.

        Args:
            key: the key.
            repeated: fields that the sample before has, too.

        Raises:
            SampleError: there are such fields, or (by policy) no sample may come in parts.
        """
        if self.policy == "ignore":
            return
        what = "__key__ is the same as in the sample before: the two read back as one"
        if repeated:
            raise SampleError(f"{what}, and both have {min(repeated)!r}; make keys distinct", key=key)
        self._report(f"{what}; make keys distinct, or pass check_keys='ignore' to write one sample in parts", key)

    @staticmethod
    def _flaw(key: str) -> str | None:
        if key.startswith("/"):
            return "an absolute __key__ is a path outside of the folder into which a shard is unpacked"
        if ".." in key.split("/"):
            return "a __key__ with '..' leads out of the folder into which a shard is unpacked"
        found, field = base_plus_ext(f"{key}.x")
        if found == key:
            return None
        if found is None:
            return "a name that starts with a dot belongs to no sample and is skipped on reading"
        return f"a dot in the last part of __key__ ends it on reading: this one reads back as {found!r}, .{field}"


def encoding_plan(fields: Iterable[str], *, keep_meta: bool) -> EncodingPlan:
    """Return the members of samples that have these fields: (field, ending of the member's name), in writing order.

    Args:
        fields: the sample's keys, ``__key__`` among them.
        keep_meta: write fields that start with an underscore, too (never ``__key__``).

    Raises:
        SampleError: a field that cannot be part of a member's name, or two that would read back as one.
    """
    chosen: list[str] = []
    for field in fields:
        if not isinstance(field, str):
            raise SampleError(f"a field's name must be text, not {type(field).__name__}", field=repr(field))
        if not field or "/" in field or "\0" in field:
            raise SampleError("a field's name is empty, or holds a slash or a NUL", field=field)
        if not field.startswith("_") or (keep_meta and field != "__key__"):
            chosen.append(field)
    if len({field.lower() for field in chosen}) < len(chosen):
        raise SampleError(
            f"fields that differ only in case read back as one: {', '.join(sorted(chosen, key=str.lower))}"
        )
    return tuple((field, f".{field}") for field in sorted(chosen))


Encoder = Callable[[Any], Mapping[str, object]]

_REMEMBERED_PLANS = 1000


class TarWriter(ShardOutput):
    """Write samples to one tar file.

    The file appears under its name on :meth:`close`, complete; after an exception inside ``with``, after
    :meth:`abort` and after the death of the process there is nothing under that name (or still the old file). Runs
    with the same samples write the same bytes. Not for use by several threads at once.

    Args:
        fileobj: a path or url as text, a ``Path``, ``-`` for standard output, or a file object (which stays open).
        user: name of the members' owner.
        group: name of the members' group.
        mode: permission bits of the members.
        compress: None goes by the name's ending (gz, bz2, xz, zst); False is none; True is gz; or one of these four.
        encoder: True encodes by extension; a dict adds or replaces extensions; a callable maps a sample to a sample of
            bytes; False or None takes fields that are bytes already. Some formats that are written so (YAML, JSON
            lines, safetensors, html, class, zst, …) are read back by ``decode("auto")`` only, see docs/formats.md.
        keep_meta: write fields that start with an underscore, as ``key._field``.
        mtime: modification time of the members, in seconds since 1970; None is 1980-01-01, so that runs can be
            compared. Fractions are kept with ``format="pax"`` only.
        format: "ustar", "gnu", "pax" or a constant of ``tarfile``; None is ustar for members that fit, else pax.
        compresslevel: level of the compression; None is a good compromise.
        overwrite: replace a local file that is there already; False raises instead.
        check_keys: what to do about keys that read back differently, and about samples with the key of the one before,
            which read back as parts of it: "warn" (once), "error", "ignore". Where a field repeats, such a sample is an
            error unless it is ignored.
        index: index files to write beside a local shard, in the same pass: "binary", "dali", "energon", "files", or
            several. A sample that one of them cannot hold is refused.

    Attributes:
        stream: the file object that receives the bytes.
        shard_index: where the samples lie, once a shard with ``index`` is complete; a ``ShardIndex``.
        last_key: key of the last sample, or None.

    Raises:
        UsageError: an argument that cannot mean anything.
        SourceError: the target cannot be opened.
        MissingExtra: the compression needs a package that is not installed.
    """

    _end = END_MARK

    def __init__(  # noqa: PLR0917  upstream's order
        self,
        fileobj: object,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,  # noqa: FBT001
        encoder: bool | Mapping[str, object] | Encoder | None = True,  # noqa: FBT001, FBT002
        keep_meta: bool = False,  # noqa: FBT001, FBT002
        mtime: float | None = None,
        format: int | str | None = None,  # noqa: A002
        *,
        compresslevel: int | None = None,
        overwrite: bool = True,
        check_keys: str | KeyRules = "warn",
        index: str | Iterable[str] | None = None,
    ) -> None:
        self.url = str(fileobj) if isinstance(fileobj, (str, os.PathLike)) else None
        self.compress = choose_compression(compress, self.url)
        self.encoder = _choose_encoder(encoder)
        self.keep_meta = keep_meta
        self.user, self.group, self.mode, self.mtime = user, group, mode, EPOCH if mtime is None else mtime
        self._rules = check_keys if isinstance(check_keys, KeyRules) else KeyRules(check_keys)
        self._header = make_header_maker(
            MemberStyle(mtime=self.mtime, mode=mode, uname=user, gname=group, format=parse_format(format))
        )
        engine = make_compressor(self.compress, compresslevel) if self.compress else None
        output = open_output(fileobj, overwrite=overwrite)
        self.stream = output.stream
        self.shard_index: Any = None
        self._indexing = None if index is None else _make_indexing(index, fileobj, output, self.compress)
        stored = output if self._indexing is None else self._indexing.output
        self._gathers = GATHERED_BYTES if not isinstance(output, BorrowedOutput) or engine or self.own_fileobj else 0
        self.last_key: str | None = None
        self._last_plan: EncodingPlan = ()
        self._plans: dict[tuple[str, ...], EncodingPlan] = {}
        self._begin(stored if engine is None else CompressedOutput(stored, engine))

    @property
    def own_fileobj(self) -> bool:
        """Whether the writer opened its target itself, and closes it."""
        return self.url is not None

    @property
    def tarstream(self) -> Self:
        """The writer itself (upstream keeps a ``tarfile`` object here); see :meth:`addfile`."""
        return self

    fileobj = tarstream

    def tell(self) -> int:
        """Return the ``offset``, as ``tarstream.fileobj.tell()`` of the published versions does."""
        return self.offset

    def addfile(self, tarinfo: "tarfile.TarInfo", fileobj: IO[bytes] | None = None) -> None:
        """Write one member as it is, for programs that add to the ``tarstream`` of the published versions.

        Args:
            tarinfo: its header; ``size`` is that of its content.
            fileobj: its content.

        Raises:
            UsageError: the writer is closed, the content is shorter, or index files are written beside the shard.
            SourceError: the output failed.
        """
        content = b"" if fileobj is None else fileobj.read(tarinfo.size)
        if self._state != "open" or self._indexing is not None or len(content) != tarinfo.size:
            raise UsageError(
                f"{tarinfo.name!r} cannot be added: the writer is {self._state}, its content has {len(content)} of "
                f"{tarinfo.size} bytes, or index= was given",
                url=self.url,
            )
        header = tarinfo.tobuf()
        self._pieces += (header, content, PADDING[tarinfo.size & 511])
        self._gathered += len(header) + len(content) + len(PADDING[tarinfo.size & 511])
        self.last_key = None
        self._hand_on()

    def write(self, obj: Mapping[str, object]) -> int:
        """Write one sample; return its bytes of payload, without headers and padding.

        Args:
            obj: fields by extension, and ``__key__``.

        Raises:
            SampleError: a key or field name that cannot be written. Nothing of it is written; the writer can continue.
            EncodingError: a field that cannot be encoded; likewise.
            SourceError: the output failed; the writer cannot continue, and the archive will not appear.
            UsageError: the writer is closed.
        """
        if self._state != "open":
            raise UsageError(f"this writer is {self._state}: no sample can be added", url=self.url)
        try:
            if obj.__class__ is not dict and not isinstance(obj, Mapping):
                raise SampleError(f"a sample is a dict with a __key__, not {type(obj).__name__}")
            sample = obj if self.encoder is None else self.encoder(obj)
            key = self._key(sample)
            plan = self._plans.get(tuple(sample)) or self._find_plan(sample)
            before: EncodingPlan = ()
            if key == self.last_key:
                before = self._check_part(key, plan)
            header = self._header
            pieces: list[Buffer] = []
            payload = stored = 0
            lasting = True
            for field, ending in plan:
                content = sample[field]
                if content.__class__ is not bytes:
                    content = _check_bytes(field, content)
                    lasting = content.__class__ is bytes and lasting
                size = len(content)
                head = header(key + ending, size)
                pad = PADDING[size & 511]
                pieces += (head, content, pad)
                payload += size
                stored += len(head) + size + len(pad)
            if self._indexing is not None:
                self._indexing.add([key + ending for _, ending in plan], pieces, self.offset)
        except WebDatasetError as error:
            trim_traceback(error.locate(key=_find_key(obj), url=self.url))
            raise
        self.last_key, self._last_plan = key, before + plan
        self._count += 1
        self._pieces += pieces
        self._gathered += stored
        if self._gathered >= self._gathers or not lasting or len(self._pieces) >= GATHERED_PIECES:
            self._hand_on()
        return payload

    def check(self, sample: Mapping[str, bytes]) -> None:
        """Refuse names that this archive's format cannot hold, without writing anything.

        Args:
            sample: ``__key__``, and fields that are bytes.

        Raises:
            SampleError: such a name.
        """
        key = str(sample["__key__"])
        for field, ending in self._find_plan(sample):
            self._header(key + ending, len(sample[field]))

    def _key(self, sample: Any) -> str:
        try:
            key = sample["__key__"]
        except (KeyError, TypeError, IndexError):
            fields = ", ".join(map(repr, sample)) if isinstance(sample, Mapping) else ""
            found = (
                f"this one has {fields or 'nothing'}" if isinstance(sample, Mapping) else f"not {type(sample).__name__}"
            )
            raise SampleError(f"a sample is a dict with a __key__; {found}") from None
        if (
            key.__class__ is not str
            or "." in key
            or key[-1:] in ("", "/")
            or key[0] == "/"
            or key[:2] == "__"
            or "\0" in key
        ):
            self._rules.check(key)
        return key  # type: ignore[no-any-return]

    def _check_part(self, key: str, plan: EncodingPlan) -> EncodingPlan:
        """Check a further part of the sample before; return the fields that this has so far."""
        before = self._last_plan
        had = {ending.lower() for _, ending in before}
        self._rules.check_part(key, [field for field, ending in plan if ending.lower() in had])
        return before

    def _find_plan(self, sample: Mapping[str, object]) -> EncodingPlan:
        plan = encoding_plan(sample, keep_meta=self.keep_meta)
        if len(self._plans) >= _REMEMBERED_PLANS:
            self._plans.clear()
        self._plans[tuple(sample)] = plan
        return plan

    def _complete(self, end: int) -> None:
        """Let the archive appear, and then its index files; ``end`` is where the end mark starts."""
        if self._indexing is None:
            super()._complete(end)
            return
        if self._output is not self._indexing.output:
            # a compressed shard is counted and digested to its end by completing it
            self._indexing.remove_old()
            self._output.commit()
            self.shard_index = self._indexing.prepare(end)
            return
        index = self._indexing.prepare(end)
        self._output.commit()
        self._indexing.publish()
        self.shard_index = index

    def _give_up(self) -> None:
        if self._indexing is not None:
            self._indexing.abort()
        self._output.abort()


def _choose_encoder(spec: bool | Mapping[str, object] | Encoder | None) -> Encoder | None:  # noqa: FBT001
    if spec is None or spec is False:
        return None
    if callable(spec):
        return spec
    if spec is not True and not isinstance(spec, Mapping):
        raise UsageError(f"encoder={spec!r} is no encoder: pass True, False, a dict of functions or a function")
    # only writers that encode pay for it
    codecs = importlib.import_module("webdataset.codecs")
    return codecs.make_encoder(spec)  # type: ignore[no-any-return]


def _make_indexing(index: object, target: object, output: ArchiveOutput, compression: str | None) -> Any:
    """Return what makes the index files; the output is given up where there can be none."""
    try:
        # only writers that index pay for it
        indexing = importlib.import_module("webdataset.writing.indexing")
        return indexing.shard_indexing(index, target, output, compression)
    except BaseException:  # whatever it is: nothing may be left over
        output.abort()
        raise


def _check_bytes(field: str, content: object) -> Buffer:
    """Return content as something whose length is its size in bytes."""
    if isinstance(content, (bytes, bytearray)):
        return content
    if isinstance(content, memoryview):
        return content if content.format == "B" and content.ndim == 1 and content.c_contiguous else content.tobytes()
    if field.startswith("_"):
        if isinstance(content, str):
            return content.encode("utf-8", "surrogateescape")
        raise EncodingError(f"the values of metadata must be text or bytes, not {type(content).__name__}", field=field)
    raise EncodingError(
        f"{field} doesn't map to a bytes after encoding ({type(content).__name__}): pass bytes or an encoder",
        field=field,
    )


def _find_key(sample: object) -> str | None:
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    return key if isinstance(key, str) else None
