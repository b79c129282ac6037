"""Prints digests of the orders of every kind of run, straight and continued after stops, for test_orders.py.

python orders_probe.py URLS
"""

import importlib.util
import json
import os
import sys
from typing import Any

import determinism_probe  # type: ignore[import-not-found]  # beside this program

import webdataset as wds

STREAMS = 6


def datasets(urls):
    """Return datasets that can be saved, by name."""
    found = {
        name: dataset
        for name, dataset in determinism_probe.datasets(urls).items()
        if name not in ("drawn", "numpy", "detshuffle")
    }
    plain: dict[str, Any] = {"seed": 42, "shardshuffle": 100}
    key = determinism_probe.key
    found["batched"] = wds.WebDataset(urls, **plain).shuffle(20).map(key).batched(7, collation_fn=list)
    found["listed"] = wds.WebDataset(urls, **plain).map(key).listed(5)
    found["repeated"] = wds.WebDataset(urls, **plain).shuffle(12).map(key).repeat(2)
    found["sliced"] = wds.WebDataset(urls, **plain).shuffle(12).map(key).slice(3, 40)
    found["drawn"] = wds.WebDataset(urls, **plain).shuffle(20).map(determinism_probe.drawn, rng=True)
    return found


def text(item):
    """Return an item as text, the same on every platform."""
    return json.dumps(item, default=lambda value: value.tolist() if hasattr(value, "tolist") else repr(value))


def stopped(make, stops):
    """Return what runs give that are stopped after so many items each, saved as JSON and continued in a new dataset."""
    given, state = [], None
    for stop in [*stops, None]:
        dataset = make()
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        run = iter(dataset)
        for item in run:
            given.append(text(item))
            if stop is not None and len(given) >= stop:
                state = json.dumps(getattr(run, "state_dict", dataset.state_dict)())
                break
        close = getattr(run, "close", None)
        if close is not None:
            close()
    return given


def runs(make, count):
    """Return digests of one epoch straight, of one stopped twice, and of the next epoch."""
    straight = [text(item) for item in make()]
    assert len(straight) > count, len(straight)
    following = make()
    epochs = [determinism_probe.digest([text(item) for item in following]) for _ in range(2)]
    return {
        "straight": determinism_probe.digest(straight),
        "stopped": determinism_probe.digest(stopped(make, (count, len(straight) - 2))),
        "epochs": epochs,
    }


def elastic(urls, name):
    """Return a dataset of the table in virtual streams."""
    return determinism_probe.seeded(datasets(urls)[name]).elastic(STREAMS)


def ranks(urls, before, after):
    """Return digests of a job of so many ranks, and of one that continues it with another number."""
    states, begun, rest = [], [], []
    for rank in range(before):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(before))
        run = iter(elastic(urls, "shuffled"))
        begun += [next(run) for _ in range(5)]
        states.append(run.state_dict())
        run.close()
    merged = json.loads(json.dumps(wds.merge_states(states)))
    for rank in range(after):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(after))
        dataset = elastic(urls, "shuffled")
        dataset.load_state_dict(merged)
        rest += list(dataset)
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    assert len(set(begun + rest)) == len(begun + rest) == 60
    return {"begun": determinism_probe.digest(begun), "rest": determinism_probe.digest(rest)}


def torch_loader(urls, workers):
    """Return digests of two epochs of a WebLoader with stages of its own."""
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=42, nodesplitter=None).shuffle(8).map(determinism_probe.key)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    batches = loader.listed(4)
    return [determinism_probe.digest([text(item) for item in batches]) for _ in range(2)]


def main(urls):
    """Print one JSON object: kind of run to digests."""
    found = {f"elastic {name}": runs(lambda name=name: elastic(urls, name), 4) for name in datasets(urls)}
    kinds: list[dict[str, Any]] = [
        {"workers": 0},
        {"workers": 2, "mode": "threads"},
        {"workers": 2, "mode": "processes", "start_method": "fork"},
        {"workers": 2, "mode": "threads", "exact": True, "drop_last": True},
    ]
    for words in kinds:
        label = " ".join(f"{key}={value}" for key, value in words.items())
        found[f"loader {label}"] = runs(
            lambda words=words: wds.Loader(elastic(urls, "shuffled"), 5, collate=list, **words), 3
        )
    found |= {f"{before} ranks, then {after}": ranks(urls, before, after) for before, after in ((2, 2), (2, 3), (3, 1))}
    if importlib.util.find_spec("torch") is not None:
        found |= {f"torch loader, {workers} workers": torch_loader(urls, workers) for workers in (0, 2)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
