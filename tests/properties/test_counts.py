"""What a run went on without is counted exactly: at every batch, whatever makes it, and across every cut."""

import io
import json
import random
import tarfile
import warnings
from collections import Counter
from itertools import islice

import pytest

import webdataset as wds
from webdataset.core.error_handlers import SkipCounts, count_skipped
from webdataset.core.errors import NoSamples
from webdataset.stages.base import Run

MODES = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 3},
    {"workers": 2, "mode": "processes", "start_method": "fork"},
]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return the urls of 7 shards: one is missing, one breaks off, one has samples with a field twice."""
    folder = tmp_path_factory.mktemp("damaged")
    urls, number = [], 0
    for shard in range(7):
        urls.append(str(folder / f"shard-{shard}.tar"))
        if shard == 2:
            continue
        with wds.TarWriter(urls[-1]) as writer:
            for _ in range(13 + 9 * (shard % 3)):
                writer.write({"__key__": f"{number:05d}", "cls": number, "txt": "x" * (number % 40)})
                number += 1
    with open(urls[4], "r+b") as broken:
        broken.truncate(9000)
    with tarfile.open(urls[5]) as whole:
        members = [(member, whole.extractfile(member).read()) for member in whole]
    with tarfile.open(urls[5], "w") as twice:
        for number, (member, content) in enumerate(members):
            for _ in range(2 if number % 6 == 4 else 1):  # a field twice: told to the handler, the first one holds
                twice.addfile(member, io.BytesIO(content))
    return urls


def through(samples):
    """Let samples pass, as a user's stage that is resumed by replay."""
    yield from samples


def grouping(samples):
    """Drop every ninth sample and give every fifth twice: a user's stage whose items are not its input's."""
    for number, sample in enumerate(samples):
        if number % 9 != 4:
            yield sample
        if number % 5 == 0:
            yield {**sample}


def failing(rng, share):
    """Return a function that fails at some classes."""
    bad = {n for n in range(200) if rng.random() < share}

    def picky(sample):
        if sample["cls"] in bad:
            raise ValueError("bad")
        return sample

    return picky


def dropping(rng, share):
    """Return a function that returns None at some classes."""
    gone = {n for n in range(200) if rng.random() < share}

    def choosy(sample):
        return None if sample["cls"] in gone else sample

    return choosy


def source(urls, rng):
    """Return the reading part of a random dataset."""
    on = wds.ignore_and_continue
    options = {"shardshuffle": rng.choice([False, 100]), "open_shards": rng.choice([1, 1, 2])}
    return wds.WebDataset(urls, handler=on, seed=rng.randrange(99), **options).decode(handler=on)


def pipeline(urls, rng):
    """Return a random elastic dataset that loses samples in many ways, and the names of its stages."""
    on = wds.ignore_and_continue
    if rng.random() < 0.25:
        half = source(urls[:3], rng).map(failing(rng, 0.2), handler=on)
        kind = rng.choice([wds.RoundRobin, lambda two, longest: wds.RandomMix(two, longest=longest)])
        made = wds.FluidWrapper(kind([half, source(urls[3:], rng).map(dropping(rng, 0.3))], longest=True))
        made.seed, names = 5, ["mix"]
    else:
        made, names = source(urls, rng), []
    steps = {
        "fail": lambda d: d.map(failing(rng, rng.choice([0.1, 0.5])), handler=on),
        "drop": lambda d: d.map(dropping(rng, rng.choice([0.1, 0.5]))),
        "draw": lambda d: d.map(lambda sample, own: None if own.random() < 0.1 else sample, rng=True),
        "shuffle": lambda d: d.shuffle(rng.choice([3, 20, 300])),
        "bytes": lambda d: d.shuffle(100, max_bytes=rng.choice([500, 5000])),
        "foreign": lambda d: d.compose(through),
        "group": lambda d: d.compose(grouping),
        "listed": lambda d: d.listed(rng.choice([3, 7])).unlisted(),
        "slice": lambda d: d.slice(rng.randrange(40, 120)),
    }
    chosen = rng.choices(list(steps), k=rng.randrange(2, 6))
    for name in chosen:
        made = steps[name](made)
    names += chosen
    streams = rng.choice([1, 4, 12])
    if rng.random() < 0.4 and streams < 12:
        made = made.with_epoch(rng.randrange(30, 250))
        names.append("epoch")
    return made.map(number_of).elastic(streams), names


def number_of(sample):
    """Return the sample's class."""
    return sample["cls"]


def received(loader, state=None, epoch=0):
    """Yield numbers, counts and the state after each batch of an epoch."""
    if state is None:
        loader.set_epoch(epoch)
    else:
        loader.load_state_dict(json.loads(json.dumps(state)))
    for batch in loader:
        yield [int(number) for number in ([batch] if loader.batch_size is None else batch)], counts(loader.stats())


