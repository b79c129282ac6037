"""Random pipelines over loaders that are stopped anywhere and resumed by other workers: what comes, beside a list.

The oracle is the dataset's own elastic run, which ``resume_checks`` compares with runs that never stop. A loader over
the same dataset gives, whatever its workers, stops and resumes, the batches of that order; without an elastic dataset
each item once.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import webdataset as wds
from webdataset.stages import mix

LENGTHS = (0, 1, 7, 13, 2, 22, 9, 5)
STREAMS = (1, 2, 3, 5, 7, 12)
EPOCHS = 3  # of the oracle


def write_shards(folder):
    """Write shards of unequal sizes; return their urls.

    Args:
        folder: where to.
    """
    urls = []
    for number, length in enumerate(LENGTHS):
        urls.append(str(folder / f"{number}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for index in range(length):
                sink.write({"__key__": f"{number}-{index:02}", "txt": "x" * (index * 37 % 90)})
    return urls


def hash_key(sample):
    """Return a number that follows from a sample's key."""
    return sum(map(ord, sample["__key__"]))


def is_kept(sample):
    """Choose about three samples in four."""
    return hash_key(sample) % 4 != 1


def drop_some(sample):
    """Return a sample, or None for one in five."""
    return sample if hash_key(sample) % 5 else None


def fail_some(sample):
    """Fail for one sample in seven."""
    if hash_key(sample) % 7 == 2:
        raise ValueError("one in seven")
    return sample


def measure(sample):
    """Return the length of a sample."""
    return len(sample["txt"])


def hold_two(samples):
    """Give samples two later; a stage of a user's."""
    held = []
    for sample in samples:
        held.append(sample)
        if len(held) > 2:
            yield held.pop(0)
    yield from held


def give_twice(samples):
    """Give some samples twice; a stage of a user's."""
    for sample in samples:
        yield sample
        if hash_key(sample) % 6 == 0:
            yield {**sample, "again": True}


def reverse_blocks(samples):
    """Give blocks of five from their ends; a stage of a user's."""
    samples = iter(samples)
    while block := list(islice(samples, 5)):
        yield from reversed(block)


STAGES = (
    "wds.select(is_kept)", "wds.map(drop_some)", "wds.map(fail_some, handler=wds.ignore_and_continue)",
    "wds.shuffle(6)", "wds.shuffle(20, initial=3)", "wds.shuffle(9, max_bytes=400)", "wds.block_shuffle(8)",
    "wds.rsample(0.7)", "wds.slice(40)", "wds.slice(3, None, 2)", "hold_two", "give_twice", "reverse_blocks",
    "wds.listed(3), wds.unlisted()", "wds.listed(4, partial=False), wds.unlisted()", "wds.map(dict)",
    "wds.bucket(measure, [20, 90], batch_size=4, collation_fn=None), wds.unlisted()",
)  # fmt: skip
ENDS = ("", "", "", ".repeat(2)", ".with_epoch(50)", ".with_epoch(131)", ".repeat(2, 90)")


@dataclass(frozen=True)
class Case:
    """A pipeline and its loaders.

    Args:
        code: of the pipeline, of ``urls``; as it is printed.
        streams: of the elastic dataset.
        batch_size: of the loaders, or None.
        exact: of the loaders.
        drop_last: of the loaders.
        epoch: that is begun with.
        order: of the loaders; of ``ready`` it is not known which samples a batch has, but how many.
    """

    code: str
    streams: int
    batch_size: int | None
    exact: bool
    drop_last: bool
    epoch: int
    order: str


