"""A job that is driven at random — stepped, saved, stopped, moved, given other epochs — against a list."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import webdataset as wds
from webdataset.core.distributed import WorkerContext

ITEMS = list(range(61))
STAGES = (
    lambda: [wds.shuffle(12)],
    lambda: [wds.select(lambda item: item % 5), wds.shuffle(30, initial=20)],
    lambda: [wds.shuffle(6), wds.listed(3), wds.map(tuple)],
    lambda: [wds.block_shuffle(18), wds.rsample(0.7)],
)


class Job(RuleBasedStateMachine):
    """Several workers over one elastic dataset; the model is the list of all positions of the epoch."""

    @initialize(
        stages=st.sampled_from(STAGES), streams=st.integers(1, 7), seed=st.integers(0, 99), passes=st.integers(1, 2)
    )
    def begin(self, stages, streams, seed, passes):
        """Make the dataset; the job stands at the beginning of epoch 0."""
        self.make = lambda: self._made(stages, streams, seed, passes)
        self.streams, self.epoch, self.orders, self.saved = streams, 0, {}, []
        self._begin_with(self.make().state_dict(), 1, 1)
        self.given = set()

    @staticmethod
    def _made(stages, streams, seed, passes):
        made = wds.DataPipeline([ITEMS], *stages()).repeat(passes).elastic(streams)
        made.seed = seed
        return made

    def _begin_with(self, state, ranks, workers):
        places = [WorkerContext(r, ranks, w, workers) for r in range(ranks) for w in range(workers)]
        self.runs = [self.make().elastic_run(place, state) for place in places]

    def _order(self):
        if self.epoch not in self.orders:
            run = self.make().elastic_run(WorkerContext(0, 1, 0, 1), {**self.make().state_dict(), "epoch": self.epoch})
            self.orders[self.epoch] = dict(run.positions())
        return self.orders[self.epoch]

    def _state(self):
        return json.loads(json.dumps(wds.merge_states(run.state_dict() for run in self.runs)))

    @rule(which=st.integers(0, 11), steps=st.integers(1, 9))
    def next(self, which, steps):
        """One worker gives some items: the next positions of its streams, and what the model has there."""
        run, order = self.runs[which % len(self.runs)], self._order()
        left = sorted(p for p in order if p % self.streams in run.owned and p not in self.given)
        for _ in range(steps):
            pair = next(run.positions(), None)
            assert pair == ((left[0], order[left[0]]) if left else None)
            if pair is None:
                break
            self.given.add(left.pop(0))

    @rule()
    def save(self):
        """Keep the state of the whole job, and where it stands."""
        state = self._state()
        assert state["received"] == len(self.given)
        self.saved.append((state, self.epoch, frozenset(self.given)))

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 5), ranks=st.integers(1, 4), workers=st.integers(1, 3))
    def load(self, which, ranks, workers):
        """Go on from any state that was saved, under any topology."""
        state, self.epoch, given = self.saved[which % len(self.saved)]
        self.given = set(given)
        self._begin_with(state, min(ranks, self.streams), workers)

    @rule(ranks=st.integers(1, 4), workers=st.integers(1, 3))
    def move(self, ranks, workers):
        """Stop, and go on elsewhere."""
        state = self._state()
        self.close()
        assert self._state() == state, "closing changes no state"
        self._begin_with(state, min(ranks, self.streams), workers)

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch):
        """Begin another epoch."""
        self.epoch, self.given = epoch, set()
        made = self.make()
        made.set_epoch(epoch)
        self._begin_with(made.state_dict(), 1, 2)

    @rule()
    def finish(self):
        """Let all workers give the rest: together it is all that was left."""
        rest = sorted(pair for run in self.runs for pair in run.positions())
        assert rest == sorted((p, item) for p, item in self._order().items() if p not in self.given)
        self.given = set(self._order())

    def close(self):
        """Close all runs."""
        for run in self.runs:
            run.close()

    def teardown(self):
        """Close what is open."""
        if hasattr(self, "runs"):
            self.close()


Job.TestCase.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
TestJob = Job.TestCase

PROBE = """
import json, sys
import webdataset as wds
made = wds.WebDataset(sys.argv[1], shardshuffle=9, seed=4).shuffle(16).map(lambda s: s["__key__"]).elastic(5)
run = made.elastic_run()
head = [next(run) for _ in range(21)]
state = json.dumps(run.state_dict(), sort_keys=True)
print(json.dumps([head, state, list(made.elastic_run(state=json.loads(sys.argv[2] or state)))]))
"""


@pytest.fixture
def urls(tmp_path):
    """Three shards."""
    for number in range(3):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as sink:
            for index in range(20):
                sink.write({"__key__": f"{number}-{index}", "txt": "x"})
    return str(tmp_path / "{0..2}.tar")


def test_other_processes_and_hash_seeds(urls):
    """Order and state are the same in every process, and a state of one goes on in another."""

    def probed(hash_seed, state=""):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROBE, urls, state]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)  # noqa: S603

    head, state, rest = probed("1")
    assert probed("2", state) == [head, state, rest]
    assert len(head + rest) == len(set(head + rest)) == 60
