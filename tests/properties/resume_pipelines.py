"""Random pipelines of all stages, as code: a number makes a case, and the code that it prints makes the pipeline.

What an item is (a sample, a tuple, a list, a batch, anything) is followed from stage to stage, so that most pipelines
are legal. Buffers are drawn by stream: several hundred items are frequent, so that borders of the shuffles' journals
(every 128 items that enter, or a quarter of the buffer) lie within what a run reads.
"""

import random
from dataclasses import dataclass, replace

import resume_shards
import resume_stages

import webdataset as wds
from webdataset.stages import augment, map, mix

NAMES = {
    "wds": wds,
    "Concat": mix.Concat,
    "EvenMix": mix.EvenMix,
    "labelled": map.add_label,
    "kept": map.keep_fields,
    "first_of": map.keep_first,
    **{name: getattr(augment, name) for name in ("scale", "rotprob", "noise", "patches")},
    **{module: part for source in (resume_shards, resume_stages) for module, part in vars(source).items()},
    "Random": random.Random,
}
STREAMS = {1: 3, 2: 5, 3: 4, 5: 3, 8: 2, 24: 2}
SAMPLE, TUPLE, LIST, BATCH, IMAGE, ANY = "sample", "tuple", "list", "batch", "image", "any"
SOURCES = {
    "tar": 9, "mix": 6, "rows": 2, "records": 1, "documents": 2, "damaged": 2, "draws": 2, "nested": 1, "stages": 2,
}  # fmt: skip
TAR = ("one", "few", "sparse", "even", "uneven", "many", "gz", "long")


@dataclass(frozen=True)
class Case:
    """A pipeline, and how it is run.

    Args:
        seed: what it was drawn from.
        source: code of the dataset.
        steps: code of its stages.
        tail: code of its bounds.
        streams: number of virtual streams; None for a plain run.
        epoch: number of the epoch.
        even: ranks have to divide the streams.
        ranks: how many there have to be, where the number of items depends on it.
    """

    seed: int
    source: str
    steps: tuple[str, ...]
    tail: tuple[str, ...]
    streams: int | None
    epoch: int
    even: bool = False
    ranks: int | None = None

    @property
    def code(self):
        """The pipeline as an expression."""
        steps = [step if step.startswith(".") else f".compose({step})" for step in (*self.steps, *self.tail)]
        return self.source + "".join(steps) + ("" if self.streams is None else f".elastic({self.streams})")

    def make(self, epoch=None):
        """Return the dataset, which begins with this case's epoch (or another)."""
        made = eval(self.code, dict(NAMES))
        made.set_epoch(self.epoch if epoch is None else epoch)
        return made

    def without(self, place):
        """Return the case without one of its steps or bounds; the later ones first."""
        parts = [*self.steps, *self.tail]
        del parts[place]
        count = len(self.steps) - (place < len(self.steps))
        return replace(self, steps=tuple(parts[:count]), tail=tuple(parts[count:]))


def weighted(rng, weights):
    """Return a key of a dictionary, drawn by its weights."""
    return rng.choices(list(weights), list(weights.values()))[0]


