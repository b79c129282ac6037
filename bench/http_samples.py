"""What does a sample of 80 KB (W1) cost over HTTP, from a server nearby? ``bare`` only receives the same bytes.

CPU seconds of the reading process, with the time that the kernel spends on receiving. ``bare`` is one GET a shard by
``http.client`` whose body is read by ``readinto`` into one buffer, which is used again; it is measured with buffers of
several sizes, and the cheapest one counts. ``bytes`` is ours without samples: the stream of each url, read to its end.
"""

import sys
from pathlib import Path
from typing import Any

from harness import ROUNDS, SCALE, Library, rounded, show
from shards import workspace, write
from storage import medians, web

BUFFERS = [1 << power for power in range(16, 21)]


def measure() -> dict[str, object]:
    """Print and return the answer."""
    with workspace() as folder:
        folder.chmod(0o755)
        names = [Path(path).name for path in write("W1", folder, scale=SCALE)]
        ours, bare = Library(sys.executable), Library(sys.executable)
        with web(folder) as port:
            urls = [f"http://127.0.0.1:{port}/{name}" for name in names]
            samples: dict[str, tuple[Library, dict[str, Any]]] = {"ours": (ours, {"job": "raw", "shards": urls})}
            alone: dict[str, tuple[Library, dict[str, Any]]] = {"bytes": (ours, {"job": "stream", "urls": urls})}
            alone |= {f"bare {size}": (bare, {"job": "received", "urls": urls, "size": size}) for size in BUFFERS}
            try:
                count = ours.ask("raw", shards=urls)["result"]
                taken = medians(ROUNDS, samples, alone)
            finally:
                ours.close()
                bare.close()
    cost = {name: seconds["cpu"] / count * 1e6 for name, seconds in taken.items()}
    size = min(BUFFERS, key=lambda size: cost[f"bare {size}"])
    least = cost[f"bare {size}"]
    return show(
        "http per sample",
        ours_us=rounded(cost["ours"]),
        bytes_us=rounded(cost["bytes"]),
        bare_us=rounded(least),
        bare_buffer=size,
        to_bare=rounded(cost["ours"] / least),
        bytes_to_bare=rounded(cost["bytes"] / least),
    )


if __name__ == "__main__":
    measure()
