"""Draw the diagrams of the documentation as SVG: ``docs_pictures.py [--check]``.

The files stand in docs/pictures. Each draws its own light panel, so that it can be read on a dark page too. The chart
of shuffles is simulated here; the loader's timeline was measured by ``bench/loader_timeline.py``.
"""

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

import webdataset as wds

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
INK, QUIET, LINE, PANEL = "#1f2937", "#6b7280", "#94a3b8", "#ffffff"
STRONG: Final = ("#4338ca", "#0e7490", "#b45309")
WAITING = "#fecaca"
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
    parts.append(text(460, 268, "so any number of them continues where the others stopped.", 13, QUIET))
    return picture(920, 284, "Six streams with their positions, read by two ranks, then by three.", parts)


def draw_shuffle_quality() -> str:
    """Draw how many shards a batch mixes, by the size of the buffer and the number of open shards."""
    buffers = (0, 100, 300, 1000, 3000, 10_000, 30_000)
    left, right, top, bottom, most = 90, 700, 50, 300, 100.0
    parts = [text(20, 28, "shards in a batch of 256", 14, anchor="start")]

    def across(place: int) -> float:
        return left + (right - left) * place / (len(buffers) - 1)

    def height(shards: float) -> float:
        return bottom - (bottom - top) * math.log(shards) / math.log(most)

    for shards in (1, 3, 10, 30, 100):
        y = round(height(shards), 1)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#e5e7eb"/>')
        parts.append(text(left - 12, y + 5, f"{shards}", 13, QUIET, anchor="end"))
    for place, buffer in enumerate(buffers):
        parts.append(
            text(round(across(place), 1), bottom + 22, f"{buffer:,}".replace(",", " ") if buffer else "none", 13, QUIET)
        )
    parts.append(text((left + right) / 2, bottom + 46, "samples in the buffer of shuffle()", 13, QUIET))
    perfect = 0.0
    for colour, opened in zip(STRONG, (1, 4, 16), strict=True):
        found = [
            wds.simulate_shuffle_quality(100, 1000, [wds.shuffle(n)] if n else [], open_shards=opened, batch=256)
            for n in buffers
        ]
        perfect = found[0].shards_per_batch_ideal
        points = [(round(across(n), 1), round(height(one.shards_per_batch), 1)) for n, one in enumerate(found)]
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points]
        words = "open_shards=1 (default)" if opened == 1 else f"open_shards={opened}"
        near, by = (points[2], (8, 20)) if opened == 1 else (points[0], (12, -9))
        parts.append(text(near[0] + by[0], near[1] + by[1], words, 13, colour, anchor="start"))
    y = round(height(perfect), 1)
    parts.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="{QUIET}" stroke-dasharray="5 4"/>')
    parts.append(text(left + 12, y + 17, "a perfect shuffle", 13, QUIET, anchor="start"))
    title = "Shards mixed in a batch, by the size of the shuffle buffer and the number of open shards."
    return picture(730, 366, title, parts)


def draw_loader_timeline() -> str:
    """Draw when training waits and when workers make batches, with no, one and two workers."""
    measured: dict[str, Any] = json.loads((PICTURES / "loader-timeline.json").read_text(encoding="utf-8"))
    left, right = 150, 890
    scale = (right - left) / max(run["milliseconds"] for run in measured["runs"])
    parts, y = [], 20
    for run in measured["runs"]:
        workers, end = run["workers"], run["milliseconds"]
        trained = sum(b - a for a, b in run["steps"])
        parts.append(text(20, y + 16, f"workers={workers}", 15, anchor="start"))
        rate = f"{end / len(run['steps']):.0f} ms a step, {1 - trained / end:.0%} of it waiting"
        parts.append(text(left, y + 16, rate, 13, QUIET, anchor="start"))
        y += 26
        parts.append(text(left - 12, y + 15, "training", 13, QUIET, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{end * scale:.1f}" height="20" fill="{WAITING}"/>')
        parts += [
            f'<rect x="{left + a * scale:.1f}" y="{y}" width="{(b - a) * scale:.1f}" height="20" fill="#475569"/>'
            for a, b in run["steps"]
        ]
        for worker in range(max(workers, 1)):
            y += 24
            who = f"worker {worker}" if workers else "same thread"
            parts.append(text(left - 12, y + 15, who, 13, QUIET, anchor="end"))
            for batch, by, a, b in run["batches"]:
                if by == worker and b - a > 1:
                    where = f'x="{left + a * scale:.1f}" y="{y}" width="{(b - a) * scale:.1f}" height="20"'
                    parts.append(f'<rect {where} fill="{COLOURS[batch % 4]}" stroke="{PANEL}"/>')
        y += 40
    parts.append(f'<rect x="{left}" y="{y - 8}" width="14" height="14" fill="#475569"/>')
    parts.append(text(left + 20, y + 4, "a step", 13, QUIET, anchor="start"))
    parts.append(f'<rect x="{left + 90}" y="{y - 8}" width="14" height="14" fill="{WAITING}"/>')
    parts.append(text(left + 110, y + 4, "waiting for a batch", 13, QUIET, anchor="start"))
    for step, colour in enumerate(COLOURS[:4]):
        parts.append(f'<rect x="{left + 260 + step * 14}" y="{y - 8}" width="14" height="14" fill="{colour}"/>')
    parts.append(text(left + 324, y + 4, "decoding, a colour for each batch", 13, QUIET, anchor="start"))
    return picture(910, y + 22, "When training waits for batches, with no, one and two workers.", parts)


DRAWN: Final = {
    "data-flow.svg": draw_data_flow,
    "streams.svg": draw_streams,
    "shuffle-quality.svg": draw_shuffle_quality,
    "loader-timeline.svg": draw_loader_timeline,
}


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
