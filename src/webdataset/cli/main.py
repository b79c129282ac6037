"""The command ``wds``: finds the subcommand, loads it, and turns errors into messages and an exit status.

Theory. :data:`SECTIONS` names every command with one line of help, so that ``wds --help`` loads no command. A command
is a ``click`` command in a module of this folder, under its own name with ``_command`` added. What it returns is the
exit status; None is 0. Errors of the library, of the system and of the command line become one short message on
standard error; ``WDS_FULL_TRACEBACKS=1`` shows the traceback too.

Neither torch nor numpy is imported here.
"""

import importlib
import inspect
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from webdataset.cli import exit_status

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Look": {
        "ls": ("ls", "List samples, or members."),
        "head": ("ls", "Show the first samples, field by field."),
        "info": ("info", "Count samples, and say which fields they have and how large these are."),
        "grep": ("grep", "Find the samples for which an expression holds."),
        "diff": ("grep", "Compare two datasets sample by sample."),
        "show": ("show", "Show samples in the terminal: images, texts, documents."),
        "view": ("view", "Show shards in a browser: samples, statistics, findings, batches."),
    },
    "Trust": {
        "check": ("check", "Tell what is wrong with shards; write repaired copies."),
    },
    "Make": {
        "create": ("create", "Make shards of folders, tables and recipes."),
        "convert": ("convert", "Convert Parquet, Arrow, HF datasets, TFRecord, MDS, folders to shards and back."),
        "cat": ("cat", "Join shards into one, or write the bytes of fields."),
        "split": ("cat", "Cut shards into numbered ones of so many samples or bytes."),
        "select": ("cat", "Keep some samples and fields, and rename fields."),
        "reshard": ("reshard", "Write all samples to N shards, in order or shuffled."),
        "shuffle": ("reshard", "Write samples in random order, with bounded memory."),
        "sort": ("reshard", "Write samples sorted by an expression, with bounded memory."),
        "join": ("reshard", "Join datasets by key."),
        "mix": ("reshard", "Mix the sources of a dataset specification."),
        "proc": ("process", "Run a shell command for each sample."),
        "map": ("process", "Call a Python function with each sample."),
        "tarp": ("tarp", "Run tarp's commands: create, cat, proc, sort, split."),
        "columns": ("columns", "Write columns files, by which where= reads only the samples that may match."),
        "recompress": ("process", "Write shards in another compression."),
    },
    "Run": {
        "plan": ("plan", "Say what each rank and worker will read, and warn of what is uneven."),
        "shuffle-quality": ("shuffle_quality", "Measure how well a shuffle mixes, of shards or of numbers alone."),
        "simulate": ("simulate", "Forecast a training job: speed and its limit, requests, memory, start, failures."),
        "bench": ("bench", "Measure how fast shards are read, decoded, batched and loaded here."),
        "cache": ("cache", "Look into a shard cache, check it, make it smaller, fill it."),
        "serve": ("serve", "Make batches for trainers on other machines; keys for that."),
        "doctor": ("doctor", "Say what is installed, what this machine offers, and what is wrong."),
        "config": ("config", "Check how urls are opened: profile, endpoint, credentials, proxy."),
        "state": ("state", "Show a saved state, trace which samples a run delivers, move a state on."),
    },
    "Other": {
        "index": ("index", "Make, change and show shard indexes (wids JSON)."),
        "schema": ("schema", "Print the JSON schema of a command's --json output."),
    },
}
"""Section to command to its module and its line of help."""


