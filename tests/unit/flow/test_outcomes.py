"""A pass in which one stage dropped every sample."""

import itertools
import json
import os
import random
import re
import warnings

import pytest

import webdataset as wds
from support.garbage import no_collector
from webdataset.core.errors import AllDropped, NoSamples, UsageError
from webdataset.flow import outcomes

MODES = [{}, {"workers": 2}, {"workers": 3, "mode": "processes", "start_method": "fork"}]


@pytest.fixture(scope="module")
def shards(write_shards):
    """Return the urls of 5 shards of 12 samples, in the order of their classes."""
    return write_shards(5, 12)


def forgets(sample):
    """Lack a return."""
    sample["seen"] = True


def keeps(*classes):
    """Return a function that drops all but some classes."""

    def kept(sample):
        return sample if sample["cls"] in classes else None

    return kept


def read(shards, **options):
    """Return a dataset of these shards."""
    return wds.WebDataset(shards, shardshuffle=False, seed=1, **options).decode()


def mixed(shards):
    """Return a mix of which one source drops all of its samples."""
    return wds.FluidWrapper(wds.RandomMix([read(shards), read(shards).map(forgets)], longest=True))


WAYS = {
    "plain": lambda shards: read(shards).map(forgets),
    "behind others": lambda shards: read(shards).shuffle(20).map(dict).map(forgets).to_tuple("cls").batched(4),
    "before a stage of its own": lambda shards: read(shards).map(forgets).compose(lambda samples: [*samples, "pad"]),
    "generator": lambda shards: read(shards).map(lambda sample, rng: forgets(sample), rng=True),
    "elastic": lambda shards: read(shards).map(forgets).elastic(24),
    "epoch": lambda shards: read(shards).map(forgets).with_epoch(100),
    "passes": lambda shards: read(shards).map(forgets).repeat(2),
    "mix": mixed,
    "elastic mix": lambda shards: mixed(shards).elastic(4),
    "timed": lambda shards: read(shards).map(forgets).timed(),
    "timed elastic": lambda shards: read(shards).map(forgets).elastic(4).timed(),
    "tracked": lambda shards: read(shards).map(forgets).start(),
    "pipeline in a pipeline": lambda shards: wds.DataPipeline(read(shards), wds.map(forgets)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_map_that_returns_none_for_all(shards, way):
    """It is an error that names the function with file and line, and says what to do."""
    with pytest.raises(AllDropped, match=r"returned None for every one of the (60|120) samples") as caught:
        list(WAYS[way](shards))
    error = caught.value
    assert isinstance(error, NoSamples)
    assert re.search(r"test_outcomes\.py:\d+\)", str(error))
    assert re.fullmatch(r"map\((forgets|<lambda>) at test_outcomes\.py:\d+\)", error.stage)
    assert "select(predicate)" in str(error)
    assert "empty_check=False" in str(error)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("way", ["plain", "elastic", "mix"])
def test_a_loader_judges_all_of_its_workers(shards, mode, size, way):
    """The consumer gets the error, whoever the workers are; and in the next epoch again."""
    with wds.Loader(WAYS[way](shards), size, **mode) as loader:
        for _ in range(2):
            with pytest.raises(AllDropped, match="every one of the 60 samples of this pass"):
                list(loader)
        assert loader.stats().dropped == 120


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("streams", [None, 24])
def test_a_share_may_be_empty(shards, mode, streams):
    """Classes that lie in one shard, which one worker reads: nothing is wrong, nothing is said."""
    made = read(shards).map(keeps(13)).select(lambda sample: sample["cls"] == 13)
    with wds.Loader(made, 4, **mode) as loader:
        assert [int(number) for batch in loader for number in batch["cls"]] == [13]


@pytest.mark.parametrize("streams", [None, 4])
def test_a_select_that_keeps_nothing(shards, streams):
    """It may be meant: a warning, which names the predicate."""
    made = read(shards).select(lambda sample: False).map(dict)
    made = made if streams is None else made.elastic(streams)
    for dataset in (made, wds.Loader(made, 4, workers=2)):
        with pytest.warns(UserWarning, match=r"select: .*test_outcomes\.py:\d+\) kept none of the 60 samples of this"):
            assert not list(dataset)


def test_the_way_out(shards):
    """``empty_check=False`` allows it, and a pipeline that was never to check is left alone."""
    for streams in (None, 4):
        made = read(shards, empty_check=False).map(forgets).select(lambda sample: False)
        made = made if streams is None else made.elastic(streams)
        assert not list(made)
        assert not list(wds.Loader(made, 4, workers=2))
    assert not list(wds.DataPipeline([[{"cls": 1}]], wds.map(forgets)))
    assert not list(wds.map(forgets)([{"cls": 1}]))


def test_what_ends_early_is_not_judged(shards):
    """A pass that is given up, or cut by a bound, has not shown all of its samples."""
    mix = wds.RandomMix([read(shards).map(keeps(59)), read(shards[:1])], longest=False)
    for made in (wds.FluidWrapper(mix), wds.FluidWrapper(mix).elastic(2)):
        assert list(made)
    assert len(list(wds.FluidWrapper(wds.RoundRobin([read(shards).map(keeps(0, 59)), read(shards)])).slice(3))) == 3


@pytest.mark.parametrize(
    ("count", "outcome"), [(12, "warning"), (24, "error")], ids=["below the bound", "at the bound"]
)
def test_a_share_alone(shards, monkeypatch, count, outcome):
    """A worker that sees a share raises from some number of samples on, and warns below; a select warns from there."""
    monkeypatch.setattr(outcomes, "MIN_JUDGED_SAMPLES", 20)
    monkeypatch.setenv("WORKER", "0")
    monkeypatch.setenv("NUM_WORKERS", "2")
    urls = shards[: count // 6]
    if outcome == "error":
        with pytest.raises(AllDropped, match=f"{count} samples of this worker's share"):
            list(read(urls).map(forgets))
        with pytest.warns(UserWarning, match=f"{count} samples of this worker's share"):
            assert not list(read(urls).select(lambda sample: False))
        return
    with pytest.warns(UserWarning, match=f"{count} samples of this worker's share"):
        assert not list(read(urls).map(forgets))
    assert not list(read(urls).select(lambda sample: False))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_resumed_is_not_judged(shards, seed):
    """Behind a cut all samples may be dropped: some were given before. Only a pass that gave none is an error."""
    rng = random.Random(seed)
    made = read(shards).map(keeps(*range(rng.randrange(2, 30)))).shuffle(rng.choice([1, 10]))
    order = list(made)
    with made.start() as run:
        for _ in range(rng.randrange(1, len(order) + 1)):
            next(run)
        assert len(list(made.start(state=run.snapshot()))) < len(order)
    elastic, stop = made.elastic(rng.choice([1, 3])), rng.randrange(1, len(order) + 1)
    run = iter(elastic)
    for _ in range(stop):
        next(run)
    state = json.loads(json.dumps(run.state_dict()))
    elastic.load_state_dict(state)
    assert len(list(elastic)) == len(order) - stop
    with wds.Loader(elastic, 1, workers=2) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == len(order) - stop


def test_nothing_is_said_where_samples_come(shards):
    """Passes that give something, epoch after epoch, warn of nothing."""
    made = read(shards).map(keeps(*range(0, 60, 7))).select(lambda sample: sample["cls"] % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dataset in (made, made.elastic(24), made.timed(), made.with_epoch(30), made.repeat(3)):
            assert list(dataset)
            assert list(dataset)


def drops_all(sample):
    """Keep nothing."""
    return False


def drawn(shards, **options):
    """Return a dataset that draws these shards without end."""
    return wds.WebDataset(shards, shardshuffle=False, seed=1, resampled=True, **options)


def listed_again(shards):
    """Return what a program writes that draws shards by itself."""
    while True:
        yield from ({"url": url} for url in shards)


ENDLESS_WAYS = {
    "select": lambda shards: drawn(shards).select(drops_all),
    "select after others": lambda shards: drawn(shards).decode().shuffle(20).map(dict).select(drops_all).batched(4),
    "no check": lambda shards: drawn(shards, empty_check=False).select(drops_all),
    "generator": lambda shards: drawn(shards).map(lambda sample, rng: None, rng=True),
    "map": lambda shards: drawn(shards).map(forgets),
    "where": lambda shards: drawn(shards, where="cls > 1000"),
    "where, several open": lambda shards: drawn(shards, where="cls > 1000", open_shards=2),
    "no field": lambda shards: drawn(shards, select_files=drops_all),
    "no field, several open": lambda shards: drawn(shards, select_files=drops_all, open_shards=2),
    "no shard": lambda shards: drawn(["missing.tar"], handler=wds.ignore_and_continue),
    "pipeline": lambda shards: wds.DataPipeline(
        wds.ResampledShards(shards), wds.tarfile_to_samples(), wds.select(drops_all)
    ),
    "stage": lambda shards: wds.DataPipeline(
        wds.SimpleShardList(shards), wds.resampled(), wds.tarfile_to_samples(), wds.select(drops_all)
    ),
    "own list": lambda shards: wds.DataPipeline(
        lambda: listed_again(shards), wds.split_by_worker, wds.tarfile_to_samples(), wds.select(drops_all)
    ),
    "own stage": lambda shards: wds.DataPipeline(
        wds.SimpleShardList(shards),
        lambda src: itertools.cycle(src),
        wds.tarfile_to_samples(),
        wds.select(drops_all),
    ),
    "mix": lambda shards: wds.RandomMix([read(shards), drawn(shards).select(drops_all)]),
}


@pytest.fixture
def fewer_draws(monkeypatch):
    """Let 300 dropped samples and 50 draws be enough."""
    monkeypatch.setattr(outcomes, "MIN_DROPPED_SAMPLES", 300)
    monkeypatch.setattr(outcomes, "MIN_DRAWN_SHARDS", 50)
    monkeypatch.setattr(outcomes, "MIN_ROUNDS", 10)


@pytest.mark.parametrize("streams", [0, 1, 4])
@pytest.mark.parametrize("way", ENDLESS_WAYS)
def test_a_pass_without_end_that_keeps_nothing(shards, way, streams, fewer_draws):
    """It fails, where each shard was drawn often, and does not go on forever; the error says what drops the samples."""
    said = {"map": r"map: forgets \(.*\.py:\d+\) kept none of", "where": "where: 'cls > 1000' kept none of"}
    made = ENDLESS_WAYS[way](shards)
    refused = streams and way == "stage"
    kind, match = (
        (UsageError, "say resampled=True") if refused else (NoSamples, said.get(way, r"\d+ draws from \d shards?"))
    )
    with pytest.raises(kind, match=match) as caught:
        list(made.elastic(streams) if streams else made)
    assert isinstance(caught.value, AllDropped) == (way in ("map", "generator"))


@pytest.mark.parametrize("streams", [1, 4])
def test_a_watched_run_that_is_left_is_gone(shards, streams):
    """With its files, though it was not kept what would end the watch, and though its error is held."""

    def count_open():
        return sum(os.path.realpath(f"/proc/self/fd/{name}") in shards for name in os.listdir("/proc/self/fd"))

    with no_collector():
        kept = drawn(shards).decode().map(keeps(3, 30)).select(lambda sample: sample["cls"] != 30)
        run = iter(kept.elastic(streams))
        assert next(run)
        run.state_dict()
        assert count_open()
        del run
        assert not count_open()


def test_a_resumed_run_is_watched(shards, fewer_draws):
    """What keeps nothing any more, after a state, is told too."""
    left = [40]

    def keep(sample):
        left[0] -= 1
        return left[0] >= 0

    dataset = drawn(shards).select(keep).elastic(3)
    run = iter(dataset)
    for _ in range(20):
        next(run)
    state = json.loads(json.dumps(run.state_dict()))
    left[0] = 0
    dataset.load_state_dict(state)
    with pytest.raises(NoSamples, match=r"select: .* kept none of the \d+ samples of \d+ draws from 5 shards"):
        list(dataset)


@pytest.mark.parametrize("streams", [0, 3])
def test_a_mix_of_which_nothing_is_kept(shards, monkeypatch, streams):
    """How often its samples come again is not known: it is told."""
    monkeypatch.setattr(outcomes, "MIN_DROPPED_SAMPLES", 2000)
    kept = itertools.count()
    mix = wds.RandomMix([drawn(shards), drawn(shards)]).select(lambda sample: next(kept) > 9000)
    with pytest.warns(UserWarning, match=r"select: .* kept none of the \d+ samples so far; reading continues"):
        assert next(iter(mix.elastic(streams) if streams else mix))


@pytest.mark.parametrize("streams", [0, 4])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_consumer_of_a_loader_hears_of_it(shards, mode, streams, fewer_draws):
    """In a worker, too."""
    made = drawn(shards).select(drops_all)
    made = made.elastic(streams) if streams else made
    with (
        wds.Loader(made, 4, **mode) as loader,
        pytest.raises(NoSamples, match=r"select: drops_all .* let it keep some, or let the pass end"),
    ):
        next(iter(loader))


def list_all(samples):
    """Pass everything on: a stage that is not ours."""
    yield from samples


def test_a_slow_start_is_no_error(shards, fewer_draws):
    """A batch that takes many rounds, a sample in thousands, the same shard many times in a list: all may be meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = next(iter(drawn(shards[:1]).batched(500)))
        assert len(batch["__key__"]) == 500
        assert len(next(iter(drawn(shards[:1]).shuffle(2000, initial=2000)))) > 0
    luck = random.Random(1)
    assert next(iter(drawn(shards).select(lambda sample: luck.random() < 1 / 250)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for streams in (1, 4):
            assert len(list(itertools.islice(drawn(shards).compose(list_all).elastic(streams), 2000))) == 2000
    with pytest.warns(UserWarning, match=r"kept none of the 6000 samples of this"):
        assert not list(read(shards * 100).select(drops_all))


def test_a_stage_that_is_not_ours_drops_all(shards, monkeypatch):
    """Whether it waits for more cannot be told: it is said, and reading goes on."""
    monkeypatch.setattr(outcomes, "MIN_DRAWN_SHARDS", 50)
    monkeypatch.setattr(outcomes, "MIN_ROUNDS", 10)
    late = drawn(shards).compose(lambda samples: itertools.islice(samples, 2000, None))
    for made in (late, late.elastic(2)):
        with pytest.warns(UserWarning, match="nothing has come out of this pipeline after 50 draws from 5 shards"):
            assert next(iter(made))


def test_a_warning_comes_long_before_the_error(shards):
    """Large datasets take days for a hundred rounds: two, and a thousand samples, are told."""
    items = iter(drawn(shards).select(lambda sample, seen=itertools.count(): next(seen) > 1500))
    with pytest.warns(UserWarning, match=r"kept none of the 1\d\d\d samples so far, of \d+ draws from 5 shards"):
        assert next(items)
