"""Does memory grow with epochs?

A small dataset of JPEGs, decoded, shuffled and in batches, is read for 50 epochs in five ways, each in a process of its
own. After each epoch the memory of that process and of all its children is summed (PSS: what several processes share
is counted once, as Linux tells in ``/proc/<pid>/smaps_rollup``). ``slope`` is that of the line with the least squares
through the last 40 epochs, in bytes an epoch, ``slope_late`` that through the last 20; ``swing`` is the difference
between the largest and the smallest of the 40, so that a slope within the noise can be told from a leak. A forked
worker takes one step of about 3 MB when Python's garbage collection first writes to all objects that it inherited.

``memory.py`` asks all ways; ``memory.py threads`` asks one by name. ``BENCH_EPOCHS`` is another number of epochs.
"""

import gc
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import webdataset as wds
from harness import SCALE, rounded, show
from shards import workspace

EPOCHS = int(os.environ.get("BENCH_EPOCHS", "50"))
WARM = EPOCHS // 5  # epochs that are left out
BATCH, BUFFER, STREAMS, SHARDS = 16, 100, 8, 8


def pictures(folder):
    """Write shards of JPEGs."""
    from PIL import Image

    draws = random.Random(1)
    for number in range(SHARDS):
        with wds.TarWriter(str(folder / f"{number}.tar")) as sink:
            for index in range(max(int(48 * SCALE), 4)):
                stream = io.BytesIO()
                Image.frombytes("RGB", (16, 16), draws.randbytes(768)).resize((128, 128)).save(stream, "JPEG")
                sink.write({"__key__": f"{number}-{index:03d}", "jpg": stream.getvalue(), "cls": index})


def dataset(folder, *, elastic=True):
    """Return the dataset."""
    urls = sorted(map(str, Path(folder).glob("*.tar")))
    made = wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(BUFFER).decode("rgb8").to_tuple("jpg", "cls")
    return made.elastic(STREAMS) if elastic else made.batched(BATCH)


def with_states(made):
    """Return a function that runs an epoch and asks for a state after each batch."""

    def epoch():
        for number, _ in enumerate(run := iter(made)):
            if getattr(made, "streams", None) is None or number % BATCH == 0:
                (run if hasattr(run, "state_dict") else made).state_dict()

    return epoch


def plain(folder):
    """Return a function that runs an epoch of the dataset without workers or states."""
    made = dataset(folder, elastic=False)
    return lambda: sum(1 for _ in made)


WAYS = {
    "plain": plain,
    "elastic": lambda folder: with_states(dataset(folder)),
    "threads": lambda folder: with_states(wds.Loader(dataset(folder), BATCH, workers=2)),
    "processes": lambda folder: with_states(wds.Loader(dataset(folder), BATCH, workers=2, mode="processes")),
    "webloader": lambda folder: with_states(
        wds.WebLoader(dataset(folder), batch_size=BATCH, num_workers=2, persistent_workers=True)
    ),
}


def family(pid):
    """Yield a process id and those of all its children, their children too."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def memory_bytes():
    """Return the memory of this process and its children."""
    total = 0
    for pid in family(os.getpid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def slope(numbers):
    """Return the slope of the line with the least squares through numbers at the places 0, 1, 2 and so on."""
    middle, mean = (len(numbers) - 1) / 2, sum(numbers) / len(numbers)
    above = sum((place - middle) * (number - mean) for place, number in enumerate(numbers))
    return above / sum((place - middle) ** 2 for place in range(len(numbers)))


def run(way, folder):
    """Run the epochs of one way and print the answer."""
    epoch = WAYS[way](folder)
    sizes = []
    for _ in range(EPOCHS):
        epoch()
        gc.collect()
        sizes.append(memory_bytes())
    last = sizes[WARM:]
    return show(
        "memory",
        way=way,
        epochs=EPOCHS,
        first_bytes=sizes[0],
        last_bytes=sizes[-1],
        slope=rounded(slope(last)),
        slope_late=rounded(slope(last[len(last) // 2 :])),
        swing=max(last) - min(last),
    )


def measure(ways=tuple(WAYS)) -> None:
    """Print an answer for each way."""
    with workspace() as folder:
        pictures(folder)
        for way in ways:
            subprocess.run([sys.executable, __file__, "--run", way, str(folder)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:])
    else:
        measure(sys.argv[1:] or tuple(WAYS))
