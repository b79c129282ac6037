"""What docs/tarp.md types into a shell prints what the page says."""

import re
from pathlib import Path

from support.command import run_wds, shell

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tarp.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_commands_print_what_the_page_shows(tmp_path):
    """The commands run one after the other, in one directory."""
    count = 0
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            done = shell(f"exec 2>&1; {command}", tmp_path)
            assert done.stdout.decode() == output, command
            count += 1
    assert count >= 25


def test_every_option_is_one_of_the_command():
    """Commands that tables of the page name as tarp's have the options that it says."""
    text = PAGE.read_text(encoding="utf-8")
    for command in ("create", "cat", "proc", "sort", "split"):
        assert f"`wds tarp {command}`" in text
        accepted = run_wds("tarp", command, "--help").stdout.decode()
        for option in re.findall(rf"`wds tarp {command} (--?\w+)", text):
            assert option in accepted
