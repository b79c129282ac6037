"""``wids-index``: makes, changes and shows shard indexes in wids JSON.

Shards and index files are named on the command line. The verbs info and sample, which read, are here; create and
update, which write, in :mod:`webdataset.cli.wids_create`. An index file is replaced whole or not at all. Exit status:
0 done, 1 something could not be read or is malformed, 2 the command line is wrong, 3 done, but some shards failed and
were left out (``--skip-bad``).
"""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from webdataset.cli import exit_status
from webdataset.core.errors import MissingField, UsageError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.index.wids.dataset import ShardListDataset
from webdataset.shards.wids_index import WidsIndex, read_wids_json

DONE, FAILED, WRONG, PARTIAL = 0, 1, 2, 3


def make_parser(program: str = "wids-index") -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        program: its name, for messages.
    """
    # under the name of the command, its exit statuses hold
    failed, partial = (exit_status.FAILED, exit_status.PARTIAL) if program.startswith("wds ") else (FAILED, PARTIAL)
    top = argparse.ArgumentParser(
        prog=program,
        description="Shard indexes in wids JSON.",
        epilog=_EPILOG.format(program=program, failed=failed, partial=partial),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", metavar="{create,update,info,sample}", required=True)
    _add_create(verbs)
    _add_update(verbs)
    _add_info(verbs)
    _add_sample(verbs)
    return top


_EPILOG = """\
Examples:
  {program} create train-{{000..099}}.tar -o train.json
  {program} info train.json
  {program} sample train.json 17 -c jpg > 17.jpg

Exit status: 0 done; {failed} failed; 2 wrong command line; {partial} done, but some shards were left out (--skip-bad).
"""


def _add_create(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    create = verbs.add_parser("create", help="index shards", description="Count the samples of shards.")
    create.add_argument("files", nargs="+", help="shards: paths, urls, braces, globs; - reads names from stdin")
    create.add_argument("-o", "--output", default="shardindex.json", help="index to write (%(default)s; - is stdout)")
    create.add_argument("-n", "--name", help="name of the dataset")
    create.add_argument("-i", "--info", help="file with a description of the dataset")
    create.add_argument("-b", "--base", help="where the shards are published: what urls in the index are joined to")
    create.add_argument("-k", "--keep", action="store_true", help="set the flag 'keep'")
    create.add_argument("-j", "--jobs", type=int, default=4, help="shards read at the same time (%(default)s)")
    create.add_argument("--no-md5", action="store_true", help="read headers only: no md5sum of each shard")
    create.add_argument("--skip-bad", action="store_true", help="leave shards out that cannot be read")
    create.add_argument("--as-given", action="store_true", help="write urls as given, not relative to the index")
    create.add_argument("--json", action="store_true", help="print a summary as JSON")


def _add_update(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    update = verbs.add_parser("update", help="change an index", description="Change an index; keeps FILE.bak.")
    update.add_argument("filename", help="index to change")
    update.add_argument("-n", "--name", help="set the name of the dataset")
    keep = update.add_mutually_exclusive_group()
    keep.add_argument("-k", "--keep", dest="keep", action="store_true", default=None, help="set the flag 'keep'")
    keep.add_argument("-K", "--nokeep", dest="keep", action="store_false", help="clear the flag 'keep'")
    update.add_argument("-i", "--info", help="a description of the dataset, or a file with one")
    where = update.add_mutually_exclusive_group()
    where.add_argument("-D", "--nodir", action="store_true", help="remove the directory from the urls")
    where.add_argument("-d", "--dir", help="set the directory of the urls")
    update.add_argument("-b", "--base", help="set the base")
    where.add_argument("-B", "--rebase", action="store_true", help="join the urls to the base, and drop the base")
    update.add_argument("--json", action="store_true", help="print a summary as JSON")


def _add_info(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    info = verbs.add_parser("info", help="show an index", description="Show what indexes say.")
    info.add_argument("filenames", nargs="+", help="index files or urls; - is stdin")
    info.add_argument("-t", "--table", action="store_true", help="one line an index")
    info.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _add_sample(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sample = verbs.add_parser("sample", help="show a sample", description="Show one sample of an index.")
    sample.add_argument("filename", help="index file or url")
    sample.add_argument("index", type=int, help="number of the sample; negative ones count from the end")
    sample.add_argument("-r", "--raw", action="store_true", help="do not decode: show bytes")
    sample.add_argument("-p", "--python", action="store_true", help="print a Python dict")
    sample.add_argument("-c", "--cat", metavar="FIELD", help="write the bytes of one field to stdout")
    sample.add_argument("-w", "--width", type=int, default=80, help="columns of a shown value (%(default)s)")
    sample.add_argument("--json", action="store_true", help="print JSON: values that are JSON, else their sizes")


def main(argv: Sequence[str] | None = None, *, program: str = "wids-index") -> int:
    """Run the program.

    Args:
        argv: the command line after the program's name; by default the process's.
        program: its name, for messages.

    Returns:
        The exit status.
    """
    chosen = make_parser(program).parse_args(argv)
    home = import_module("webdataset.cli.wids_create" if chosen.verb in ("create", "update") else f"{_SHOWING}")
    try:
        status: int = getattr(home, chosen.verb)(chosen)
    except BrokenPipeError:
        sys.stderr.close()  # its reader has gone
        return DONE
    except UsageError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return WRONG
    except (WebDatasetError, OSError, UnicodeDecodeError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED
    return status


_SHOWING = "webdataset.cli.wids_index"


def run() -> None:
    """Run as a console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()


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
        summary = _summarize(name, index)
        if chosen.json:
            print(json.dumps(summary))
        elif chosen.table:
            print(
                f"{summary['name'] or '-':<20} {summary['shards']:>8} shards {format_count(summary['samples']):>8} "
                "samples "
                f"{format_count(summary['bytes']):>8}B  {redact(name)}"
            )
        else:
            _print_summary(summary, index)
    return 0


def _summarize(name: str, index: WidsIndex) -> dict[str, Any]:
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


def _print_summary(summary: dict[str, Any], index: WidsIndex) -> None:
    for name, value in summary.items():
        if value not in (None, [], "") and name != "info":
            print(f"{name + ':':<22}{', '.join(value) if isinstance(value, list) else redact(str(value))}")
    if index.shards:
        print(f"{'first:':<22}{redact(index.shards[0].url)}")
        print(f"{'last:':<22}{redact(index.shards[-1].url)}")
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
            print(f"{name:<20} {shorten(_format_value(value), chosen.width)}")
    return 0


def _bytes(value: Any) -> Any:
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def _format_value(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} {getattr(value, 'dtype', '')}{list(shape)}"
    return repr(_bytes(value))


def _as_json(value: Any) -> Any:
    if isinstance(value, io.BytesIO):
        return {"bytes": len(value.getvalue())}
    return _format_value(value)


def shorten(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where it was cut.

    Args:
        text: any text.
        width: columns.
    """
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def format_count(number: float) -> str:
    """Return a number in thousands, millions and so on.

    Args:
        number: from 0.
    """
    for unit in _UNITS[:-1]:
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}{_UNITS[-1]}"
