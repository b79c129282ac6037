"""What the pages about the command ``wds`` type into a shell prints what the pages say."""

import re
from pathlib import Path

import pytest

from support.command import shell
from webdataset.cli import exit_status, main

PAGES = Path(__file__).resolve().parents[2] / "docs"
PAGE = PAGES / "command-line.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(block):
    """Each command of a block, with the output that follows it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@pytest.mark.parametrize(("name", "least"), [("command-line.md", 7), ("expressions.md", 3), ("reshape.md", 20)])
def test_commands_print_what_the_page_shows(pages, tmp_path, monkeypatch, name, least):
    """The commands run one after the other, in a directory with the shards that the page makes."""
    monkeypatch.chdir(tmp_path)
    pages.run(PAGES / name)
    count = 0
    for block in BLOCK.findall((PAGES / name).read_text(encoding="utf-8")):
        for command, output in commands(block):
            done = shell(f"exec 2>&1; {command}", tmp_path)
            assert done.stdout.decode() == output, command
            count += 1
    assert count >= least


def test_table_of_statuses_is_that_of_the_command():
    """The page has the one table of exit statuses, word for word."""
    text = PAGE.read_text(encoding="utf-8")
    for status, meaning in exit_status.TABLE.items():
        assert f"| {status} | {meaning} |" in text


def test_every_command_is_named():
    """No command is missing on the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name in main.list_commands():
        assert f"`wds {name}" in text, name
