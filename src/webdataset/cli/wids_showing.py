"""The verbs of ``wids-index`` that read: info and sample.

Flows in: parsed command lines. Flows out: text or JSON on stdout.
"""

import argparse
import io
import json
import sys
from typing import Any

from webdataset.ground.errors import MissingField
from webdataset.ground.redaction import redacted
from webdataset.index.wids.dataset import ShardListDataset
from webdataset.shards.wids.document import WidsIndex
from webdataset.shards.wids.reading import read_wids_json

_UNITS = ("", "k", "M", "G", "T", "P")


def info(chosen: argparse.Namespace) -> int:
    """Show what indexes say.

    Args:
        chosen: the command line.

    Returns:
        The exit status.

    Raises:
        NotFound: no such index.
        FormatError: it is none.
    """
    for name in chosen.filenames:
        index = read_wids_json(sys.stdin.buffer if name == "-" else name)
        summary = _summary(name, index)
        if chosen.json:
            print(json.dumps(summary))
        elif chosen.table:
            print(
                f"{summary['name'] or '-':<20} {summary['shards']:>8} shards {suffixed(summary['samples']):>8} samples "
                f"{suffixed(summary['bytes']):>8}B  {redacted(name)}"
            )
        else:
            _long(summary, index)
    return 0


def _summary(name: str, index: WidsIndex) -> dict[str, Any]:
    sizes = [shard.filesize for shard in index.shards]
    return {
        "file": name,
        "name": index.name,
        "base": index.document.get("base"),
        "keep": index.document.get("keep"),
        "shards": len(index.shards),
        "samples": index.nsamples,
        "bytes": sum(size or 0 for size in sizes),
        "shards_without_size": sum(size is None for size in sizes),
        "datasets": sorted({shard.dataset for shard in index.shards if shard.dataset}),
        "info": index.document.get("info"),
    }


def _long(summary: dict[str, Any], index: WidsIndex) -> None:
    for name, value in summary.items():
        if value not in (None, [], "") and name != "info":
            print(f"{name + ':':<22}{', '.join(value) if isinstance(value, list) else redacted(str(value))}")
    if index.shards:
        print(f"{'first:':<22}{redacted(index.shards[0].url)}")
        print(f"{'last:':<22}{redacted(index.shards[-1].url)}")
    if summary["info"]:
        print(f"\n{str(summary['info']).rstrip()}")


def sample(chosen: argparse.Namespace) -> int:
    """Show one sample.

    Args:
        chosen: the command line.

    Returns:
        The exit status.

    Raises:
        NoSuchSample: there is no such number.
        MissingField: it has no such field.
        SourceError: its shard cannot be read.
        DecodingError: a field does not decode.
    """
    raw = chosen.raw or chosen.cat is not None
    with ShardListDataset(chosen.filename, transformations=None if raw else "PIL") as dataset:
        found = dataset[chosen.index]
    if chosen.cat is not None:
        field = chosen.cat if chosen.cat in found else "." + chosen.cat
        if field not in found:
            fields = " ".join(name for name in found if name.startswith("."))
            raise MissingField(f"the sample has no field {chosen.cat!r}; it has {fields}", key=found["__key__"])
        value = found[field]
        sys.stdout.flush()
        sys.stdout.buffer.write(value.getvalue() if isinstance(value, io.BytesIO) else str(value).encode())
        sys.stdout.buffer.flush()
    elif chosen.json:
        print(json.dumps(found, default=_as_json))
    elif chosen.python:
        print(repr({name: _bytes(value) for name, value in found.items()}))
    else:
        for name, value in found.items():
            print(f"{name:<20} {shortened(_shown(value), chosen.width)}")
    return 0


def _bytes(value: Any) -> Any:
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} {getattr(value, 'dtype', '')}{list(shape)}"
    return repr(_bytes(value))


def _as_json(value: Any) -> Any:
    if isinstance(value, io.BytesIO):
        return {"bytes": len(value.getvalue())}
    return _shown(value)


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where it was cut.

    Args:
        text: any text.
        width: columns.
    """
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def suffixed(number: float) -> str:
    """Return a number in thousands, millions and so on.

    Args:
        number: from 0.
    """
    for unit in _UNITS[:-1]:
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}{_UNITS[-1]}"
