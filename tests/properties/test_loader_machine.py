"""A dataset's iterator and both loaders, driven at random — next, save, load, set_epoch, close — against a list."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import webdataset as wds

STAGES = (
    lambda: [wds.shuffle(12)],
    lambda: [wds.select(lambda item: item % 5), wds.shuffle(20, initial=9)],
    lambda: [wds.block_shuffle(10), wds.rsample(0.7)],
    lambda: [wds.shuffle(5), wds.listed(2), wds.unlisted()],
)


class Machine(RuleBasedStateMachine):
    """One thing that is iterated; the model is the list of all that it gives in each epoch."""

    examples = 10

    @initialize(stages=st.sampled_from(STAGES), streams=st.integers(1, 5), seed=st.integers(0, 99))
    def begin(self, stages, streams, seed):
        """Make it; it stands at the beginning of epoch 0."""
        self.dataset = lambda: self._made(stages, streams, seed)
        self.orders, self.saved, self.open = {}, [], []
        self.here = self._fresh()
        self.epoch, self.given, self.items, self.ended, self.told = 0, 0, None, False, False

    @staticmethod
    def _made(stages, streams, seed):
        made = wds.DataPipeline([list(range(41))], *stages()).elastic(streams)
        made.seed = seed
        return made

    def _fresh(self):
        here = self.way(self.dataset())
        self.open.append(here)
        return here

    def _order(self, epoch):
        if epoch not in self.orders:
            whole = self._fresh()
            whole.set_epoch(epoch)
            self.orders[epoch] = list(whole)
        return self.orders[epoch]

    @rule(steps=st.integers(1, 14))
    def next(self, steps):
        """Take some items: those that the model has there, and at the end nothing."""
        self.told = False
        for _ in range(steps):
            self.items = iter(self.here) if self.items is None else self.items
            rest = self._order(self.epoch)[self.given :]
            taken = next(self.items, None)
            assert taken == (rest[0] if rest else None)
            self.ended = not rest
            if self.ended:
                self.epoch, self.given, self.items = self.epoch + 1, 0, None
                return
            self.given += 1

    def _state(self):
        return json.loads(json.dumps(self.here.state_dict()))

    def _stands(self):
        """Return the epoch of the state, and how much of it was given."""
        return self.epoch, self.given  # after the end of an epoch, at the start of the next one

    @precondition(lambda self: not self.told)
    @rule()
    def save(self):
        """Keep a state, and where it stands."""
        self.saved.append((self._state(), *self._stands()))

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 5), anew=st.booleans())
    def load(self, which, anew):
        """Go on from any state that was saved, here or in another one."""
        state, epoch, given = self.saved[which % len(self.saved)]
        self._go_on(state, epoch, given, anew=anew)

    def _go_on(self, state, epoch, given, *, anew):
        self.here = self._fresh() if anew else self.here
        self.here.load_state_dict(state)
        if given == len(self._order(epoch)):  # after the last item, of whose end nobody was told
            epoch, given = epoch + 1, 0
        self.epoch, self.given, self.items, self.ended, self.told = epoch, given, None, False, False
        assert self._state() == state, "what was loaded and not begun with is the state"

    @precondition(lambda self: self.items is not None or self.ended)
    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch):
        """Begin another epoch."""
        self.here.set_epoch(epoch)
        self.epoch, self.given, self.items, self.ended, self.told = epoch, 0, None, False, True

    @precondition(lambda self: not self.told)
    @rule(anew=st.booleans())
    def close(self, anew):
        """Close it: the state is still what it was, and from it it goes on."""
        state, stands = self._state(), self._stands()
        self.shut(self.here)
        assert self._state() == state
        self._go_on(state, *stands, anew=anew)

    @staticmethod
    def shut(here):
        """Close one."""
        here.close()

    def teardown(self):
        """Close what is open."""
        self.items = None
        for here in getattr(self, "open", ()):
            self.shut(here)


class DatasetMachine(Machine):
    """The dataset's own iterator."""

    way = staticmethod(lambda dataset: dataset)
    shut = staticmethod(lambda dataset: dataset.close_run())


class LoaderMachine(Machine):
    """Our loader, with threads."""

    way = staticmethod(lambda dataset: wds.Loader(dataset, 4, workers=2, collate=tuple))


class InlineLoaderMachine(Machine):
    """Our loader without workers and batches."""

    way = staticmethod(wds.Loader)


class WebLoaderMachine(Machine):
    """torch's loader with a state."""

    way = staticmethod(lambda dataset: wds.WebLoader(dataset, batch_size=None, num_workers=0))
    shut = staticmethod(lambda loader: getattr(loader.pipeline[0]._present, "close", int)())


class StagesMachine(WebLoaderMachine):
    """The same with stages behind it."""

    examples = 5
    way = staticmethod(
        lambda dataset: wds.WebLoader(dataset, batch_size=None, num_workers=0).shuffle(5).batched(2, collation_fn=tuple)
    )


MACHINES = {"dataset": DatasetMachine, "Loader": LoaderMachine, "inline": InlineLoaderMachine}
TORCH_MACHINES = {"WebLoader": WebLoaderMachine, "stages": StagesMachine}


def driven(machine):
    """Run a machine."""
    case = machine.TestCase
    case.settings = settings(max_examples=machine.examples, stateful_step_count=20, deadline=None)
    case("runTest").runTest()


@pytest.mark.parametrize("way", MACHINES)
def test_against_a_list(way):
    """Whatever is called in whatever order, the items are those of the list."""
    driven(MACHINES[way])


@pytest.mark.torch
@pytest.mark.parametrize("way", TORCH_MACHINES)
def test_torch_against_a_list(way):
    """The same of a WebLoader."""
    pytest.importorskip("torch")
    driven(TORCH_MACHINES[way])