def list_commands() -> dict[str, tuple[str, str]]:
    """Return every command: its module in this folder, and its line of help."""
    return {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def load_command(name: str) -> click.Command:
    """Return a command.

    Args:
        name: as it is typed.
    """
    module = importlib.import_module(f"{__package__}.{list_commands()[name][0]}")
    command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
    for inner in getattr(command, "commands", {}).values():
        keep_examples(inner)
    return keep_examples(command)


def keep_examples(command: click.Command) -> click.Command:
    """Let the lines of a command's examples stay lines in its help.

    Args:
        command: its help ends with a paragraph that begins with ``Examples:``.
    """
    # click's mark for a paragraph that is not wrapped
    command.help = inspect.cleandoc(command.help or "").replace("\n\nExamples:", "\n\n\b\nExamples:")
    return command


# commands of other programs
_INSTEAD = {
    "concat": ["cat"],
    "count": ["info"],
    "filter": ["select"],
    "list": ["ls"],
    "merge": ["cat"],
    "validate": ["check"],
    "verify": ["check"],
    "version": ["--version"],
}


class WdsGroup(click.Group):
    """A group that loads a command when it is called, and shows its commands by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names of all commands."""
        return list(list_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Load a command, or return None where there is none of this name."""
        return load_command(cmd_name) if cmd_name in list_commands() else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; a wrong name is answered with the nearest one."""
        name = args[0]
        if name not in list_commands() and not name.startswith("-"):
            import difflib  # noqa: PLC0415  only for a name that is wrong

            near = _INSTEAD.get(name.lower()) or difflib.get_close_matches(name.lower(), list_commands(), 1)
            hint = f" Did you mean {near[0]!r}?" if near else " 'wds --help' lists the commands."
            ctx.fail(f"there is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; its errors become a message and a status here, for click takes some of them for its own."""
        from webdataset.core.errors import WebDatasetError  # noqa: PLC0415  --help needs none of it

        try:
            return super().invoke(ctx)
        except (WebDatasetError, OSError, UnicodeDecodeError, KeyboardInterrupt) as error:
            return _report(error)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's signature
        """Write the commands by section, without loading them."""
        width = max(map(len, list_commands()))
        for section, commands in SECTIONS.items():
            if commands:
                with formatter.section(section):
                    formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's signature
        """Write how inputs are named, and the exit status."""
        with formatter.section("Inputs"):
            formatter.write_text(
                "Shards are paths, urls of any scheme, braces (train-{000..099}.tar), wildcards ('*.tar'), lists with "
                "'::' between, @list.txt (one a line), directories, dataset specifications and wids indexes "
                "(.yaml, .json), or - for standard input."
            )
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), text) for status, text in exit_status.TABLE.items()])


@click.group(cls=WdsGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="webdataset", prog_name="wds")
def wds() -> None:
    """Make, look into, check and reshape shards of WebDataset.

    Examples:
      wds info train-{000..099}.tar
      wds ls -l shard.tar | head
      wds cat --key 0001 --field json shard.tar
      wds reshard --shards 10 --shuffle -o new-%04d.tar 'old-*.tar'
    """


keep_examples(wds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``wds`` in this process.

    Args:
        arguments: the command line after the program's name; by default the process's.

    Returns:
        The exit status; 130 and 141 where a signal should end the process.
    """
    from webdataset.cli import console  # noqa: PLC0415  completion needs none of it

    console.prepare_streams()
    try:
        status = wds.main(args=None if arguments is None else list(arguments), prog_name="wds", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = exit_status.WRONG_USE
    except (KeyboardInterrupt, click.Abort):
        status = exit_status.INTERRUPTED
    except OSError as error:
        # click writes help and version before a command is invoked
        status = _give_up_stdout(error)
    return int(status or 0) or _finish()


def _finish() -> int:
    """Write what is gathered for standard output; return the exit status."""
    from webdataset.cli import console  # noqa: PLC0415  as above

    try:
        console.flush_stdout()
    except BrokenPipeError:
        return console.drop_stdout()
    except OSError as error:
        return _give_up_stdout(error)
    return exit_status.DONE


def _give_up_stdout(error: OSError) -> int:
    """Say why standard output cannot be written; return the exit status."""
    from webdataset.cli import console  # noqa: PLC0415  as above

    console.say(f"standard output: {error.strerror or error}")
    console.drop_stdout()
    return exit_status.FAILED


def _report(error: BaseException) -> int:
    """Say what ended a command; return the exit status."""
    from webdataset.cli import console  # noqa: PLC0415  as above

    if isinstance(error, BrokenPipeError):
        return console.drop_stdout()
    if isinstance(error, KeyboardInterrupt):
        console.say("interrupted")
        return exit_status.INTERRUPTED
    console.report_error(error)
    from webdataset.core.errors import UsageError  # noqa: PLC0415

    return exit_status.WRONG_USE if isinstance(error, UsageError) else exit_status.FAILED


def _interrupt_by_signals() -> list[int]:
    """Let SIGTERM and SIGHUP interrupt a command as Ctrl-C does, so that it removes what it has begun.

    Returns:
        A list that gets the signal that came. A second one ends the program at once.
    """
    owner, received = os.getpid(), list[int]()

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:
            # a forked child has nothing to remove: its parent ends it
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # under nohup SIGHUP is ignored
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)
    return received


def run() -> None:
    """Run as a program: where a signal ends it, it ends as by that signal, so that shells and make notice."""
    received = _interrupt_by_signals()
    status = main()
    fatal: dict[int, Any] = {
        exit_status.INTERRUPTED: received[0] if received else signal.SIGINT,
        exit_status.PIPE_CLOSED: getattr(signal, "SIGPIPE", None),
    }
    number = fatal.get(status)
    if number is not None and os.name == "posix":
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(status)


if __name__ == "__main__":
    run()
