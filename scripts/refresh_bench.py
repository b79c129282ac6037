"""Copy the table of the last ``make bench`` into docs/benchmarks.md, between its ``<!-- bench -->`` marks."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)


def main() -> None:
    """Rewrite the block in place."""
    command = [sys.executable, str(ROOT / "bench" / "table.py"), "--last"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not text.startswith("|"):
        sys.exit("no figures: run make bench first")
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_text(encoding="utf-8")
    after, count = BLOCK.subn(lambda found: found[1] + text + found[2], before)
    if count != 1:
        sys.exit("docs/benchmarks.md has no <!-- bench --> block")
    page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
