"""Lists of shards: order, passes, seeds."""

import pickle
from itertools import islice

import pytest

from webdataset.core.errors import NoShards, UsageError
from webdataset.shards.lists import ResampledShardList, ResampledShards, ShardList, SimpleShardList, resampled_shards
from webdataset.stages.base import Run

TEN = [f"s-{n}" for n in range(10)]


def order(shards, count=None):
    """Return the names of one pass."""
    return [shard["url"] for shard in islice(shards, count)]


def digits(shards, count=8):
    """Return the first draws of one pass as a text of digits."""
    return "".join(url.removeprefix("s-") for url in order(shards, count))


class TestSimple:
    """SimpleShardList."""

    def test_in_order(self):
        """Without a seed, shards come in order, each a fresh dict."""
        shards = SimpleShardList(urls="s-{0..9}")
        assert order(shards) == TEN
        first, second = list(shards), list(shards)
        assert first == second
        assert all(one is not two for one, two in zip(first, second, strict=True))
        assert len(shards) == 10

    def test_seeded(self):
        """A seed fixes one order for all passes; seed 17 begins with 7, as ever."""
        shards = SimpleShardList(TEN, 17)
        assert order(shards) == order(shards) == [f"s-{n}" for n in "7305192468"]
        assert shards.urls == TEN
        shards.set_epoch(5)
        assert order(shards)[0] == "s-7"

    def test_seed_true(self):
        """``seed=True`` draws a seed when the list is made: copies agree, lists differ."""
        one = SimpleShardList("s-{0..99}", seed=True)
        assert order(pickle.loads(pickle.dumps(one))) == order(one)
        assert order(SimpleShardList("s-{0..99}", seed=True)) != order(one)

    @pytest.mark.parametrize("urls", [[], (), iter(())])
    def test_empty(self, urls):
        """An empty list is an error at once, also for code that expects IndexError."""
        with pytest.raises(NoShards) as caught:
            SimpleShardList(urls)
        assert isinstance(caught.value, IndexError)
        assert isinstance(caught.value, ValueError)

    def test_repr(self):
        """The repr tells how many shards there are."""
        assert repr(SimpleShardList(TEN, 3)) == "SimpleShardList(10 shards, seed=3)"


