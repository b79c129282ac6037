"""``wids-index``: make, change and look at shard indexes in wids JSON.

Flows in: shards and index files, named on the command line. Flows out: index files, and text or JSON. An index file is
replaced whole or not at all. Exit status: 0 done, 1 something could not be read or is not what it should be, 2 the
command line is wrong, 3 done, but some shards failed and were left out (``--skip-bad``).
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from webdataset.ground.errors import UsageError, WebDatasetError

DONE, FAILED, WRONG, PARTIAL = 0, 1, 2, 3


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="wids-index", description="Shard indexes in wids JSON.", epilog=_EPILOG)
    verbs = top.add_subparsers(dest="verb", metavar="{create,update,info,sample}", required=True)
    _create(verbs)
    _update(verbs)
    _info(verbs)
    _sample(verbs)
    return top


_EPILOG = "Exit status: 0 done; 1 failed; 2 wrong command line; 3 done, but some shards were left out (--skip-bad)."


def _create(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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


def _update(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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


def _info(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    info = verbs.add_parser("info", help="show an index", description="Show what indexes say.")
    info.add_argument("filenames", nargs="+", help="index files or urls; - is stdin")
    info.add_argument("-t", "--table", action="store_true", help="one line an index")
    info.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _sample(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sample = verbs.add_parser("sample", help="show a sample", description="Show one sample of an index.")
    sample.add_argument("filename", help="index file or url")
    sample.add_argument("index", type=int, help="number of the sample; negative ones count from the end")
    sample.add_argument("-r", "--raw", action="store_true", help="do not decode: show bytes")
    sample.add_argument("-p", "--python", action="store_true", help="print a Python dict")
    sample.add_argument("-c", "--cat", metavar="FIELD", help="write the bytes of one field to stdout")
    sample.add_argument("-w", "--width", type=int, default=80, help="columns of a shown value (%(default)s)")
    sample.add_argument("--json", action="store_true", help="print JSON: values that are JSON, else their sizes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: the command line after the program's name; by default the process's.

    Returns:
        The exit status.
    """
    chosen = parser().parse_args(argv)
    home = import_module("webdataset.cli.wids_making" if chosen.verb in ("create", "update") else f"{_SHOWING}")
    try:
        status: int = getattr(home, chosen.verb)(chosen)
    except BrokenPipeError:
        sys.stderr.close()  # nobody listens any more
        return DONE
    except UsageError as error:
        print(f"wids-index: {error}", file=sys.stderr)
        return WRONG
    except (WebDatasetError, OSError, UnicodeDecodeError) as error:
        print(f"wids-index: {error}", file=sys.stderr)
        return FAILED
    return status


_SHOWING = "webdataset.cli.wids_showing"


def run() -> None:
    """Run as a console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
