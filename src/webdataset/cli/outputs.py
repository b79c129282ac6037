"""What commands write: nothing is replaced without ``--force``, and each file appears whole or not at all."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from webdataset.cli import console
from webdataset.core.errors import AlreadyExists, NotFound, UsageError


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--force`` and ``--dry-run`` to a command.

    Args:
        command: takes ``force`` and ``dry_run``.
    """
    force = click.option("-F", "--force", is_flag=True, help="Replace what is there already.")
    dry_run = click.option("-n", "--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
    return functools.reduce(lambda inner, option: option(inner), (dry_run, force), command)


def check_target(target: str, *, force: bool) -> None:
    """Refuse to replace what is there, and to write an archive to a terminal.

    Args:
        target: a path, a url, or ``-``.
        force: replace what is there.

    Raises:
        AlreadyExists: something is there, and ``force`` is false.
        UsageError: standard output is a terminal.
    """
    from webdataset.storage.open_url import find_backend, open_url, rewrite_url  # noqa: PLC0415  after --help
    from webdataset.writing.local_file import is_special  # noqa: PLC0415
    from webdataset.writing.outputs import local_path  # noqa: PLC0415

    if target == "-":
        if sys.stdout.isatty():
            raise UsageError("an archive is not written to a terminal: give -o FILE, or a pipe")
        return
    if force:
        return
    path = local_path(target)
    if path is not None:
        import os  # noqa: PLC0415

        there = os.path.lexists(path) and not is_special(path)
    elif find_backend(rewrite_url(target)) is None:
        there = False  # a command, or an opener of the user's: whether it replaces anything, it alone knows
    else:
        try:
            with open_url(target) as stream:
                stream.read(1)
            there = True
        except NotFound:
            there = False
    if there:
        raise AlreadyExists("this is there already: give another name, or --force to replace it", url=target)


def write_text_file(target: str, text: str, *, force: bool, dry_run: bool) -> None:
    """Write a text, whole or not at all.

    Args:
        target: a path or url; ``-`` is standard output.
        text: the text.
        force: replace what is there.
        dry_run: say so only.

    Raises:
        AlreadyExists: something is there, and ``force`` is false.
        SourceError: it cannot be written.
    """
    from webdataset.writing.outputs import open_output  # noqa: PLC0415  after --help

    if target == "-":
        console.write_line(text.rstrip("\n"))
        return
    check_target(target, force=force)
    content = text.encode("utf-8", "surrogateescape")
    if dry_run:
        console.say(f"would write {target} ({len(content)} bytes)")
        return
    output = open_output(target)
    try:
        output.write((content,), len(content))
        output.commit()
    except BaseException:  # whatever it is: nothing may stay behind
        output.abort()
        raise
