"""What users put into their pipelines, for the resume fuzz: functions of a sample, generators, objects, stages.

All of them keep the rules of docs/resume.md: what they give follows from their input; what they remember is in local
variables, or in a memory.
"""

import collections
import itertools
import random
import zlib

from PIL import Image

import webdataset as wds
from webdataset.stages.base import PassThroughStage, PassThroughState, Stage, StageState, observation, transform

# -- what tells items apart


def name_of(item):
    """Return what an item is known by: a key, or that of its first part."""
    while True:
        if isinstance(item, dict):
            return str(item.get("__key__", next(iter(item.values()), ""))).rpartition("/")[2]  # of urls, the file
        if not isinstance(item, tuple | list) or not item:
            return str(item[0] if hasattr(item, "shape") and item.shape else item)
        item = item[0]


def number_of(item):
    """Return a number that an item has in every process."""
    return zlib.crc32(name_of(item).encode())


def plain(item):
    """Return an item in a form whose ``repr`` tells all of it."""
    if isinstance(item, dict):
        return {name: plain(part) for name, part in item.items()}
    if isinstance(item, tuple | list):
        return tuple(map(plain, item)) if isinstance(item, tuple) else list(map(plain, item))
    if hasattr(item, "tobytes"):
        kind = item.dtype.str if hasattr(item, "dtype") else item.mode
        return (type(item).__name__, kind, getattr(item, "shape", None) or getattr(item, "size", None), item.tobytes())
    return item


def shown(item):
    """Return a text that is equal for equal items."""
    return repr(plain(item))


# -- functions of a sample, or of any item


def even(item):
    """Choose about half of the items."""
    return number_of(item) % 2 == 0


def most(item):
    """Choose nearly all items."""
    return number_of(item) % 13 != 0


def several(item):
    """Choose lists of more than one item."""
    return len(item) > 1


def tagged(sample):
    """Return a sample with a field more."""
    return {**sample, "tag": number_of(sample) % 100}


def bumped(sample):
    """Count in the sample itself how often it came by."""
    sample["bumped"] = sample.get("bumped", 0) + 1
    return sample


def some(item):
    """Return an item, or None for one in eleven."""
    return None if number_of(item) % 11 == 3 else item


def failing(item):
    """Fail for one item in seventeen."""
    if number_of(item) % 17 == 5:
        raise ValueError("one in seventeen")
    return item


def failing_once(item):
    """Fail for one item in three thousand."""
    if number_of(item) % 3001 == 77:
        raise ValueError("one in three thousand")
    return item


def number_in(stream):
    """Return the number that a stream holds as text, for ``xdecode``."""
    return int(stream.read())


def turned(items):
    """Return a list the other way round."""
    return list(items)[::-1]


def doubled(value):
    """Return text or bytes with its first sign once more."""
    return value + value[:1]


def sequenced(sample):
    """Return a sample with 0 to 60 tokens."""
    number = number_of(sample)
    return {**sample, "input_ids": [number + place for place in range(number % 61)]}


def count_thirds(sample):
    """Return the class of a sample."""
    return len(sample["input_ids"]) // 20, sample["__key__"][-1] in "02468"


def size_of_third(name):
    """Return how many samples of a class make a batch."""
    return (50, 20, 5, 3)[name[0]]


def flat(item):
    """Return an item's name and number."""
    return name_of(item), number_of(item) % 1000


def named(item):
    """Return any item as a sample."""
    return {"__key__": name_of(item), "txt": b"%d" % number_of(item), "cls": b"1"}


def drawn(sample, generator):
    """Return a sample with what a generator of its own draws."""
    number = generator if isinstance(generator, int) else generator.random()
    return {**sample, "draw": float(number)}


def painted(sample):
    """Return a sample with a small image."""
    return {**sample, "img": Image.new("L", (3, 4), number_of(sample) % 256)}


def chosen_members(name):
    """Leave out classes of some members, by name."""
    return not name.endswith("7.cls")


def renamed_members(name):
    """Give members other names."""
    return "r" + name


# -- generator functions


def passing(source):
    """Give everything."""
    yield from source


def delayed(size):
    """Give items ``size`` items later."""

    def later(source):
        held = collections.deque()
        for item in source:
            held.append(item)
            if len(held) > size:
                yield held.popleft()
        yield from held

    return later


def turned_blocks(size):
    """Give blocks of items, each from its end."""

    def blocks(source):
        while block := list(itertools.islice(source, size)):
            yield from reversed(block)

    return blocks


def sorted_blocks(size):
    """Give blocks of items, each sorted by number."""

    def blocks(source):
        while block := list(itertools.islice(source, size)):
            yield from sorted(block, key=number_of)

    return blocks


def mixed(size, seed):
    """Give items in random order, by a generator of its own."""

    def mixing(source):
        draw, held = random.Random(seed), []
        for item in source:
            held.append(item)
            if len(held) >= size:
                yield held.pop(draw.randrange(len(held)))
        draw.shuffle(held)
        yield from held

    return mixing


def copied(item):
    """Return an item that can be changed in place without changing this one."""
    return item.copy() if type(item) in (dict, list) else item


def expanded(times):
    """Give each item up to ``times`` times, each time as a copy of its own."""

    def expanding(source):
        for item in source:
            for _ in range(number_of(item) % (times + 1)):
                yield copied(item)

    return expanding


