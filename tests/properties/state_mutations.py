"""Draws malformed states of elastic datasets, loads them, and tells what became of the run.

A state of each of some pipelines is changed in one place of its memories, and built anew round these, so that its sum
is right. Loading it, or reading after it, gives items or a ``WebDatasetError``; anything else is a defect: another
error, or a run that does not end.
"""

import copy
import gc
import json
import random
import signal
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from itertools import islice

import webdataset as wds
from webdataset.core.errors import WebDatasetError
from webdataset.flow.elastic_state import build_state
from webdataset.stages.mix import EvenMix
from webdataset.testing.documents import Picture, Spec, siblings

PATIENCE_SECONDS = 20
MOST_ITEMS = 400  # a pipeline gives at most 120
WRONG = [
    None, True, False, -1, -7, 1.5, float("nan"), "", "abc", "10H", "5000 1 1A", [], [[]], [1], {}, {"a": 1}, 10**6,
    1 << 40, (1 << 53) - 1, (1 << 63) - 1, 1 << 70,
]  # fmt: skip


@contextmanager
def ignore_warnings():
    """Ignore warnings, also those of files that a refused run leaves to the garbage collection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()


class TooLong(BaseException):
    """A run that does not end; no handler of errors takes it."""


def write_shards(folder):
    """Write three shards of samples and one of documents; return their urls.

    Args:
        folder: where to.
    """
    urls = [str(folder / f"{number}.tar") for number in range(3)]
    for number, url in enumerate(urls):
        with wds.TarWriter(url) as sink:
            for index in range(9):
                sink.write({"__key__": f"{number}-{index}", "txt": "x" * (index * 100)})
    documents = str(folder / "documents.tar")
    with wds.TarWriter(documents) as sink:
        for index in range(8):
            pictures = [Picture(f"{index}-{place}.jpg", 0, b"bytes") for place in range(index % 3)]
            for name, payload in siblings(Spec(f"d{index}", ["a text", "another"], pictures)):
                key, _, field = name.partition(".")
                sink.write({"__key__": key, field: payload})
    return urls, documents


def pass_on(samples):
    """Stand for a stage of a user's."""
    yield from samples


def measure(sample):
    """Return the length of a sample."""
    return len(sample["txt"])


