"""Writers of record shards: samples in, a sequence of CBOR or msgpack items out, complete or not there at all.

Samples are dicts of values with a ``__key__``, one item each; values are written as they are, numbers as numbers and
arrays as arrays, unless an encoder is asked for. The output may be compressed. Never reads what it wrote.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from webdataset.core.errors import EncodingError, MissingExtra, SampleError, UsageError, describe_error
from webdataset.writing.compression import CompressedOutput, choose_compression, make_compressor
from webdataset.writing.outputs import open_output
from webdataset.writing.shard_writer import ShardWriter
from webdataset.writing.tar_writer import GATHERED_BYTES, GATHERED_PIECES, ShardOutput

_FORMATS = {"cbor": "cbor_dumps", "msgpack": "msgpack_dumps"}
_ENDINGS = {"cbor": "cbor", "cbors": "cbor", "mp": "msgpack", "msg": "msgpack", "msgpack": "msgpack", "mps": "msgpack"}
_COMPRESSIONS = {"gz", "bz2", "xz", "zst"}


def record_format(name: str | None) -> str:
    """Return the format that a file's name means: ``cbor`` or ``msgpack``.

    Args:
        name: a path or url, perhaps ending in ``.gz``, ``.bz2``, ``.xz`` or ``.zst``; None for a file object.

    Raises:
        UsageError: it means none.
    """
    parts = (name or "").partition("?")[0].lower().split(".")
    if len(parts) > 1 and parts[-1] in _COMPRESSIONS:
        parts.pop()
    chosen = _ENDINGS.get(parts[-1]) if len(parts) > 1 else None
    if chosen is None:
        raise UsageError(f"{name!r} does not end in .cbors, .msgpack or the like: pass format='cbor' or 'msgpack'")
    return chosen


def _load_codec(module: str, name: str) -> Callable[..., Any]:
    codec: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return codec


class RecordWriter(ShardOutput):
    """Write samples to one record shard.

    The file appears under its name on :meth:`close`, complete; after an exception inside ``with``, after
    :meth:`abort` and after the death of the process there is nothing under that name (or still the old file). Not for
    use by several threads at once.

    Args:
        target: a path or url as text, a ``Path``, ``-`` for standard output, or a file object (which stays open).
        format: "cbor" or "msgpack"; None goes by the name's ending (``.cbors``, ``.cbor``, ``.msgpack``, ``.mp`` …).
        compress: None goes by the name's ending (gz, bz2, xz, zst); False is none; True is gz; or one of these four.
        encoder: False writes values as they are; True encodes each field by its extension first, so that readers
            decode it as they would one of a tar shard; or a dict of encoders, or a function of samples.
        keep_meta: write fields that start with an underscore; without it ``__key__`` alone of these.
        items: "samples" takes dicts with a ``__key__``; "any" takes any value.
        compresslevel: level of the compression; None is a good compromise.
        overwrite: replace a local file that is there already; False raises instead.

    Attributes:
        stream: the file object that receives the bytes.

    Raises:
        UsageError: an argument that cannot mean anything.
        SourceError: the target cannot be opened.
        MissingExtra: format or compression need a package that is not installed.
    """

    def __init__(
        self,
        target: object,
        format: str | None = None,  # noqa: A002  as TarWriter's
        *,
        compress: bool | str | None = None,
        encoder: object = False,
        keep_meta: bool = False,
        items: str = "samples",
        compresslevel: int | None = None,
        overwrite: bool = True,
    ) -> None:
        self.url = str(target) if isinstance(target, (str, os.PathLike)) else None
        self.format = record_format(self.url) if format is None else format
        if self.format not in _FORMATS:
            raise UsageError(f"format={format!r} is unknown: pass 'cbor' or 'msgpack'", url=self.url)
        if items not in ("samples", "any"):
            raise UsageError(f"items={items!r} is unknown: pass 'samples' or 'any'", url=self.url)
        # only who writes records pays for the codecs, and for numpy
        self._dumps: Callable[[object], bytes] = _load_codec("webdataset.codecs.msgpack_cbor", _FORMATS[self.format])
        # a missing package shows here, not at the first sample
        self._dumps(None)
        self.compress = choose_compression(compress, self.url)
        self.keep_meta, self.items = keep_meta, items
        self._encoder = _load_codec("webdataset.codecs", "make_encoder")(encoder)
        engine = make_compressor(self.compress, compresslevel) if self.compress else None
        output = open_output(target, overwrite=overwrite)
        self.stream = output.stream
        self._begin(output if engine is None else CompressedOutput(output, engine))

    def write(self, sample: object) -> int:
        """Write one sample; return the bytes of its item.

        Args:
            sample: fields to values, and ``__key__``.

        Raises:
            SampleError: no dict, or one without a key. Nothing of the sample is written; the writer can continue.
            EncodingError: a value that the format does not have; likewise.
            SourceError: the output failed; the writer cannot continue, and the shard will not appear.
            UsageError: the writer is closed.
        """
        if self._state != "open":
            raise UsageError(f"this writer is {self._state}: no sample can be added", url=self.url)
        key = sample.get("__key__") if isinstance(sample, Mapping) else None
        places: dict[str, Any] = {"key": key if isinstance(key, str) else None, "url": self.url}
        try:
            record = self._record(sample, key) if self.items == "samples" else sample
            item = self._dumps(record)
        except (SampleError, EncodingError, MissingExtra) as error:
            raise error.locate(**places)  # noqa: B904  the same error, with its places
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodingError(f"{self.format} cannot hold this sample: {describe_error(error)}", **places) from error
        self._pieces.append(item)
        self._gathered += len(item)
        self._count += 1
        if self._gathered >= GATHERED_BYTES or len(self._pieces) >= GATHERED_PIECES:
            self._hand_on()
        return len(item)

    def _record(self, sample: object, key: object) -> dict[str, Any]:
        if not isinstance(key, str) or not key:
            shown = f"one with the key {key!r:.80}" if isinstance(sample, Mapping) else type(sample).__name__
            raise SampleError(f"a sample is a dict with text as __key__, not {shown}; items='any' takes any value")
        encoded = self._encoder(sample)
        record = {}
        for name, value in encoded.items():
            if not isinstance(name, str):
                raise SampleError(f"the fields of a sample have names that are text, not {name!r:.80}")
            if self.keep_meta or name == "__key__" or not name.startswith("_"):
                record[name] = value
        return record


class RecordShardWriter(ShardWriter):
    """Write samples to a series of record shards; like :class:`ShardWriter`, with a :class:`RecordWriter` a shard.

    Args:
        pattern: name of the shards, with ``%06d`` or ``{shard:06d}`` where the number goes.
        *args: as for :class:`ShardWriter`.
        **kw: as for :class:`ShardWriter` and :class:`RecordWriter`; ``maxsize`` counts bytes of items. There are no
            index files of record shards.

    Raises:
        UsageError: a pattern, bound or option that cannot mean anything.
    """

    _shard_writer = RecordWriter

    def __init__(self, pattern: Any, *args: Any, **kw: Any) -> None:
        if kw.get("index") is not None:
            raise UsageError("there are no index files of record shards: leave index= out")
        super().__init__(pattern, *args, **kw)

    def _writer(self, target: Any) -> Any:
        options = {"format": record_format(self.fname), **self.kw} if self.kw.get("format") is None else self.kw
        return RecordWriter(target, **options)
