"""Draw the diagrams of the documentation as SVG: ``docs_pictures.py [--check]``.

The files stand in docs/pictures. Each draws its own light panel, so that it can be read on a dark page too.
"""

import sys
from html import escape
from pathlib import Path
from typing import Final

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
INK, QUIET, LINE, PANEL = "#1f2937", "#6b7280", "#94a3b8", "#ffffff"
COLOURS: Final = ("#c7d2fe", "#bae6fd", "#bbf7d0", "#fde68a", "#fecaca", "#ddd6fe")
STYLE = "font-family: system-ui, sans-serif"


def text(x: float, y: float, words: str, size: int = 14, fill: str = INK, *, anchor: str = "middle") -> str:
    """Return words at a point."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rounded box."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = QUIET) -> str:
    """Return an arrow between two points."""
    line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {line} stroke="{colour}" stroke-width="1.6" marker-end="url(#head)"/>'


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a whole SVG file.

    Args:
        width: in pixels.
        height: in pixels.
        title: what it shows, for those who cannot see it.
        parts: elements.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" style="{STYLE}">\n'
        f"<title>{escape(title)}</title>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="{PANEL}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def draw_data_flow() -> str:
    """Draw how data goes from urls to the device, and state back."""
    steps = [
        ("urls", "shards"), ("bytes", "storage"), ("members", "tar"), ("samples", "samples"), ("values", "codecs"),
        ("shuffled", "stages"), ("batches", "stages"), ("device", "loading"),
    ]  # fmt: skip
    parts = []
    for place, (name, folder) in enumerate(steps):
        x = 20 + place * 112
        parts += [box(x, 40, 88, 44, COLOURS[place % len(COLOURS)]), text(x + 44, 67, name)]
        parts.append(text(x + 44, 104, folder, 12, QUIET))
        if place:
            parts.append(arrow(x - 24, 62, x - 2, 62))
    last = 20 + 7 * 112 + 44
    back = f'<path d="M{last} 116V140H64V116" fill="none" stroke="{QUIET}" stroke-width="1.6" stroke-dasharray="5 4"'
    parts.append(f'{back} marker-end="url(#head)"/>')
    parts.append(text(460, 158, "state · addresses · statistics: resume, errors, metrics", 13, QUIET))
    parts.append(
        text(460, 24, "reading; writing is the same way back, and a shard appears when it is complete", 13, QUIET)
    )
    return picture(920, 172, "Data flows from urls to batches on the device; state flows back.", parts)


def draw_streams() -> str:
    """Draw how streams are dealt to workers, and dealt anew after a resume."""
    parts = [text(215, 28, "2 ranks, step 300", 14), text(705, 28, "resumed on 3 ranks", 14)]
    done = (0.55, 0.55, 0.5, 0.5, 0.5, 0.5)
    for side, (left, count) in enumerate(((20, 2), (510, 3))):
        for stream in range(6):
            y = 48 + stream * 30
            rank = stream % count
            parts.append(box(left + 70, y, 230, 20, "#f1f5f9"))
            parts.append(
                f'<rect x="{left + 70}" y="{y}" width="{230 * done[stream]}" height="20" rx="6" fill="#cbd5e1"/>'
            )
            parts.append(text(left + 60, y + 15, f"stream {stream}", 12, QUIET, anchor="end"))
            x = left + 70 + 230 * done[stream]
            parts.append(f'<line x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + 23}" stroke="{INK}" stroke-width="2"/>')
            parts += [box(left + 320, y, 70, 20, COLOURS[rank]), text(left + 355, y + 15, f"rank {rank}", 12)]
            parts.append(arrow(left + 302, y + 10, left + 318, y + 10))
        if not side:
            parts += [arrow(430, 128, 492, 128), text(461, 118, "state", 13)]
    parts.append(
        text(
            460,
            250,
            "A state holds one position for each stream. Ranks and workers only decide who reads a stream,",
            13,
            QUIET,
        )
    )
    parts.append(text(460, 268, "so any number of them goes on where the others stopped.", 13, QUIET))
    return picture(920, 284, "Six streams with their positions, read by two ranks, then by three.", parts)


DRAWN: Final = {"data-flow.svg": draw_data_flow, "streams.svg": draw_streams}


def main() -> None:
    """Write the files; with ``--check``, fail where they differ."""
    differing = []
    for name, draw in DRAWN.items():
        path = PICTURES / name
        drawn = draw()
        if "--check" not in sys.argv[1:]:
            path.write_text(drawn, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
            differing.append(name)
    if differing:
        sys.exit(f"differ from what this script draws, run it: {', '.join(differing)}")


if __name__ == "__main__":
    main()
