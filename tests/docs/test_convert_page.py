"""What docs/convert.md types into a shell prints what the page says."""

import re
from pathlib import Path

from support.command import shell

PAGE = Path(__file__).resolve().parents[2] / "docs" / "convert.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_commands_print_what_the_page_shows(pages, tmp_path, monkeypatch):
    """The commands run one after the other, in a directory with the table that the page makes."""
    monkeypatch.chdir(tmp_path)
    pages.run(PAGE)
    count = 0
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            done = shell(f"exec 2>&1; {command}", tmp_path)
            assert done.stdout.decode() == output, command
            count += 1
    assert count == 7
