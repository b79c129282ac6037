"""How near is ``wds simulate`` to runs of other settings than those that its rates were measured with?

Rates are measured on half of the images (as many workers as processors, batches of 32 and 128), on half of the shards
of four small images, and on images behind a line of 20 ms and 40 MB/s a connection. Then runs are predicted that were
not measured: other batches and workers, a line of 100 ms, fewer connections, a trainer that takes fewer samples than
come. Rates and runs take turns. ``ratio`` is predicted over measured samples a second, the median of the turns.
"""

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import webdataset as wds
from harness import ROUNDS, SCALE, rounded, show
from storage import web
from webdataset.cluster.reader_shares import read_shard_table
from webdataset.cluster.training_forecast import TrainingForecast, forecast_training
from webdataset.cluster.training_job import TrainingJob
from webdataset.cluster.training_rates import TrainingRates, measure_rates

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def write_images(folder: Path, shards: int, samples: int, side: int) -> list[str]:
    """Write shards of JPEGs; return their paths."""
    from PIL import Image

    folder.mkdir(mode=0o755)
    rng = np.random.default_rng(0)
    paths = []
    for shard in range(shards):
        paths.append(str(folder / f"{shard:04d}.tar"))
        with wds.TarWriter(paths[-1]) as writer:
            for number in range(samples):
                pixels = rng.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
                file = io.BytesIO()
                Image.fromarray(pixels).resize((side, side)).save(file, "JPEG", quality=90)
                writer.write({"__key__": f"{shard:04d}{number:04d}", "jpg": file.getvalue(), "cls": b"1"})
    return paths


def decoding(urls: list[str]) -> Any:
    """Return the dataset of a training: decoded images and classes."""
    return wds.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls").elastic(streams=1)


def reading(urls: list[str]) -> Any:
    """Return a dataset that decodes nothing."""
    return wds.WebDataset(urls, shardshuffle=False).to_tuple("jpg", "cls").elastic(streams=1)


def run(dataset: Any, batch_size: int, workers: int, speed: float | None) -> float:
    """Return samples a second of a loader, from the first batch on; a trainer takes ``speed`` at most."""
    streams = dataset.elastic(streams=workers)
    loader = wds.Loader(streams, batch_size, workers=workers, mode="processes", timings=False)
    try:
        taken, began = 0, 0.0
        for batch in loader:
            if not began:
                began = time.perf_counter()
                continue
            taken += len(batch[0])
            if speed is not None:
                time.sleep(max(0.0, began + taken / speed - time.perf_counter()))
        return taken / (time.perf_counter() - began)
    finally:
        loader.close()


@contextmanager
def line(port: int, latency_seconds: float) -> Iterator[str]:
    """Give the root of the web server behind a slow line."""
    from support.slow_line import slow_line

    with slow_line("127.0.0.1", port, latency_seconds=latency_seconds, bytes_per_second=40e6) as root:
        yield root


def forecast(dataset: Any, rates: TrainingRates, job: dict[str, Any]) -> TrainingForecast:
    """Return what a job of one rank will do."""
    whole = TrainingJob.from_settings({"ranks": 1, "ranks_per_host": 1, "streams": job["workers"], **job})
    return forecast_training(read_shard_table(dataset, rates), whole, rates)


def measure() -> None:
    """Print the answers."""
    with tempfile.TemporaryDirectory(prefix="wds-simulate-") as text, ExitStack() as opened:
        folder = Path(text)
        folder.chmod(0o755)
        images = write_images(folder / "images", round(160 * SCALE), 100, 224)
        tiny = write_images(folder / "tiny", round(4000 * SCALE), 4, 64)
        port = opened.enter_context(web(folder))
        names = [path.removeprefix(text) for path in images]
        with line(port, 0.02) as root:
            far = measure_rates(reading([root + name for name in names[:40]]))
        show("rates of the line", **{key: rounded(value) for key, value in asdict(far).items() if value})
        root = opened.enter_context(line(port, 0.1))
        slow = replace(far, first_byte_seconds=far.first_byte_seconds + 0.08)
        # what rates are measured with, or rates; what is run; how
        settings: dict[str, tuple[list[str] | TrainingRates, Any, dict[str, Any]]] = {
            "two workers, batches of 16": (images, decoding(images), {"workers": 2, "batch_size": 16}),
            "one worker, batches of 256": (images, decoding(images), {"workers": 1, "batch_size": 256}),
            "shards of four samples": (tiny, decoding(tiny), {"workers": 2, "batch_size": 64}),
            "line of 100 ms": (slow, reading([root + name for name in names]), {"workers": 1, "batch_size": 32}),
            "line of 100 ms, two workers": (
                slow,
                reading([root + name for name in names]),
                {"workers": 2, "batch_size": 128, "connections": 3},
            ),
            "trainer": (images, decoding(images), {"workers": 1, "batch_size": 32, "samples_per_second": 1000.0}),
        }
        ratios: dict[str, list[float]] = {name: [] for name in settings}
        speeds: dict[str, list[float]] = {name: [] for name in settings}
        limits: dict[str, str] = {}
        for turn in range(ROUNDS + 1):
            # the machine's speed changes with what else runs on it, so that rates are of this minute
            rates = {id(urls): measure_rates(decoding(urls[: len(urls) // 2]), rounds=1) for urls in (images, tiny)}
            for name, (known, dataset, job) in settings.items():
                os.environ["WDS_CONNECTIONS"] = str(job.get("connections", 5))
                found = run(dataset, job["batch_size"], job["workers"], job.get("samples_per_second"))
                if turn:
                    used = known if isinstance(known, TrainingRates) else rates[id(known)]
                    predicted = forecast(dataset, used, job)
                    limits[name] = predicted.bottleneck
                    speeds[name].append(found)
                    ratios[name].append(predicted.samples_per_second / found)
        for name, found_ratios in ratios.items():
            show(
                name,
                limit=limits[name],
                samples_per_second=rounded(statistics.median(speeds[name])),
                ratio=rounded(statistics.median(found_ratios)),
                ratios=[rounded(ratio) for ratio in found_ratios],
            )


if __name__ == "__main__":
    measure()
