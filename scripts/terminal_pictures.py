"""Record commands in a terminal as SVG, for the documentation: ``terminal_pictures.py [--check]``.

The shards are drawn here, the commands run for real in a terminal of 88 columns, and what they print becomes
``docs/pictures/terminal-*.svg``. With ``--check`` nothing is written: the command fails where the words of a recording
are no longer those that the commands print. Figures and colours are not compared, for JPEGs may differ by a byte
between processors.
"""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from viewer_pictures import SKIES, draw_landscape

import webdataset as wds

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLUMNS = 88
SESSIONS: Final = {
    "terminal-look": (
        "What is in these shards: wds ls, info and show",
        [
            "wds ls -l scenes-0000.tar | head -3",
            "wds info 'scenes-*.tar'",
            "wds show --key 000031 --width 40 scenes-0001.tar",
        ],
    ),
    "terminal-check": (
        "A damaged field and a cut shard: wds check finds and repairs",
        [
            "wds check 'broken-*.tar'",
            "wds check --fix repaired/ 'broken-*.tar' | tail -1",
            "wds check repaired/",
        ],
    ),
    "terminal-reshard": (
        "A global shuffle, and a choice of samples: wds reshard and select",
        [
            "wds reshard --shards 2 --shuffle --seed 1 -o mixed-%04d.tar 'scenes-*.tar'",
            "wds ls 'mixed-*.tar' | head -4",
            """wds select --where 'json.sky == "dusk" and json.hour > 18' -o dusk.tar 'mixed-*.tar'""",
            "wds info dusk.tar",
        ],
    ),
}
THEME = TerminalTheme(
    (24, 28, 38),
    (226, 230, 238),
    [(60, 66, 80), (240, 120, 120), (140, 200, 130), (230, 190, 110), (120, 170, 240), (200, 150, 230), (110, 200, 200),
     (226, 230, 238)],
)  # fmt: skip
# rich's own frame asks a server for its font
FRAME: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} HEIGHT" role="img">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
    font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
<rect width="{width}" height="HEIGHT" rx="10" fill="#181c26"/>
<g transform="translate({terminal_x}, 10)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
TEXT = re.compile(r'<text [^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', re.DOTALL)


def write_shards(folder: Path) -> None:
    """Write three shards of drawn landscapes, and copies of them with damage."""
    random = np.random.default_rng(7)
    skies = list(SKIES)
    for shard in range(3):
        with wds.TarWriter(str(folder / f"scenes-{shard:04d}.tar")) as sink:
            for number in range(shard * 20, shard * 20 + 20):
                sky = skies[number % 5]
                stream = io.BytesIO()
                draw_landscape(random, sky, 240, 160).save(stream, "JPEG", quality=85)
                about = {"sky": sky, "hour": int(random.integers(0, 24))}
                sink.write({"__key__": f"{number:06d}", "jpg": stream.getvalue(), "json": about, "cls": number % 5})
        content = bytearray((folder / f"scenes-{shard:04d}.tar").read_bytes())
        if shard == 1:
            image = content.index(b"\xff\xd8\xff", 20_000)
            content[image : image + 3] = b"???"
        (folder / f"broken-{shard:04d}.tar").write_bytes(content[: 90_000 if shard == 2 else len(content)])


def run_in_terminal(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal, with its colours."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": f"{COLUMNS}"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    # progress bars, which a picture cannot show, go to standard error where that is a terminal
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=terminal, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        printed = b""
        while True:
            try:
                piece = os.read(control, 1 << 16)
            except OSError:  # Linux says the end of a terminal by an error
                break
            if not piece:
                break
            printed += piece
        assert process.stderr is not None
        printed += process.stderr.read()
    os.close(control)
    return printed.decode().replace("\r\n", "\n")


def record(name: str, folder: Path) -> str:
    """Return the SVG of a session."""
    title, commands = SESSIONS[name]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for place, command in enumerate(commands):
        prompt: Any = Text.assemble(("$ ", "bold green"), (command, "bold"))
        console.print(prompt, overflow="fold")
        if printed := run_in_terminal(command, folder).rstrip("\n"):
            console.print(Text.from_ansi(printed), overflow="fold")
        if place + 1 < len(commands):
            console.print()
    drawn = console.export_svg(title=title, theme=THEME, code_format=FRAME.replace("TITLE", title), unique_id=name)
    inner = re.search(r'<rect width="[\d.]+" height="([\d.]+)"/></clipPath>', drawn)
    assert inner is not None
    return drawn.replace("HEIGHT", f"{float(inner[1]) + 20:.0f}")


def read_words(svg: str) -> list[str]:
    """Return the lines of a recording, all figures replaced by 0 and spaces by one."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for left, top, words in TEXT.findall(svg):
        lines.setdefault(float(top), []).append((float(left), unescape(words).replace("\xa0", " ")))
    whole = ["".join(words for _, words in sorted(parts)) for _, parts in sorted(lines.items())]
    return [re.sub(r"[\d.]+", "0", re.sub(r"\s+", " ", line)).strip() for line in whole]


def main() -> None:
    """Write the files; with ``--check``, fail where the words differ."""
    differing = []
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name))
        for picture in SESSIONS:
            path = PICTURES / f"{picture}.svg"
            recorded = record(picture, Path(name))
            if "--check" not in sys.argv[1:]:
                path.write_text(recorded, encoding="utf-8")
            elif not path.exists() or read_words(path.read_text(encoding="utf-8")) != read_words(recorded):
                differing.append(path.name)
    if differing:
        sys.exit(f"the commands print other words now, run this script: {', '.join(differing)}")


if __name__ == "__main__":
    main()