class Drawing:
    """Draws one pipeline.

    Args:
        rng: the generator.
        streams: number of virtual streams, or None.
        many: how many samples there are, about.
    """

    def __init__(self, rng, streams, many=6000):
        self.rng = rng
        self.streams = streams
        self.many = many
        self.kind = SAMPLE
        self.bytes = True  # the fields are as they are in the shard
        self.fields = ["txt", "cls"]
        self.grown = False

    # -- shuffles and what else holds any items

    def per_stream(self):
        """Return how many items a buffer holds in each stream."""
        size = weighted(self.rng, {2: 1, 9: 1, 60: 2, 130: 3, 300: 6, 520: 6, 900: 3, 1500: 1})
        return max(min(size, self.many // (self.streams or 1)) + self.rng.randrange(-1, 40), 1)

    def shuffle(self):
        """Return a shuffle."""
        rng, streams = self.rng, self.streams or 1
        size = self.per_stream() * streams + rng.randrange(streams)
        initial = rng.choice([None, 1, size // 3, size, size * 2])
        options = "" if initial is None else f", initial={initial}"
        kind = weighted(rng, {"shuffle": 12, "seed": 2, "bytes": 3, "det": 3, "block": 2, "rng": self.streams is None})
        if kind == "det":
            return f"wds.detshuffle({size}{options}, seed={rng.randrange(99)})"
        if kind == "block":
            return f"wds.block_shuffle({size}{rng.choice(['', ', seed=3'])})"
        if kind == "bytes":
            options += f", max_bytes={max(size * rng.choice([20, 60, 400]), 1)}"
        options += {"seed": ", seed=5", "rng": ", rng=Random(8)"}.get(kind, "")
        return f"wds.shuffle({size}{options})"

    def foreign(self):
        """Return a stage of the user's that takes any items."""
        rng = self.rng
        size = rng.choice([1, 2, 5, 40, 300, 900])
        kept = [
            "passing", f"delayed({size})", f"turned_blocks({size})", f"sorted_blocks({size})", f"ahead({size})",
            f"mixed({size}, {rng.randrange(9)})", f"Delay({size})", f"Called({size})", "unique",
            "as_list", f"Every({rng.choice([1, 2, 7])})", f"Held({size})", f"watched({rng.choice([2, 9])})", "Marked()",
        ]  # fmt: skip
        fewer = [
            f"thinned({rng.choice([2, 3, 50])})",
            f"picking({rng.choice([3, 8])})",
            f"until({rng.choice([900, 5000])})",
        ]
        code = rng.choice(kept if rng.random() < 0.8 else fewer)
        if code == "passing" and rng.random() < 0.3:
            return f"wds.compose(passing, {self.shuffle()})"
        return code

    def anything(self):
        """Return a stage that takes any items and keeps their kind."""
        rng = self.rng
        chosen = weighted(rng, {"shuffle": 10, "foreign": 9, "choice": 3, "slice": 2, "map": 3, "watch": 1, "grow": 2})
        if chosen == "grow":
            if self.grown:
                return self.foreign()
            self.grown = True
            return f"expanded({rng.choice([2, 3])})"
        if chosen == "choice":
            return rng.choice(["wds.select(even)", "wds.select(most)", "wds.rsample(0.6)", "wds.rsample(0.95)"])
        if chosen == "slice":
            size = rng.choice([self.many // 2, self.many * 5 // 6])
            first = rng.randrange(300)
            return rng.choice([f"wds.slice({size})", f"wds.slice({first}, None, 2)", f"wds.slice({first}, {size}, 3)"])
        if chosen == "map":
            handler = ", handler=wds.ignore_and_continue"
            once = f"wds.map(failing_once, handler=wds.ignore_and_{rng.choice(['stop', 'continue'])})"
            return rng.choice(["wds.map(some)", f"wds.map(failing{handler})", once])
        if chosen == "watch":
            return rng.choice(["wds.info(n=0)", 'wds.log_keys("/dev/null")', "wds.log_keys()"])
        return self.shuffle() if chosen == "shuffle" else self.foreign()

    # -- by kind

    def step(self):
        """Return the code of one more stage, or of several that belong together."""
        own = {SAMPLE: self.of_samples, TUPLE: self.of_tuples, LIST: self.of_lists, BATCH: self.of_batches}
        if self.kind in own and self.rng.random() < (0.7 if self.kind == BATCH else 0.45):
            made = own[self.kind]()
            return made if isinstance(made, list) else [made]
        return [self.anything()]

    def joined(self):
        """Return a stage that joins items to lists."""
        rng, self.kind = self.rng, LIST
        size = rng.choice([1, 2, 3, 5, 7, 16])
        listed = f"wds.listed({size}{rng.choice(['', ', partial=False'])})"
        return rng.choice([listed, listed, f"windows({size}, {max(size // 2, 1)})", f"runs_of_items({size + 1})"])

    def of_samples(self):
        """Return a stage for samples that are dictionaries."""
        rng, field = self.rng, self.rng.choice(self.fields)
        same = [
            "wds.map(tagged)", "wds.map(bumped)", "wds.map(bumped)", "wds.associate(known)", 'labelled("a", {"b": 1})',
            'suffixed("z")', "wds.map_with_rng(drawn, salt=2)", 'wds.map_with_rng(drawn, rng="seed")',
            f'kept("{field}", "__key__")', 'wds.rename_keys(("more", "*x*"), keep_unselected=True, must_match=False)',
        ]  # fmt: skip
        if self.bytes:
            same += [f"wds.map_dict({field}=doubled)"] * 2
        kinds = {"same": 8, "tuple": 4, "join": 5, "decode": 2, "rename": 2, "image": 1, "flat": 2, "sum": 1, "pack": 2,
                 "bucket": 3}  # fmt: skip
        chosen = weighted(rng, kinds)
        if chosen == "decode" and self.bytes and self.fields == ["txt", "cls"]:
            self.bytes = False
            return rng.choice(["wds.decode()", "wds.decode()", "wds.xdecode(cls=number_in, must_decode=False)"])
        if chosen == "rename":
            new = f"new{len(field)}"
            self.fields = [new if name == field else name for name in self.fields]
            return f'wds.rename({new}="{field}")'
        if chosen == "image":
            self.kind = IMAGE
            inner = ["rotprob(0.5)", "scale(0.5, 2)", "noise(0.1)", "patches(2, 2)", "wds.shuffle(400)", "passing"]
            return ["wds.map(painted)", *rng.sample(inner, 3)]
        if chosen == "join":
            return self.joined()
        if chosen in ("pack", "bucket"):
            self.kind = ANY if chosen == "pack" else LIST
            return ["wds.map(sequenced)", self.packed() if chosen == "pack" else self.bucketed()]
        if chosen in ("tuple", "flat", "sum"):
            self.kind = TUPLE
            if chosen == "sum":
                return rng.choice(["Summed()", "numbered"])
            if chosen == "flat":
                return "wds.map(flat)"
            return rng.choice([f'wds.to_tuple("__key__", "{field}")', f'wds.extract_keys("*__key__", "*{field}")'])
        return rng.choice(same)

    def packed(self):
        """Return a stage that packs sequences of up to 60 tokens."""
        rng = self.rng
        length, window = rng.choice([16, 50, 64, 200, 1000]), self.per_stream() * (self.streams or 1)
        most = rng.choice(["", "", ", max_samples=3"])
        ways = [
            f'"concat", output="{rng.choice(["flat", "padded"])}"',
            f'"window", window={window}, oversize="{rng.choice(["split", "truncate", "drop"])}"',
            f'"window", window={window}, oversize="raise", handler=wds.ignore_and_continue',
            f'output="samples", window={window}, oversize="drop"',
            f'output="samples", window={window}, oversize="raise", handler=wds.ignore_and_stop',
        ]
        return f"wds.pack({length}, {rng.choice(ways)}{most})"

    def bucketed(self):
        """Return a stage that gathers sequences of up to 60 tokens into batches of like length."""
        rng = self.rng
        sizes = rng.choice(["batch_size=3", "batch_size=[40, 20, 7]", "max_total=200", "max_total=3000"])
        ways = [f'"input_ids", [8, 25, 60], {sizes}'] * 2 + [
            "count_thirds, batch_size=9", "count_thirds, batch_size=size_of_third", f'"{self.fields[0]}", batch_size=2',
            '"input_ids", [8, 25], batch_size=30, handler=wds.ignore_and_continue',
            '"input_ids", [8, 50], batch_size=30, handler=wds.ignore_and_stop',
        ]  # fmt: skip
        window = rng.choice(["", "", f", window={self.per_stream() * (self.streams or 1)}"])
        return f"wds.bucket({rng.choice(ways)}, collation_fn=None{window}{rng.choice(['', '', ', partial=False'])})"

    def of_tuples(self):
        """Return a stage for tuples."""
        rng = self.rng
        chosen = weighted(rng, {"map": 3, "join": 4, "batch": 4, "named": 1})
        if chosen == "batch":
            self.kind = BATCH
            options = rng.choice(["", ", partial=False", ", collation_fn=None"])
            return f"wds.batched({rng.choice([1, 2, 3, 7, 10])}{options})"
        if chosen == "join":
            return self.joined()
        if chosen == "named":
            self.kind, self.fields, self.bytes = SAMPLE, ["txt", "cls"], True
            return "wds.map(named)"
        return rng.choice(["wds.map_tuple(None, shown)", "wds.map(turned)", "wds.map_tuple(shown)"])

    def of_lists(self):
        """Return a stage for lists."""
        chosen = weighted(self.rng, {"apart": 6, "map": 2, "select": 1})
        if chosen == "apart":
            self.kind = ANY
            return "wds.unlisted()"
        return "wds.map(turned)" if chosen == "map" else "wds.select(several)"

    def of_batches(self):
        """Return a stage for batches."""
        self.kind = ANY
        return "wds.unbatched()"

    # -- sources

    def dataset(self, seed, *, inner=False):
        """Return the code of a dataset over tar shards.

        Args:
            seed: of the dataset, or None.
            inner: it is a part of a mix, and reads a part of a shelf.
        """
        rng = self.rng
        name = rng.choice(TAR)
        urls = f'shelf("{name}")'
        count = len(resume_shards.LENGTHS[name])
        if inner and count > 1:
            first = rng.randrange(count // 2)
            urls += f"[{first}:{first + max(count // 2, 1)}]"
        options = [f"seed={seed}", "empty_check=False"]
        options.append(rng.choice(["shardshuffle=False", "shardshuffle=100", "shardshuffle=1000", "shardshuffle=5"]))
        if rng.random() < 0.2:
            options.append("detshuffle=True")
        if rng.random() < 0.3:
            options.append(f"open_shards={rng.choice([2, 3, 5]) * rng.choice([1, self.streams or 1])}")
        if rng.random() < 0.1:
            options.append("addresses=True")
        if rng.random() < 0.15 and not inner:
            options.append(rng.choice(["select_files=chosen_members", "rename_files=renamed_members"]))
            self.fields = ["txt"]
        return f"wds.WebDataset({urls}, {', '.join(options)})"

    def part(self, depth):
        """Return the code of one source of a mix."""
        rng = self.rng
        chosen = weighted(rng, {"rows": 3, "tar": 5, "mix": depth < 2, "counting": 1})
        if chosen == "rows":
            return f"rows({rng.randrange(99)}, {rng.randrange(500, 2500)})"
        if chosen == "counting":
            return f"Counting({rng.randrange(99)}, {rng.randrange(500, 2500)})"
        if chosen == "mix":
            return self.mix(depth + 1)
        code = self.dataset(rng.choice([None, 4]), inner=True)
        before, self.kind, self.fields = self.kind, ANY, ["txt", "cls"]
        for _ in range(rng.randrange(3)):
            step = self.anything()
            code += f".compose({step})" if not step.startswith("wds.slice") else ""
        self.kind = before
        return code + weighted(rng, {"": 6, ".repeat(2)": 1, ".with_epoch(1500)": 1})

    def mix(self, depth=0):
        """Return the code of a mix."""
        rng = self.rng
        kind = weighted(rng, {"wds.RandomMix": 5, "wds.RoundRobin": 4, "EvenMix": 2, "Concat": 2})
        count = rng.choice([2, 2, 3, 3, 13])
        if depth == 0 and rng.random() < 0.1 and kind != "EvenMix":
            return f"repeated({kind}, 2, {self.dataset(rng.choice([None, 4]), inner=True)})"
        if count > 3:
            parts = [f"rows({number}, {rng.randrange(300, 700)})" for number in range(count)]
        else:
            parts = [self.part(depth) for _ in range(count)]
        options = "" if kind == "Concat" else rng.choice(["", ", longest=True", ", longest=True"])
        if kind in ("wds.RandomMix", "EvenMix") and rng.random() < 0.6:
            options += f", probs={[rng.choice([1, 2, 0.5]) for _ in parts]}"
        if kind == "wds.RandomMix" and rng.random() < 0.3:
            options += ", seed=6"
        return f"{kind}([{', '.join(parts)}]{options})"

    def documents(self):
        """Return the source and the first stage of a pipeline of documents."""
        rng = self.rng
        self.kind = ANY
        options = f"shardshuffle={rng.choice([False, 30, 500])}, seed=1, empty_check=False"
        source = f'wds.WebDataset(shelf("documents"), {options})'
        others = rng.choice(["pass", "drop"])
        return source, [
            rng.choice([
                f'wds.interleaved(others="{others}", adjacent=False)',
                f'wds.interleaved(others="{others}", missing_image="drop_image", lookahead={rng.choice([2, 3, 5])})',
                f"wds.sibling_fields(named={rng.choice([True, False])}, adjacent={rng.choice([True, False])})",
            ])
        ]  # fmt: skip

    def source(self):
        """Return the code of the source, and that of stages that belong to it."""
        rng = self.rng
        seed = rng.randrange(1 << 30)
        chosen = weighted(rng, SOURCES)
        if chosen == "documents":
            return self.documents()
        if chosen == "damaged":
            self.many = 5000
            handler = f"handler=wds.ignore_and_{weighted(rng, {'continue': 4, 'stop': 1})}"
            options = f"shardshuffle={rng.choice([7, 0])}, seed={seed}, {handler}, open_shards={rng.choice([1, 1, 4])}"
            return f"wds.WebDataset(broken(), {options})", []
        if chosen == "tar":
            return self.dataset(seed), []
        if chosen == "draws":
            if rng.random() < 0.3:
                source = f"wds.MultiShardSample(chosen({rng.choice([9, 20])}))"
                return f"seeded(wds.DataPipeline({source}, wds.tarfile_to_samples()), {seed})", []
            made = rng.choice(["nshards=30", f"nshards=40, seed={rng.randrange(9)}", "nshards=25, deterministic=True"])
            shards = f'wds.ResampledShards(shelf("{rng.choice(["even", "sparse", "uneven"])}"), {made})'
            return f"seeded(wds.DataPipeline({shards}, wds.tarfile_to_samples()), {seed})", []
        if chosen == "stages":
            before = ["wds.shuffle(400)", "wds.slice(200)", "wds.block_shuffle(150)", "turned_blocks(9)", "expanded(1)"]
            shards = f'wds.SimpleShardList(shelf("{rng.choice(["many", "uneven"])}"))'
            return f"seeded(wds.DataPipeline({shards}, {rng.choice(before)}, wds.tarfile_to_samples()), {seed})", []
        if chosen == "records":
            inner = 'wds.SimpleShardList(shelf("records")), wds.shuffle(9), wds.msgpacks_to_samples()'
        elif chosen == "mix":
            inner = self.mix()
        elif chosen == "nested":
            inner = self.dataset(None) + f".compose({self.shuffle()})"
        else:
            number = rng.randrange(99)
            inner = rng.choice([f"[rows({number}, 6100)]", f"Counting({number}, 6100)", f"counted({number}, 6100)"])
        return f"seeded(wds.DataPipeline({inner}), {seed})", []

    def tail(self):
        """Return what bounds the pipeline, and how many ranks there have to be."""
        rng = self.rng
        chosen = weighted(rng, {"": 9, "repeat": 2, "epoch": 2, "equal": 1})
        if chosen == "equal" and self.streams is not None:
            ranks = rng.choice([ranks for ranks in (1, 2, 3, 4, 5, 8) if self.streams % ranks == 0])
            return (f'.equal_epochs("resample", steps={rng.choice([3000, 6000]) // ranks})',), ranks
        if chosen == "repeat":
            return (rng.choice([".repeat(2)", ".repeat(2, 7000)"]),), None
        if chosen == "epoch":
            return (f".with_epoch({rng.choice([2500, 7000])})",), None
        return (), None


def drawn(seed):
    """Return the case of a seed."""
    rng = random.Random(f"resume {seed}")
    streams = weighted(rng, STREAMS) if rng.random() < 0.85 else None
    drawing = Drawing(rng, streams)
    epoch = rng.choice([0, 0, 1, 2])
    if rng.random() < 0.05 and streams is not None:
        return shared_equally(seed, drawing, epoch)
    source, steps = drawing.source()
    for _ in range(rng.choice([1, 2, 3, 3, 4, 4, 5, 6])):
        steps += drawing.step()
    if rng.random() < 0.6:
        steps.append(drawing.shuffle())
    tail, ranks = drawing.tail()
    even = ranks is not None or "with_epoch" in "".join(tail)
    return Case(seed, source, tuple(steps), tail, streams, epoch, even, ranks)


def shared_equally(seed, drawing, epoch):
    """Return a case whose streams give equally many items; there are only stages whose numbers of items are known."""
    rng = drawing.rng
    name, how = rng.choice(["even", "uneven", "few"]), rng.choice(["drop", "pad"])
    source = f'wds.WebDataset(shelf("{name}"), shardshuffle=50, seed={rng.randrange(99)}, empty_check=False)'
    steps = [
        f'.equal_epochs("{how}", counts=counts("{name}"))',
        drawing.shuffle(),
        "wds.map(tagged)",
        drawing.shuffle(),
    ]
    steps += rng.choice([[], ["wds.batched(5)"]])
    return Case(seed, source, tuple(steps), rng.choice([(), (".repeat(2)",)]), drawing.streams, epoch, even=True)
