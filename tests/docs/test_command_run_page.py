"""What docs/command-run.md and docs/simulate.md type into a shell prints what the pages say."""

import re
from pathlib import Path

import pytest

from support.command import shell
from webdataset.cli.main import SECTIONS

PAGES = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(block):
    """Each command of a block, with the output that follows it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@pytest.mark.parametrize(("name", "least"), [("command-run.md", 7), ("simulate.md", 3)])
def test_commands_print_what_the_page_shows(tmp_path, monkeypatch, name, least):
    """Python blocks and commands run one after the other, as they stand on the page."""
    monkeypatch.chdir(tmp_path)
    names = {}
    count = 0
    for kind, block in BLOCK.findall((PAGES / name).read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(block, name, "exec"), names)  # noqa: S102  the page's own code
            continue
        for command, output in commands(block):
            done = shell(f"exec 2>&1; {command}", tmp_path)
            assert done.stdout.decode() == output, command
            count += 1
    assert count >= least


def test_every_command_of_the_section_is_named():
    """No command of the section Run is missing on the page."""
    text = (PAGES / "command-run.md").read_text(encoding="utf-8")
    for name in SECTIONS["Run"]:
        assert f"`wds {name}" in text, name