def draw_case(rng):
    """Return a random case.

    Args:
        rng: draws it.
    """

    def read(seed):
        first = rng.randrange(3)
        opened = rng.choice(["", "", ", open_shards=3"])
        return f"wds.WebDataset(urls[{first}:], shardshuffle={rng.choice([False, 3, 100])}, seed={seed}{opened})"

    kind = rng.random()
    if kind < 0.3:
        parts = ", ".join(read(rng.choice([None, 5])) for _ in range(rng.choice([2, 3])))
        longest = rng.choice([True, True, False])
        mixed = rng.choice(["wds.RandomMix", "wds.RoundRobin", "EvenMix"])
        code = f"seed_pipeline(wds.DataPipeline({mixed}([{parts}], longest={longest})), {rng.randrange(99)})"
    elif kind < 0.4:
        code = f"wds.WebDataset(urls, resampled=True, seed={rng.randrange(99)})"
    else:
        code = read(rng.randrange(99))
    drawn = rng.sample(STAGES, rng.randrange(4))
    code += f".compose({', '.join(drawn)})" if drawn else ""
    code += rng.choice([".with_epoch(60)", ".with_epoch(101)"]) if "resampled" in code else rng.choice(ENDS)
    size = rng.choice([None, 1, 4, 7])
    return Case(
        code,
        rng.choice(STREAMS),
        size,
        exact=size is not None and rng.random() < 0.2,
        drop_last=size is not None and rng.random() < 0.2,
        epoch=rng.choice([0, 0, 1, 4]),
        order=rng.choice(["exact", "exact", "ready"]),
    )


def seed_pipeline(pipeline, seed):
    """Give a pipeline a seed."""
    pipeline.seed = seed
    return pipeline


def show(item):
    """Return what tells items apart."""
    return item["__key__"] + "+" * item.get("again", 0)


def join_keys(samples):
    """Make a batch: the keys."""
    return list(map(show, samples))