def add_tokens(sample):
    """Return a sample with tokens."""
    return {"__key__": sample["__key__"], "input_ids": list(range(len(sample["txt"]) // 100 + 1))}


def make_pipelines(folder):
    """Return what makes each pipeline, by name.

    Args:
        folder: of the shards.
    """
    urls, documents = write_shards(folder)

    def read(**options):
        return wds.WebDataset(urls, shardshuffle=5, seed=1, **options)

    def mix(kind, *options, **named):
        parts = [read(), read().shuffle(4), read().compose(wds.block_shuffle(4)).repeat(2)]
        return wds.DataPipeline(kind(parts, *options, longest=True, **named))

    def draw(count):
        made = wds.DataPipeline(wds.ResampledShards(urls, nshards=count, seed=1), wds.tarfile_to_samples())
        made.seed = 1
        return made

    rows = [{"__key__": str(number), "txt": "x" * number} for number in range(30)]
    listed = wds.DataPipeline([rows])
    listed.seed = 1
    single = {
        "plain": read,
        "shuffle": lambda: read().shuffle(6, initial=3),
        "bytes": lambda: read().compose(wds.shuffle(6, max_bytes=5000)),
        "blocks": lambda: read().compose(wds.block_shuffle(6)),
        "batched": lambda: read().shuffle(6).to_tuple("__key__", "txt").batched(2).unbatched(),
        "lists": lambda: read().shuffle(6).listed(2).unlisted(),
        "open": lambda: read(open_shards=4).slice(20).rsample(0.8),
        "random mix": lambda: mix(wds.RandomMix, [1, 2, 1]),
        "even mix": lambda: mix(EvenMix, [1, 2, 1]).compose(wds.shuffle(5)),
        "robin": lambda: mix(wds.RoundRobin).compose(wds.shuffle(5)),
        "siblings": read().sibling_fields,
        "documents": lambda: wds.WebDataset(documents, shardshuffle=False, seed=1).interleaved(adjacent=False),
        "bucket": lambda: read().compose(wds.bucket(measure, [300, 900], batch_size=3, collation_fn=None)),
        "pack": lambda: read().map(add_tokens).compose(wds.pack(9)),
        "pack window": lambda: read().map(add_tokens).compose(wds.pack(9, "window", window=6, output="samples")),
        "generator": lambda: read().compose(pass_on).shuffle(4),
        "repeat": lambda: read().shuffle(4).repeat(3),
        "epoch": lambda: read().shuffle(4).with_epoch(60),
        "drawn": lambda: draw(6).compose(wds.shuffle(4)),
        "drawn endless": lambda: read(resampled=True).shuffle(4).with_epoch(60),
        "rows": lambda: listed.compose(wds.shuffle(4)),
        "where": lambda: read(where="txt != 'x'").shuffle(4),
        "equal": lambda: read().equal_epochs("pad", counts=dict.fromkeys(urls, 9)).shuffle(4),
        "nested": lambda: wds.DataPipeline(mix(wds.RandomMix, [1, 1, 1]), wds.shuffle(4)),
    }
    return {name: (lambda make=make: make().elastic(2)) for name, make in single.items()}


def list_places(value, place=()):
    """Yield the places of all parts of a JSON value."""
    yield place
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in entries:
        yield from list_places(part, (*place, name))


def mutate(rng, memories):
    """Return memories that differ in one place, and the place.

    Args:
        rng: draws place and change.
        memories: of a state.
    """
    changed = copy.deepcopy(memories)
    place = rng.choice([place for place in list_places(memories) if len(place) >= 2])
    inside = changed
    for name in place[:-1]:
        inside = inside[name]
    last, how = place[-1], rng.random()
    part = inside[last]
    if how < 0.15:
        inside.pop(last)
    elif how < 0.4 and type(part) is int:
        inside[last] += rng.choice([-1, 1, 5, -100, 1000])
    elif how < 0.5 and isinstance(part, str) and part:
        index = rng.randrange(len(part))
        inside[last] = part[:index] + rng.choice("A0 z-~é") + part[index + 1 :]
    elif how < 0.6 and isinstance(inside, list) and len(inside) > 1:
        rng.shuffle(inside)
    elif how < 0.7 and isinstance(inside, list):
        inside.insert(rng.randrange(len(inside) + 1), part)
    else:
        inside[last] = rng.choice(WRONG)
    return changed, place


class Trials:
    """Malformed states of some pipelines.

    Args:
        makers: makes each pipeline, by name.
    """

    def __init__(self, makers: dict[str, Callable]) -> None:
        self.makers = makers
        self.states = {name: self._save(make()) for name, make in makers.items()}

    @staticmethod
    def _save(dataset):
        run, states = iter(dataset), []
        for number, _ in enumerate(run):
            if number in {0, 3, 9, 20, 35}:
                states.append(json.loads(json.dumps(run.state_dict())))
        return states

    def play(self, seed, name=None):
        """Load one malformed state and read on.

        Args:
            seed: of the change.
            name: of the pipeline; None draws it.

        Returns:
            An empty text, or what is wrong.
        """
        rng = random.Random(f"malformed {seed}")
        name = rng.choice(sorted(self.makers)) if name is None else name
        state = rng.choice(self.states[name])
        memories, place = mutate(rng, state["memories"])
        return self.load(name, state, memories, f"seed {seed}, {name}, {place}")

    def load(self, name, state, memories, told):
        """Load a state with other memories and read on.

        Args:
            name: of the pipeline.
            state: of it.
            memories: what to put in the place of the state's.
            told: of the change, for the message.

        Returns:
            An empty text, or what is wrong.
        """
        header = {part: value for part, value in state.items() if part not in {"received", "memories", "check"}}
        try:
            changed = build_state(header, memories)
        except Exception:  # noqa: BLE001  no state at all: nothing to load
            return ""
        before = signal.signal(signal.SIGPROF, stop_run)
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dataset = self.makers[name]()
                dataset.load_state_dict(changed)
                given = sum(1 for _ in islice(dataset, MOST_ITEMS))
                dataset.close_run()
        except WebDatasetError:
            return ""
        except TooLong:
            return f"{told}: no end after {PATIENCE_SECONDS} s of CPU time"
        except Exception as error:  # noqa: BLE001  whatever it is
            return f"{told}: {type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        return f"{told}: {given} items and more" if given == MOST_ITEMS else ""


def stop_run(*_):
    """End a run that takes too long."""
    raise TooLong
