"""The writer of one shard: samples in, a tar file out, complete or not there at all.

Flows in: samples, dicts of fields with a ``__key__``. Flows out: one member ``key.field`` per field to an output. A
sample is written whole or, if one of its fields cannot be encoded, not at all. Samples are gathered and given to the
output in pieces that are never joined or copied. Never reads what it wrote.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from webdataset.ground.errors import EncodingError, SampleError, UsageError, WebDatasetError
from webdataset.tar.build import END_MARK, EPOCH, PADDING, MemberStyle, header_maker, tar_format

from .compressors import Compressed, compression_for, compressor
from .gathering import GATHERED_BYTES, GATHERED_PIECES, Gathering
from .keys import KeyRules, Plan, planned
from .localfile import Buffer
from .outputs import Lent, open_output

Encoder = Callable[[Any], Mapping[str, Any]]

_REMEMBERED_PLANS = 1000


class TarWriter(Gathering):
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
        check_keys: what to do about keys that read back differently: "warn" (once), "error", "ignore".
        index: index files to write beside a local shard, in the same pass: "dali", "energon", "files", or several. A
            sample that one of them cannot hold is refused.

    Attributes:
        stream: the file object that receives the bytes.
        shard_index: where the samples lie, once a shard with ``index`` is complete; a ``ShardIndex``.

    Raises:
        UsageError: an argument that cannot mean anything.
        SourceError: the target cannot be opened.
        MissingExtra: the compression needs a package that is not installed.
    """

    _end = END_MARK

    def __init__(  # noqa: PLR0917  upstream's order
        self,
        fileobj: Any,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,  # noqa: FBT001
        encoder: bool | Mapping[str, Any] | Encoder | None = True,  # noqa: FBT001, FBT002
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
        self.compress = compression_for(compress, self.url)
        self.encoder = _encoder(encoder)
        self.keep_meta = keep_meta
        self.user, self.group, self.mode, self.mtime = user, group, mode, EPOCH if mtime is None else mtime
        self._rules = check_keys if isinstance(check_keys, KeyRules) else KeyRules(check_keys)
        self._header = header_maker(
            MemberStyle(mtime=self.mtime, mode=mode, uname=user, gname=group, format=tar_format(format))
        )
        engine = compressor(self.compress, compresslevel) if self.compress else None
        output = open_output(fileobj, overwrite=overwrite)
        self.stream = output.stream
        self.shard_index: Any = None
        self._indexing = None if index is None else _indexing(index, fileobj, output, self.compress)
        stored = output if self._indexing is None else self._indexing.output
        self._gathers = GATHERED_BYTES if not isinstance(output, Lent) or engine or self.own_fileobj else 0
        self._last_key: str | None = None
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._begin(stored if engine is None else Compressed(stored, engine))

    @property
    def own_fileobj(self) -> bool:
        """Whether the writer opened its target itself, and closes it."""
        return self.url is not None

    @property
    def tarstream(self) -> Self:
        """The writer itself (upstream keeps a ``tarfile`` object here)."""
        return self

    def write(self, obj: Mapping[str, Any]) -> int:
        """Write one sample.

        Args:
            obj: fields by extension, and ``__key__``.

        Returns:
            Bytes of payload, without headers and padding.

        Raises:
            SampleError: a key or field name that cannot be written. Nothing of the sample is written; the writer can
                go on.
            EncodingError: a field that cannot be encoded; likewise.
            SourceError: the output failed; the writer cannot go on, and the archive will not appear.
            UsageError: the writer is closed.
        """
        if self._state != "open":
            raise UsageError(f"this writer is {self._state}: no sample can be added", url=self.url)
        try:
            if obj.__class__ is not dict and not isinstance(obj, Mapping):
                raise SampleError(f"a sample is a dict with a __key__, not {type(obj).__name__}")
            sample = obj if self.encoder is None else self.encoder(obj)
            key = self._key(sample)
            plan = self._plans.get(tuple(sample)) or self._planned(sample)
            header = self._header
            pieces: list[Buffer] = []
            payload = stored = 0
            lasting = True
            for field, ending in plan:
                content = sample[field]
                if content.__class__ is not bytes:
                    content = _as_bytes(field, content)
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
            raise error.locate(key=_shown_key(obj), url=self.url)  # noqa: B904  the same error, with its places
        self._last_key = key
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
        for field, ending in self._planned(sample):
            self._header(key + ending, len(sample[field]))

    def _key(self, sample: Any) -> str:
        try:
            key = sample["__key__"]
        except (KeyError, TypeError, IndexError):
            outline = ", ".join(map(repr, sample)) if isinstance(sample, Mapping) else type(sample).__name__
            raise SampleError(f"a sample is a dict with a __key__, not one of {outline or 'nothing'}") from None
        if (
            key.__class__ is not str
            or "." in key
            or key == self._last_key
            or key[-1:] in ("", "/")
            or key[0] == "/"
            or key[:2] == "__"
            or "\0" in key
        ):
            self._rules.check(key, self._last_key)
        return key  # type: ignore[no-any-return]

    def _planned(self, sample: Mapping[str, Any]) -> Plan:
        plan = planned(sample, keep_meta=self.keep_meta)
        if len(self._plans) >= _REMEMBERED_PLANS:
            self._plans.clear()
        self._plans[tuple(sample)] = plan
        return plan

    def _complete(self, end: int) -> None:
        """Let the archive appear, and its index files behind it; ``end`` is where the end mark starts."""
        if self._indexing is None:
            super()._complete(end)
            return
        if self._output is not self._indexing.output:
            self._output.commit()  # a compressed shard is counted and digested to its end by completing it
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


def _encoder(spec: bool | Mapping[str, Any] | Encoder | None) -> Encoder | None:  # noqa: FBT001
    if spec is None or spec is False:
        return None
    if callable(spec):
        return spec
    if spec is not True and not isinstance(spec, Mapping):
        raise UsageError(f"encoder={spec!r} is no encoder: pass True, False, a dict of functions or a function")
    codecs = importlib.import_module("webdataset.codecs")  # only writers that encode pay for it
    return codecs.make_encoder(spec)  # type: ignore[no-any-return]


def _indexing(index: Any, target: Any, output: Any, compression: str | None) -> Any:
    """Return what makes the index files; the output is given up where there can be none."""
    try:
        room = importlib.import_module("webdataset.writing.indexing")  # only writers that index pay for it
        return room.shard_indexing(index, target, output, compression)
    except BaseException:  # whatever it is: nothing may stay behind
        output.abort()
        raise


def _as_bytes(field: str, content: Any) -> Buffer:
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


def _shown_key(sample: Any) -> str | None:
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    return key if isinstance(key, str) else None
