"""shuffle(max_bytes=)."""

import json
import random

import pytest

from webdataset import filters
from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.flow.run import Flow
from webdataset.stages import shuffle_journal
from webdataset.stages.address_codec import encode_addresses
from webdataset.stages.base import Run
from webdataset.testing.stages import Samples, check_resume

WEIGHTS = [random.Random(3).randrange(1, 400) for _ in range(200)]
SAMPLES = [{"__key__": f"{n}", "bin": b"x" * weight} for n, weight in enumerate(WEIGHTS)]


def keys(samples):
    """Their keys."""
    return [sample["__key__"] for sample in samples]


def weight(sample):
    """What the bound counts."""
    return len(sample["bin"])


@pytest.mark.parametrize(("size", "most"), [(50, 2000), (1000, 3000), (8, 10**9), (50, 300)])
def test_the_bounds_hold_behind_every_output(size, most):
    """Neither number nor bytes that wait exceed what was asked for, and nothing is lost."""
    waiting = {}

    def source():
        for sample in SAMPLES:
            waiting[sample["__key__"]] = weight(sample)
            yield sample

    given = []
    for sample in filters.shuffle(size, initial=10, max_bytes=most)(source()):
        del waiting[sample["__key__"]]
        given.append(sample["__key__"])
        assert sum(waiting.values()) <= most + max(WEIGHTS) + 3  # the newest may not be in the buffer yet
        assert len(waiting) <= size
    assert sorted(given) == sorted(keys(SAMPLES))
    assert given != keys(SAMPLES)


def test_a_heavy_sample_passes_by_the_buffer():
    """It is given at once, and what waits goes on waiting."""
    samples = [{"__key__": str(n), "bin": b"x" * (5000 if n == 12 else 10)} for n in range(30)]
    read = []
    order = []
    for sample in filters.shuffle(20, initial=20, max_bytes=1000)(read.append(s) or s for s in samples):
        order.append((sample["__key__"], len(read)))
    assert order[0] == ("12", 13)
    assert sorted(key for key, _ in order) == sorted(map(str, range(30)))


def test_the_bound_in_samples_is_kept_without_heavy_ones():
    """Below the bound in bytes the buffer grows two by two, as without one."""
    read = []
    shuffled = filters.shuffle(10, initial=4, max_bytes=10**9)(read.append(n) or n for n in range(100))
    counts = []
    for _ in range(12):
        next(shuffled)
        counts.append(len(read))
    assert counts == [4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20, 21]


@pytest.mark.parametrize("options", [{}, {"seed": 4}])
def test_it_resumes_exactly(options):
    """Behind every output, whichever bound had been reached."""
    for most in (700, 2000, 10**6):
        check_resume(lambda: [Samples(SAMPLES[:40]), filters.shuffle(9, initial=4, max_bytes=most, **options)])


LONG = [{"__key__": f"{n}", "bin": b"x" * (n * n % 97 + 300 * (n % 53 == 0))} for n in range(1300)]


def flow(state=None, *, most=250, stream=None, size=40):
    """Return a run of a shuffle over many samples, some of which are heavier than the bound."""
    stages = [Samples(LONG), filters.shuffle(size, initial=5, max_bytes=most)]
    return Flow(stages, Run(seed=1, tracked=True, stream=stream), state)


@pytest.mark.parametrize("stream", [None, StreamNumber(0, 1)])
@pytest.mark.parametrize("most", [250, 3000])
def test_at_any_step_over_many_borders(most, stream):
    """Restored from any step, and saved again at once: the same state, the same rest."""
    run = flow(most=most, stream=stream)
    seen, states = [], [json.dumps(run.snapshot())]
    for sample in run:
        seen.append(sample["__key__"])
        states.append(json.dumps(run.snapshot()))
    assert seen == keys(flow(most=most, stream=stream))
    for step in [*range(0, len(states), 61), len(states) - 1]:
        again = flow(json.loads(states[step]), most=most, stream=stream)
        assert json.dumps(again.snapshot()) == states[step]
        assert keys(again) == seen[step:]


def test_most_steps_write_little(monkeypatch):
    """The buffer is written at the first step and each few borders, however often one looks."""
    sizes = []
    monkeypatch.setattr(
        shuffle_journal,
        "encode_addresses",
        lambda those, **how: sizes.append(len(those)) or encode_addresses(those, **how),
    )
    run = flow(most=10_000, size=400)
    for _ in run:
        run.snapshot()
    assert 2 < len(sizes) <= 2 + len(LONG) // (shuffle_journal.FEWEST * shuffle_journal.SPAN)


@pytest.mark.parametrize(
    "change", [{"outs": ""}, {"outs": "0!"}, {"outs": None}, {"outs": "02(7"}, {"given": 3}, {"since": [], "tail": ""}]
)
def test_broken_states(change):
    """A state that does not follow from itself is refused."""
    run = flow()
    for _ in zip(range(500), run, strict=False):
        state = run.snapshot()
    state["memories"][-1] |= change
    with pytest.raises(StateMismatch):
        flow(state)


def test_it_follows_the_run():
    """Seed and epoch decide."""
    stage = filters.shuffle(20, initial=20, max_bytes=10**6)

    def under(run):
        return keys(stage.flow(iter(SAMPLES), stage.begin(run)))

    assert under(Run(seed=1)) == under(Run(seed=1)) != under(Run(seed=1, epoch=1))


def test_streams_share_the_bounds():
    """All buffers together are as large as one would be."""
    part = filters.shuffle(240, initial=24, max_bytes=2400).for_stream(StreamNumber(0, 24))
    assert (part.bufsize, part.initial, part.max_bytes) == (10, 1, 100)


def test_a_bound_of_nothing_is_refused():
    """No sample would fit."""
    with pytest.raises(UsageError, match="max_bytes"):
        filters.shuffle(10, max_bytes=0)


def test_repr_names_the_bound():
    """It is a shuffle."""
    assert repr(filters.shuffle(10, max_bytes=5)) == "shuffle(10, initial=100, max_bytes=5)"