def counts(found):
    """Return what was counted, by stage."""
    return Counter({f"skipped {name}": n for name, n in found.skips.items()}) + Counter(
        {f"dropped {name}": n for name, n in found.drops.items()}
    )


def within(least, found, most):
    """Tell whether counts lie between others."""
    return all(least[name] <= found[name] <= most[name] for name in least | found | most)


def check_at_every_batch(dataset, size, mode, epoch=0):
    """Compare the counts after every batch with those of a run that makes one sample after the other."""
    dataset.set_epoch(epoch)
    timed = dataset.timed()
    alone = [counts(timed) for _ in timed]
    alone.append(counts(timed))
    number = 0
    with wds.Loader(dataset, size, **mode) as loader:
        for numbers, found in received(loader, epoch=epoch):
            number += len(numbers)
            # ends of streams that lie after the last sample, and before the next, may have been found
            assert within(alone[number - 1], found, alone[number]), (number, alone[number - 1], found, alone[number])
        assert counts(loader.stats()) == alone[-1]
    assert number == len(alone) - 1
    return alone[-1]


def check_sums(dataset, size, modes, rng, epoch, length):
    """Stop and go on at random places until the end, and add up. The last loader runs to the end of the epoch."""
    cuts, total, state, numbers = [], Counter(), None, []
    while True:
        with wds.Loader(dataset, size, prefetch=rng.randrange(5), **rng.choice(modes)) as loader:
            stop, batches = rng.randrange(1, 9), 0
            saving = rng.random() < 0.5  # who saves often makes workers say their states always
            for batch, _ in received(loader, state, epoch):
                numbers += batch
                batches += 1
                if saving:
                    loader.state_dict()
                if batches == stop and len(numbers) < length:
                    break
            total += counts(loader.stats())
            cuts.append(batches)
            if len(numbers) >= length:
                return total, numbers, cuts
            state = loader.state_dict()


def check(urls, seed, modes=MODES):
    """Check one random dataset."""
    rng = random.Random(seed)
    dataset, names = pipeline(urls, rng)
    size, epoch = rng.choice([None, 1, 4, 8]), rng.choice([0, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.set_epoch(epoch)
        try:
            order = list(dataset)
        except NoSamples:  # a stream that is to begin again for ever, and drops all of its few samples
            return
        expected = check_at_every_batch(dataset, size, rng.choice(modes), epoch)
        total, numbers, cuts = check_sums(dataset, size, modes, rng, epoch, len(order))
    assert numbers == order, (seed, names)
    assert total == expected, (seed, names, cuts)


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(12))
def test_counts_are_exact_at_every_batch_and_add_up(damaged, seed):
    """Whatever is skipped or dropped, wherever a run is cut, and whoever goes on: nothing is counted twice or not."""
    check(damaged, seed)


@pytest.mark.parametrize("seed", range(40, 52))
def test_counts_of_one_process_add_up(damaged, seed):
    """The same without a loader: of a plain run and its snapshot, and of timed(), first and behind a state."""
    rng = random.Random(seed)
    dataset, names = pipeline(damaged, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_snapshots(wds.DataPipeline(*dataset.pipeline).repeat(2), rng, names)
        dataset.set_epoch(1)
        whole, cut = dataset.timed(), dataset.timed()
        order = list(whole)
        stop = rng.randrange(1, len(order))
        run = iter(dataset)
        first = [next(run) for _ in range(stop)]
        assert list(islice(cut, stop)) == first == order[:stop]
        dataset.load_state_dict(run.state_dict())
        rest = dataset.timed()
        assert list(rest) == order[stop:]
    assert counts(cut) + counts(rest) == counts(whole), (seed, names, stop)


def check_snapshots(plain, rng, names):
    """Cut a plain run wherever it comes, and go on from its snapshot; all runs together count what one counts."""
    order, expected, _ = counted_run(plain, None)
    items, total, state = [], Counter(), None
    while len(items) < len(order):
        stop = rng.randrange(1, max(2, len(order) // 2))
        given, found, state = counted_run(plain, state, stop if len(items) + stop < len(order) else None)
        items += given
        total += found
    assert items == order, names
    assert total == expected, names


def counted_run(plain, state, stop=None):
    """Return the items of a run, what was counted, and its snapshot; up to some item, or to its end."""
    skips, drops = SkipCounts(), SkipCounts()
    with plain.start(Run(seed=7), state=state) as run:
        with count_skipped(skips, drops):
            items = list(run if stop is None else islice(run, stop))
        told = Counter({f"skipped {name}": n for name, n in skips.items()})
        return items, told + Counter({f"dropped {name}": n for name, n in drops.items()}), run.snapshot()