class TestResampled:
    """ResampledShards."""

    def test_pinned_draws(self):
        """The deterministic draws of both published versions."""
        shards = ResampledShards("s-{0..9}", deterministic=True)
        assert digits(shards) == "66048764"
        assert digits(shards) == "07162021"

    def test_draws_of_version_0_2(self):
        """The argument order of 0.2.86 gives the draws of 0.2.86."""
        shards = ResampledShards(TEN, 8, None, True)
        assert (digits(shards), digits(shards)) == ("66048764", "29141777")
        assert digits(ResampledShards(TEN, 8, lambda: 5, True)) == "98846886"
        assert digits(ResampledShards(TEN, 8, seed=None, worker_seed=lambda: 5, deterministic=True)) == "98846886"

    def test_arguments_of_version_1(self):
        """Positional arguments of 1.0.2."""
        assert digits(ResampledShards(TEN, 8, 0, lambda: 5, True)) == "15079383"
        assert digits(ResampledShards(TEN, seed=3, deterministic=True)) == "39825979"

    def test_worker_seed_must_be_callable(self):
        """A number is refused."""
        with pytest.raises(UsageError, match="worker_seed"):
            ResampledShards(TEN, 8, 1, 5)

    def test_passes_have_an_end_if_asked(self):
        """Nshards bounds a pass."""
        assert len(list(ResampledShards(TEN, 25))) == 25

    def test_unseeded_passes_differ(self):
        """Without deterministic, every pass and every object draws anew."""
        shards = ResampledShards("s-{0..99}")
        passes = [tuple(order(shards, 20)) for _ in range(3)] + [tuple(order(ResampledShards("s-{0..99}"), 20))]
        assert len(set(passes)) == 4

    def test_workers_differ(self, monkeypatch):
        """Each worker draws its own."""
        draws = set()
        for worker in range(4):
            monkeypatch.setenv("WORKER", str(worker))
            monkeypatch.setenv("NUM_WORKERS", "4")
            draws.add(tuple(order(ResampledShards(TEN, 20, deterministic=True))))
        assert len(draws) == 4

    def test_set_epoch(self):
        """set_epoch(n) gives the n-th pass again."""
        shards = ResampledShards(TEN, 8, deterministic=True)
        passes = [digits(shards) for _ in range(3)]
        shards.set_epoch(1)
        assert (digits(shards), digits(shards)) == (passes[1], passes[2])

    def test_passes_do_not_disturb_each_other(self):
        """A pass keeps its number while another begins."""
        shards = ResampledShards(TEN, 8, deterministic=True)
        first, second = iter(shards), iter(shards)
        assert (digits(second), digits(first)) == ("07162021", "66048764")

    def test_in_a_run(self):
        """In a pipeline's run, unseeded draws follow the run's seed and epoch."""
        shards = ResampledShards(TEN, 8)
        run = Run(seed=1, epoch=4, position=0)
        assert order(shards.draw_shards(run)) == order(ResampledShards(TEN, 8).draw_shards(run))
        assert order(shards.draw_shards(Run(seed=1, epoch=5))) != order(shards.draw_shards(run))
        assert order(shards.draw_shards(Run(seed=2, epoch=4))) != order(shards.draw_shards(run))

    def test_a_run_numbers_deterministic_passes(self):
        """Deterministic draws depend on the run's epoch, not on its seed."""
        shards = ResampledShards(TEN, 8, deterministic=True)
        assert digits(shards.draw_shards(Run(seed=7, epoch=1))) == "07162021"
        assert digits(shards.draw_shards(Run(seed=8, epoch=0))) == "66048764"

    def test_no_shards(self):
        """No urls is an error at once, or at the first draw without empty_check."""
        with pytest.raises(NoShards):
            ResampledShards([])
        shards = ResampledShards([], empty_check=False)
        with pytest.raises(NoShards):
            next(iter(shards))

    def test_endless_sources_are_cut(self):
        """max_urls bounds what is taken of an iterable, with a warning."""
        with pytest.warns(UserWarning, match="first 5"):
            shards = ResampledShards(ResampledShards(TEN), max_urls=5)
        assert len(shards.urls) == 5

    def test_show_seed(self, monkeypatch, caplog):
        """WDS_SHOW_SEED logs the seed of each pass."""
        monkeypatch.setenv("WDS_SHOW_SEED", "1")
        list(ResampledShards(TEN, 1, deterministic=True))
        assert "seed 0 " in caplog.text

    def test_travel(self):
        """It pickles, also with its place in the sequence of passes."""
        shards = ResampledShards(TEN, 8, deterministic=True)
        list(shards)
        assert digits(pickle.loads(pickle.dumps(shards))) == "07162021"
        assert ResampledShardList is ResampledShards


class TestSubclasses:
    """Callers subclass the lists."""

    def test_an_iter_of_its_own(self):
        """A subclass's __iter__ is used, alone and in a run, with its attributes."""

        class Mine(ResampledShards):
            def __iter__(self):
                self.epoch += 1
                for _ in range(self.nshards):
                    yield {"url": f"{self.urls[0]}@{self.epoch}"}

        shards = Mine(TEN, 2)
        assert order(shards) == ["s-0@0"] * 2
        assert order(shards.draw_shards(Run(epoch=7))) == ["s-0@7"] * 2

    def test_a_list_from_scratch(self):
        """ShardList itself has no shards."""
        with pytest.raises(NotImplementedError):
            iter(ShardList())


def test_resampled_stage():
    """Resampled reads everything, then draws n times."""
    drawn = list(resampled_shards(iter([1, 2, 3]), 200))
    assert len(drawn) == 200
    assert set(drawn) == {1, 2, 3}
    with pytest.raises(NoShards):
        list(resampled_shards([], 3))