class Trial:
    """One case being played.

    Args:
        seed: of the case.
        urls: of the shards.
        modes: kinds of workers; ``inline`` has none.
    """

    def __init__(self, seed, urls, modes=("inline", "threads")):
        self.rng = random.Random(f"loaders {seed}")
        self.urls, self.modes, self.case = urls, modes, draw_case(self.rng)
        self.trail = [f"seed {seed}: {self.case}"]

    def make(self):
        """Return the elastic dataset."""
        names = {**globals(), "urls": self.urls, "EvenMix": mix.EvenMix}
        made = eval(self.case.code, names)  # noqa: S307  ours
        return made.elastic(self.case.streams)

    def list_orders(self):
        """Return the items of some epochs, by a run without loaders."""
        orders = {}
        for epoch in range(self.case.epoch, self.case.epoch + EPOCHS):
            dataset = self.make()
            dataset.set_epoch(epoch)
            orders[epoch] = [(position, show(item)) for position, item in iter(dataset).positions()]
        return orders

    def cut_batches(self, items):
        """Return the batches that a loader makes of the items of an epoch, or of its rest."""
        size = self.case.batch_size
        keys = [key for _, key in items]
        if size is None:
            return keys
        if self.case.exact:
            windows = {}
            for position, key in items:
                windows.setdefault(position // size, []).append(key)
            return list(windows.values())
        batches = [keys[at : at + size] for at in range(0, len(keys), size)]
        return batches[:-1] if self.case.drop_last and batches and len(batches[-1]) < size else batches

    def make_loader(self):
        """Return a loader with random workers."""
        rng, case = self.rng, self.case
        mode = rng.choice(self.modes)
        workers = 0 if mode == "inline" else rng.choice([1, 2, 3, 5])
        how: dict[str, Any] = {"workers": workers, "prefetch": rng.choice([None, 1, 4])}
        if case.order == "ready" and not case.exact:
            how |= {"order": "ready", "window": rng.choice([None, 1, 3])}
        if mode == "processes":
            how |= {"mode": "processes", "start_method": "fork"}
        if case.batch_size is not None:
            how |= {
                "batch_size": case.batch_size,
                "collate": join_keys,
                "drop_last": case.drop_last,
                "exact": case.exact,
            }
        self.trail.append(f"Loader({how})")
        return wds.Loader(self.make(), **how)

    def play(self, stops=4):
        """Load epochs, stopped so many times, and compare; raise AssertionError where something else comes."""
        orders = self.list_orders()
        epoch, state = self.case.epoch, None
        left = orders[epoch]
        for stop in range(stops + 1):
            loader = self.make_loader()
            try:
                if state is None:
                    loader.set_epoch(epoch)
                else:
                    loader.load_state_dict(state)
                epoch, left, state = self._load(loader, orders, epoch, left, last=stop == stops)
            finally:
                loader.close()
            if state is None:
                return

    def play_ranks(self, set_rank, stops=3):
        """Load one epoch on ranks whose number changes at each stop; each sample comes once.

        Args:
            set_rank: makes this process a rank of so many.
            stops: how many times all ranks are stopped, and continue from their merged states.
        """
        rng, case = self.rng, self.case
        order, state, got = self.list_orders()[case.epoch], None, Counter()
        for stop in range(stops + 1):
            ranks = rng.choice([ranks for ranks in (1, 2, 3, 4) if case.streams % ranks == 0])
            most = None if stop == stops else rng.randrange(len(order) // ranks // (case.batch_size or 1) + 2)
            states = []
            for rank in range(ranks):
                set_rank(rank, ranks)
                loader = self.make_loader()
                self.trail.append(f"rank {rank} of {ranks}, {most} batches")
                try:
                    if state is not None:
                        loader.load_state_dict(state)
                    loader.set_epoch(case.epoch)
                    for batch in islice(loader, most):
                        got.update(batch if case.batch_size is not None else [show(batch)])
                    states.append(json.loads(json.dumps(loader.state_dict())))
                finally:
                    loader.close()
            rng.shuffle(states)
            state = wds.merge_states(states)
        due = Counter(key for _, key in order)
        trail = "\n".join(self.trail)
        assert not got - due, f"{got - due} too many\n{trail}"
        assert case.drop_last or not due - got, f"{due - got} lost\n{trail}"

    def _load(self, loader, orders, epoch, left, *, last):
        """Load up to a stop; return its epoch, what is left of that, and its state (None after the last epoch)."""
        rng, size = self.rng, self.case.batch_size
        ends = rng.random() < 0.3
        while True:
            wanted = self.cut_batches(left)
            if len(left) < len(orders[epoch]) and not wanted:  # of the state's epoch: the next one follows
                epoch += 1
                if epoch not in orders:
                    return epoch, [], None
                left = orders[epoch]
                continue
            stop = len(wanted) + 1 if last or ends else rng.randrange(len(wanted) + 2)
            self.trail.append(f"epoch {epoch}, {len(left)} left, stop after {stop} of {len(wanted)} batches")
            got = []
            batches = iter(loader)
            for batch in islice(batches, stop):
                got.append(batch if size is not None else show(batch))
                if rng.random() < 0.1:
                    loader.state_dict()
            left = self._compare(got, wanted[:stop], left)
            if stop > len(wanted):
                epoch += 1
                left = orders.get(epoch, [])
                if rng.random() < 0.5 and epoch in orders and not last:
                    continue
            if last or epoch not in orders:
                return epoch, left, None
            held = rng.random() < 0.5
            state = json.loads(json.dumps(loader.state_dict()))
            if not held:
                batches.close()
            return epoch, left, state

    def _compare(self, got, wanted, left):
        """Compare batches with those that are due; return what is left after them."""
        keys = got if self.case.batch_size is None else [key for batch in got for key in batch]
        if self.case.order == "exact" or self.case.exact:
            assert got == wanted, self.tell(got, wanted)
            return left[len(keys) :]
        sizes = [[1 if self.case.batch_size is None else len(batch) for batch in part] for part in (got, wanted)]
        taken = Counter(keys)
        # of as many batches, of as many samples, each is one that is due
        assert sizes[0] == sizes[1], self.tell(got, wanted)
        assert taken <= Counter(key for _, key in left), self.tell(got, wanted)
        rest = []
        for position, key in left:
            if taken[key]:
                taken[key] -= 1
            else:
                rest.append((position, key))
        return rest

    def tell(self, got, wanted):
        """Say what is wrong."""
        place = next((n for n, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), None)
        trail = "\n".join(self.trail)
        return f"{trail}\nat {place}: {len(got)} batches and not {len(wanted)}: {got[-3:]} and not {wanted[-3:]}"
