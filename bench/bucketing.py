"""How much of batches of texts is padding, in buckets of like length and without?

The mixes of lengths of ``bench/packing.py``. ``batched``: batches of 16 texts as they come, padded to the longest.
``doubling``: buckets whose edges double, from 16 tokens; ``quarter``: edges a quarter apart, from 16. A batch has at
most 16 times as many tokens as a row. ``edge``: padded to the edge, so that there are as many shapes as buckets;
``longest``: to the longest text of the batch. Each is the percentage of padding, the batches of an epoch, and the
number of buckets. These follow from the lengths alone and are the same on every machine; ``us`` is the CPU time of
``bucket`` a text, without collation.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import webdataset as wds
from harness import show
from packing import MIXES, draw_lengths

BATCH = 16


def make_edges(most: int, factor: float) -> list[int]:
    """Return edges that grow by a factor, from 16 to the greatest length."""
    edges = [16.0]
    while edges[-1] < most:
        edges.append(min(edges[-1] * factor, most))
    return sorted({round(edge) for edge in edges})


def measure(stage: Any, lengths: Sequence[int], edges: Sequence[int] | None = None) -> tuple[float, int, float]:
    """Return the share of padding, the number of batches, and the CPU microseconds a text.

    Args:
        stage: gives lists of samples.
        lengths: of the texts.
        edges: batches are padded to the next of these; None pads to the longest text.
    """

    def texts() -> Iterator[dict[str, Any]]:
        for number, length in enumerate(lengths):
            yield {"__key__": str(number), "length": length}

    begun = time.process_time()
    batches = list(stage(texts()))
    us = (time.process_time() - begun) / len(lengths) * 1e6
    places = 0
    for batch in batches:
        longest = max(sample["length"] for sample in batch)
        places += len(batch) * min(edge for edge in edges or [longest] if edge >= longest)
    return 1 - sum(lengths) / places, len(batches), us


def main() -> None:
    """Measure all mixes."""
    for name, (most, median, deviation) in MIXES.items():
        lengths = draw_lengths(most, median, deviation)
        padding, steps, _ = measure(wds.listed(BATCH), lengths)
        found: dict[str, Any] = {"batched": [round(100 * padding, 1), steps]}
        for way, factor in (("doubling", 2.0), ("quarter", 1.25)):
            edges = make_edges(most, factor)
            stage = wds.bucket("length", edges, max_total=BATCH * most, collation_fn=None)
            for to in ("edge", "longest"):
                padding, steps, us = measure(stage, lengths, edges if to == "edge" else None)
                found[f"{way} {to}"] = [round(100 * padding, 1), steps, len(edges)]
            found[f"{way} us"] = round(us, 2)
        show(f"bucketing {name}", most=most, **found)


if __name__ == "__main__":
    main()