def thinned(every):
    """Leave out every n-th item."""

    def thinning(source):
        for number, item in enumerate(source, 1):
            if number % every:
                yield item

    return thinning


def windows(size, step):
    """Give lists of the last ``size`` items, at every ``step``-th item."""

    def sliding(source):
        held = collections.deque(maxlen=size)
        for number, item in enumerate(source):
            held.append(copied(item))
            if number % step == 0:
                yield [copied(part) for part in held]

    return sliding


def runs_of_items(most_items):
    """Give lists of items, of lengths that items decide."""

    def grouping(source):
        group = []
        for item in source:
            group.append(item)
            if number_of(item) % most_items == 0:
                yield group
                group = []
        if group:
            yield group

    return grouping


def numbered(source):
    """Give pairs of ordinal and item."""
    for number, item in enumerate(source):
        yield number, item


def unique(source):
    """Give each name once."""
    seen = set()
    for item in source:
        if name_of(item) not in seen:
            seen.add(name_of(item))
            yield item


def until(count):
    """Give so many items, and end."""

    def ending(source):
        yield from itertools.islice(source, count)

    return ending


def ahead(size):
    """Read ahead of who asks."""

    def reading(source):
        held = collections.deque(itertools.islice(source, size))
        while held:
            item = held.popleft()
            held.extend(itertools.islice(source, 1))
            yield item

    return reading


def as_list(source):
    """Read everything before giving anything, and return no generator."""
    return iter(sorted(source, key=number_of))


def picked(source, keep):
    """Give items whose number is below a limit; a maker of stages is made of it."""
    for item in source:
        if number_of(item) % 10 < keep:
            yield item


picking = wds.pipelinefilter(picked)

# -- objects


class Delay(wds.PipelineStage):
    """A stage as an object, as upstream's users write it.

    Args:
        size: how many items later.
    """

    def __init__(self, size):
        self.size = size

    def run(self, source):
        """Give items later."""
        return delayed(self.size)(source)


class Called:
    """An object that is called.

    Args:
        size: of blocks.
    """

    def __init__(self, size):
        self.size = size

    def __call__(self, source):
        """Give blocks from their ends."""
        yield from turned_blocks(self.size)(source)


class Marked(Stage):
    """A transparent stage of a user's."""

    transparent = True

    def flow(self, upstream, state):
        """Give items, samples with a mark."""
        for item in upstream:
            yield {**item, "marked": len(item)} if isinstance(item, dict) else item


class Every(PassThroughStage):
    """Lets every n-th item pass, and remembers how many came.

    Args:
        step: n.
    """

    class Count(PassThroughState):
        """How many came."""

        count = 0

        def snapshot(self):
            """Return it."""
            return self.count

        def restore(self, state, fetch):
            """Take it up."""
            self.count = state

    def __init__(self, step):
        self.step = step

    def begin(self, run):
        """Begin with none."""
        return self.Count()

    def flow(self, upstream, state):
        """Give every n-th."""
        for item in upstream:
            state.count += 1
            if state.count % self.step == 0:
                yield item


class Summed(Stage):
    """Pairs each item with the sum of the numbers so far: what is made again needs more than the item."""

    class Sum(StageState):
        """The sum; it is part of the address."""

        total = 0

        @property
        def address(self):
            """Sum and address upstream."""
            return [self.total, self.origin() if self.origin is not None else None]

        def snapshot(self):
            """Return the sum."""
            return self.total

        def restore(self, state, fetch):
            """Take it up."""
            self.total = state

    def begin(self, run):
        """Begin with 0."""
        return self.Sum()

    def flow(self, upstream, state):
        """Give pairs."""
        for item in upstream:
            state.total += number_of(item) % 1000
            yield item, state.total

    def refetch(self, addresses, fetch, state=None):
        """Pair the items with the sums in their addresses."""
        items = fetch([inner for _, inner in addresses])
        return [(item, total) for item, (total, _) in zip(items, addresses, strict=True)]


class Held(PassThroughStage):
    """Gives items later, and remembers the addresses of what waits.

    Args:
        size: how many items later.
    """

    class Waiting(StageState):
        """What waits: pairs of address and item."""

        def __init__(self):
            self.held = collections.deque()

        def snapshot(self):
            """Return the addresses."""
            return [address for address, _ in self.held]

        def restore(self, state, fetch):
            """Fetch the items."""
            self.held.extend(zip(state, fetch(state), strict=True))

    def __init__(self, size):
        self.size = size

    def begin(self, run):
        """Begin with nothing."""
        return self.Waiting()

    def flow(self, upstream, state):
        """Give items later."""
        held, origin = state.held, state.origin
        for item in upstream:
            held.append((origin() if origin is not None else None, item))
            if len(held) > self.size:
                state.address, given = held.popleft()
                yield given
        while held:
            state.address, given = held.popleft()
            yield given


@transform
def suffixed(source, sign):
    """Put a sign behind the text of samples."""
    for item in source:
        yield {**item, "suffix": sign}


@observation
def watched(source, every):
    """Look at items, and leave out some."""
    for item in source:
        if number_of(item) % every:
            yield item


def seeded(pipeline, seed):
    """Give a pipeline a seed."""
    pipeline.seed = seed
    return pipeline
