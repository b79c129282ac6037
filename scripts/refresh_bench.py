"""Copy the tables of the last ``make bench`` or ``make bench-peers`` into their pages, between marks.

``refresh_bench.py`` rewrites the block ``<!-- bench -->`` of docs/benchmarks.md, ``refresh_bench.py peers`` the block
``<!-- peers -->`` of docs/peers.md.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"bench": ("table.py", "benchmarks.md"), "peers": ("peers_speed.py", "peers.md")}


def main() -> None:
    """Rewrite the block in place."""
    mark = sys.argv[1] if len(sys.argv) > 1 else "bench"
    script, name = SOURCES[mark]
    command = [sys.executable, str(ROOT / "bench" / script), "--last"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not text.startswith("|"):
        sys.exit("no figures: run make bench or make bench-peers first")
    page = ROOT / "docs" / name
    before = page.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    after, count = block.subn(lambda found: found[1] + text + found[2], before)
    if count != 1:
        sys.exit(f"docs/{name} has no <!-- {mark} --> block")
    page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
