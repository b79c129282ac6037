"""Commands that stand in the prose of README and documentation exist, with the options that are named."""

import re
import shlex
from pathlib import Path

import click
import pytest

from webdataset.cli.main import wds as group

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
INDENTED = re.compile(r"^    (wds .*?)(?:  +#.*)?$", re.MULTILINE)


def commands():
    """Every command of the prose, and the first page that holds it."""
    found = {}
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for words in [*CODE.findall(text), *INDENTED.findall(text)]:
            words = " ".join(words.split())
            if re.match(r"wds [a-z]", words):
                found.setdefault(words, str(page.relative_to(ROOT)))
    return found


COMMANDS = commands()


def test_there_are_many():
    """The pages are searched at all."""
    assert len(COMMANDS) > 60


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_prose(words):
    """It is a command, a subcommand where it has any, and its options are known."""
    place = f"{words!r} in {COMMANDS[words]}"
    _, *rest = shlex.split(words.replace("\u2026", "..."), comments=True)
    context = click.Context(group, info_name="wds")
    command = group
    while isinstance(command, click.Group) and rest:
        named = command.get_command(context, rest[0]) is not None or "run" not in command.commands
        name = rest.pop(0) if named else "run"  # what wds serve does with the name of a dataset
        inner = command.get_command(context, name)
        assert inner is not None, f"{place}: no command {name!r}"
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= set(context.help_option_names) | {"--help"}
    for word in rest:
        if word in ("|", "&&", ";", ">"):
            break
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in options, f"{place}: no option {word}"
