"""Epochs that are equally long on every rank, worker and stream, simulated in one process."""

import itertools
import json
import logging
import pickle
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core import distributed
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import FlowError, NoSamples, StaleIndex, StateMismatch, UsageError
from webdataset.loading.torch_distributed import compute_rank_fingerprint, equal_steps, is_split_between_ranks
from webdataset.samples.sample_reader import take_share
from webdataset.stages.sharding import compute_share, cut_pieces

SIZES = [13, 7, 22, 5, 31, 11, 3]
TOPOLOGIES = list(itertools.product([1, 2, 3], [1, 2, 4]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with seven shards of unequal size, and their sizes."""
    found = tmp_path_factory.mktemp("shards")
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(found / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    (found / "sizes.json").write_text(json.dumps({f"s-{number}.tar": size for number, size in enumerate(SIZES)}))
    return found


@pytest.fixture(scope="module")
def urls(folder):
    """Their names."""
    return str(folder / "s-{0..6}.tar")


@pytest.fixture
def at(monkeypatch):
    """Return a function that lets this process be any worker of any rank."""
    return lambda *where: monkeypatch.setattr(
        distributed.worker_info_override, "replaced", lambda group=None: WorkerContext(*where)
    )  # noqa: ARG005


def everywhere(made, at, ranks, workers, epoch=0):
    """Return what each worker of each rank gives."""
    found = []
    for rank in range(ranks):
        found.append([])
        for worker in range(workers):
            at(rank, ranks, worker, workers)
            made.set_epoch(epoch)
            found[-1].append(list(made))
    return found


def flat(given):
    """Return the samples of all workers, out of their batches."""
    items = (item for rank in given for worker in rank for item in worker)
    return [sample for item in items for sample in (item if isinstance(item, list) else [item])]


def steps(given):
    """Return the number of items of each rank."""
    return [sum(map(len, workers)) for workers in given]


PIPELINES = {
    "plain": lambda urls: wds.WebDataset(urls),
    "shuffled": lambda urls: wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(20),
    "batched": lambda urls: wds.WebDataset(urls, seed=3).shuffle(20).decode().listed(4),
    "whole batches": lambda urls: wds.WebDataset(urls, seed=3).listed(4, partial=False),
    "several open": lambda urls: wds.WebDataset(urls, open_shards=3, seed=3).map(lambda sample: sample),
    "shuffled before": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.shuffle(10), wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples()
    ),
    "never split": lambda urls: wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples()),
}


@pytest.mark.parametrize("how", ["drop", "pad"])
@pytest.mark.parametrize("name", PIPELINES)
def test_all_ranks_give_equally_many(urls, at, name, how):
    """Whatever the topology: equal numbers, nothing twice, and nothing lost but what drop leaves out."""
    made = PIPELINES[name](urls)
    made.seed = 3
    made = made.equal_epochs(how)
    for ranks, workers in TOPOLOGIES:
        given = everywhere(made, at, ranks, workers)
        assert len(set(steps(given))) == 1, (ranks, workers)
        keys = [sample["__key__"] for sample in flat(given) if not sample["__pad__"]]
        assert len(keys) == len(set(keys)), (ranks, workers)
        if name != "whole batches":
            padded = -sum(SIZES) % ranks
            dropped = sum(SIZES) % ranks
            assert len(keys) == sum(SIZES) - (dropped if how == "drop" else 0)
            assert len(flat(given)) - len(keys) == (padded if how == "pad" else 0)


@pytest.mark.parametrize("how", ["drop", "pad"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_streams_give_equally_many(urls, how, ranks):
    """An elastic dataset has equally many items in each stream, so on each rank; the order is that of one rank."""
    made = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(24).listed(2).elastic(12).equal_epochs(how)
    header = made.elastic_run(WorkerContext(0, 1, 0, 1)).header()
    whole = dict(made.elastic_run(WorkerContext(0, 1, 0, 1), header).positions())
    assert sorted(whole) == list(range(len(whole)))  # no holes
    parts = [list(made.elastic_run(WorkerContext(rank, ranks, 0, 1), header).positions()) for rank in range(ranks)]
    assert {len(part) for part in parts} == {len(whole) // ranks}
    assert dict(itertools.chain(*parts)) == whole
    samples = [sample for item in whole.values() for sample in item]
    keys = [sample["__key__"] for sample in samples if not sample["__pad__"]]
    assert len(keys) == len(set(keys)) == (84 if how == "drop" else 92)
    assert len(samples) == (84 if how == "drop" else 96)


@pytest.mark.parametrize("how", ["drop", "pad"])
def test_global_batches_are_the_same_on_any_number_of_ranks(urls, how):
    """No stream runs out before the others, so that each global batch holds the same samples to the end."""

    def global_batches(ranks, workers):
        shares = []
        for rank in range(ranks):
            items = []
            for worker in range(workers):
                made = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(24).elastic(12).equal_epochs(how)
                items += made.elastic_run(WorkerContext(rank, ranks, worker, workers)).positions()
            shares.append([sample["__key__"] for _, sample in sorted(items, key=lambda item: item[0])])
        size = 12 // ranks
        return [
            sorted(key for share in shares for key in share[begin : begin + size])
            for begin in range(0, len(shares[0]), size)
        ]

    whole = global_batches(1, 1)
    assert len(whole) == (7 if how == "drop" else 8)
    for ranks, workers in [(1, 4), (2, 1), (3, 2), (4, 3), (6, 1)]:
        assert global_batches(ranks, workers) == whole, (ranks, workers)


@pytest.mark.parametrize("how", ["drop", "pad"])
def test_an_equal_epoch_is_resumed_on_other_ranks(urls, how):
    """A state that three ranks saved goes on on two, to the same items."""
    made = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(24).elastic(6).equal_epochs(how)
    header = made.elastic_run(WorkerContext(0, 1, 0, 1)).header()
    whole = dict(made.elastic_run(WorkerContext(0, 1, 0, 1), header).positions())
    states, seen = [], {}
    for rank in range(3):
        run = made.elastic_run(WorkerContext(rank, 3, 0, 1), header)
        seen.update(itertools.islice(run.positions(), 11 + 2 * rank))
        states.append(json.loads(json.dumps(run.state_dict())))
    merged = wds.merge_states(states)
    rest = [list(made.elastic_run(WorkerContext(rank, 2, 0, 1), merged).positions()) for rank in range(2)]
    later = dict(itertools.chain(*rest))
    assert not seen.keys() & later.keys()
    assert seen | later == whole


@pytest.mark.parametrize("cut", [1, 17, 30, 31, 44])
def test_a_tracked_run_is_restored(urls, at, cut):
    """A snapshot within and behind a cut shard continues exactly."""
    made = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(8).equal_epochs("pad")
    at(1, 2, 0, 1)
    run = made.start()
    before = list(itertools.islice(run, cut))
    state = json.loads(json.dumps(run.snapshot()))
    rest = list(run)
    assert len(before) + len(rest) == 46
    again = made.start(state)
    assert list(again) == rest


def test_a_state_of_another_choice_is_refused(urls):
    """A state says how its epochs were made equal."""
    made = wds.WebDataset(urls, seed=3).elastic(6)
    state = made.equal_epochs("drop").elastic_run(WorkerContext(0, 1, 0, 1)).header()
    with pytest.raises(StateMismatch, match="how='drop'"):
        next(made.equal_epochs("pad").elastic_run(WorkerContext(0, 1, 0, 1), state))


def test_repeats_are_marked_and_the_same_each_time(urls, at):
    """What pad repeats are the first samples of the pass, by number."""
    made = wds.WebDataset(urls, seed=3).equal_epochs("pad")
    given = everywhere(made, at, 3, 1)
    marked = [sample["__key__"] for sample in flat(given) if sample.get("__pad__")]
    assert marked == ["0-000"]
    assert marked == [sample["__key__"] for sample in flat(everywhere(made, at, 3, 1)) if sample.get("__pad__")]


def test_more_ranks_than_samples(tmp_path, at):
    """Two samples go round five ranks when they are padded; dropping would leave nothing, and says so."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "a", "txt": "x"})
        sink.write({"__key__": "b", "txt": "x"})
    made = wds.WebDataset(str(tmp_path / "a.tar"))
    given = everywhere(made.equal_epochs("pad", counts=True), at, 5, 1)
    assert [sample["__key__"] for sample in flat(given)] == ["a", "b", "a", "b", "a"]
    with pytest.raises(NoSamples, match="2 samples in 1 shards are too few for 5 ranks.*'pad'"):
        list(made.equal_epochs("drop", counts=True))


def test_lost_samples_are_made_up_for(urls, at, caplog):
    """Where samples are lost on the way, others come twice, marked, and the log says so; no rank is short."""
    lost = {"4-007", "4-008", "6-002"}
    made = wds.WebDataset(urls, seed=3).map(lambda sample: None if sample["__key__"] in lost else sample)
    with caplog.at_level(logging.WARNING, "webdataset"):
        given = everywhere(made.equal_epochs("drop"), at, 3, 2)
    assert steps(given) == [30, 30, 30]
    again = [sample["__key__"] for sample in flat(given) if sample.get("__pad__")]
    assert len(again) == len(lost - {"6-002"})  # 6-002 is one of the two that drop leaves out anyway
    assert "repeated in their place" in caplog.text
    streams = made.elastic(6).equal_epochs("drop")
    assert [len(list(streams.elastic_run(WorkerContext(rank, 3, 0, 1)))) for rank in range(3)] == [30, 30, 30]


def test_nothing_but_lost_samples(urls):
    """A pipeline that loses everything ends with an error, and not in a search without end."""
    with pytest.raises(NoSamples, match="gave nothing"):
        list(wds.WebDataset(urls).map(lambda sample: None).equal_epochs("drop"))  # noqa: ARG005


@pytest.mark.parametrize(("ranks", "workers"), TOPOLOGIES)
def test_resampled_epochs(urls, at, ranks, workers):
    """Each rank gives as many items as were asked for, however many workers share them."""
    made = wds.WebDataset(urls, seed=3).listed(4).equal_epochs("resample", steps=11)
    assert steps(everywhere(made, at, ranks, workers)) == [11] * ranks
    draws = wds.WebDataset(urls, seed=3, resampled=True).listed(4).equal_epochs("resample", steps=11)
    assert steps(everywhere(draws, at, ranks, workers)) == [11] * ranks


def test_resampled_epochs_of_streams(urls):
    """In an elastic dataset, a rank's items are every R-th of all."""
    made = wds.WebDataset(urls, seed=3).elastic(6).equal_epochs("resample", steps=40)
    assert [len(list(made.elastic_run(WorkerContext(rank, 3, 0, 1)))) for rank in range(3)] == [40, 40, 40]


def test_steps_where_a_filter_stands(urls, at):
    """With a filter, nobody knows how many items there are; the program can say how many it wants."""
    made = wds.WebDataset(urls, seed=3).select(lambda sample: sample["__key__"].endswith("1"))
    with pytest.raises(UsageError, match=r"select.*steps=n.*equal_steps"):
        list(made.equal_epochs("drop"))
    assert steps(everywhere(made.equal_epochs("drop", steps=3), at, 3, 2)) == [3, 3, 3]


def test_passes_and_epochs(urls, at):
    """repeat(2) gives two equal passes; the next epoch is another order, by the same plan."""
    made = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(20).repeat(2).equal_epochs("drop")
    given = everywhere(made, at, 3, 2)
    assert steps(given) == [60, 60, 60]
    assert set(Counter(sample["__key__"] for sample in flat(given)).values()) == {2}
    assert not any(sample.get("__pad__") for sample in flat(given))
    assert everywhere(made, at, 3, 2, epoch=1) != given


def test_it_travels(urls, at):
    """A dataset with equal epochs goes to workers that are spawned."""
    made = pickle.loads(pickle.dumps(wds.WebDataset(urls, seed=3).equal_epochs("drop")))
    assert steps(everywhere(made, at, 3, 2)) == [30, 30, 30]


def test_stages_may_follow(urls, at):
    """It may stand anywhere in the chain, and choosing again replaces the first choice."""
    made = wds.WebDataset(urls, seed=3).equal_epochs("pad").shuffle(5).listed(4).equal_epochs("drop")
    given = everywhere(made, at, 3, 1)
    assert steps(given) == [8, 8, 8]
    assert len(flat(given)) == 90


def test_explain_says_which(urls):
    """What was chosen stands in the description of the pipeline."""
    made = wds.WebDataset(urls, seed=3)
    assert "equal epochs: what equal shares" in made.equal_epochs("drop").explain()
    assert "equal_share(how='drop', samples=92, shards=7)" in made.equal_epochs("drop").explain()
    assert "equal epochs: 5 items for each rank, beginning again" in made.equal_epochs("resample", steps=5).explain()


@pytest.mark.parametrize("number", [2, 6])
@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("how", ["drop", "pad"])
def test_wrong_counts_are_found_out(urls, at, wrong, number, how):
    """A shard with fewer or more samples than was said is named, the last one too."""
    counts = {f"s-{shard}.tar": size + (wrong if shard == number else 0) for shard, size in enumerate(SIZES)}
    made = wds.WebDataset(urls, seed=3).equal_epochs(how, counts=counts)
    with pytest.raises(StaleIndex, match=rf"said to hold {SIZES[number] + wrong} samples.*s-{number}\.tar"):
        everywhere(made, at, 1, 2)


def test_a_shard_without_its_end(tmp_path):
    """The samples of a cut shard come before the error that says so."""
    whole = tmp_path / "a.tar"
    with wds.TarWriter(str(whole)) as sink:
        for index in range(4):
            sink.write({"__key__": f"{index}", "txt": "x" * 600})
    cut = tmp_path / "b.tar"
    cut.write_bytes(whole.read_bytes().rstrip(b"\0") + b"\0" * 300)
    made = wds.WebDataset([str(cut)], handler=wds.ignore_and_continue, missing_end="error")
    seen = [sample["__key__"] for sample in made.equal_epochs("drop", counts={"b.tar": 4})]
    assert seen == ["0", "1", "2", "0"]


def test_nothing_is_read_behind_too_many_samples():
    """A shard that holds more than was said is not read on; the samples before come, those that are too many do not."""
    lists = iter([(list("abc"), [0, 1, 2]), (list("def"), [3, 4, 5]), (list("ghi"), [6, 7, 8])])
    found = take_share(lists, {"part": (0, 5, 5)}, None)
    assert next(found) == (list("abc"), [0, 1, 2])
    with pytest.raises(StaleIndex, match="5 samples, and holds more"):
        next(found)
    assert next(lists)[0] == list("ghi")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made: made.equal_epochs("shorten"), "'drop', 'pad', 'resample'"),
        (lambda made: made.equal_epochs("resample"), "needs steps=n"),
        (lambda made: made.equal_epochs("drop", steps=0), "steps=0"),
        (lambda made: list(made.equal_epochs("drop").with_epoch(10)), r"with_epoch\(\) or repeat"),
        (lambda made: list(made.repeat().equal_epochs("drop")), r"with_epoch\(\) or repeat"),
        (
            lambda made: next(made.elastic(7).equal_epochs("drop").elastic_run(WorkerContext(0, 3, 0, 1))),
            r"elastic\(streams=9",
        ),
        (lambda made: list(made.compose(iter).equal_epochs("drop")), "unknown how many"),
    ],
)
def test_mistakes(urls, call, message):
    """What cannot mean anything is refused with what to write."""
    with pytest.raises(UsageError, match=message):
        call(wds.WebDataset(urls, seed=3))


def test_sources_without_a_plan(urls, folder):
    """Draws, and splitters of the user's, are not planned over; the message says what to write."""
    with pytest.raises(UsageError, match=r"resample.*steps=n"):
        wds.WebDataset(urls, resampled=True).equal_epochs("drop")
    with pytest.raises(UsageError, match=r"ours.*leave it out"):
        wds.WebDataset(urls, nodesplitter=ours).equal_epochs("drop")
    with pytest.raises(UsageError, match="begins with"):
        wds.DataPipeline([{"a": 1}]).equal_epochs("pad")
    with pytest.raises(FlowError, match="give each shard once"):
        list(wds.DataPipeline(Twice(str(folder / "s-0.tar")), wds.tarfile_to_samples()).equal_epochs("drop"))


def ours(shards):
    """Pass everything on."""
    return shards


class Twice(wds.SimpleShardList):
    """Gives each shard twice."""

    def shards(self, epoch, draw):
        """Yield them."""
        yield from super().shards(epoch, draw)
        yield from super().shards(epoch, draw)


@pytest.mark.parametrize("among", [1, 2, 3, 5, 92, 100])
def test_pieces_tile_the_pass(among):
    """Shares of all parties cover the pass in order, the remainder aside."""
    for how in ("drop", "pad"):
        places = []
        for number in range(among):
            begin, end = compute_share(sum(SIZES), number, among, how)
            for turn, piece in cut_pieces([{"url": number} for number in range(7)], SIZES, begin, end):
                first, stop, size = piece["part"]
                assert size == SIZES[piece["url"]]
                places += [(turn, piece["url"], index) for index in range(first, stop)]
        whole = [(0, url, index) for url, size in enumerate(SIZES) for index in range(size)]
        assert places[: len(whole)] == whole[: len(places)]
        assert abs(len(places) - len(whole)) < among


def test_fingerprints(urls, monkeypatch):
    """What ranks compare is equal for equal set-ups, and names what differs; loaders tell of their dataset."""
    made = wds.WebDataset(urls, seed=3, nodesplitter=wds.split_by_node).shuffle(10)
    found = compute_rank_fingerprint(made)
    assert found == compute_rank_fingerprint(wds.WebDataset(urls, seed=3, nodesplitter=wds.split_by_node).shuffle(10))
    for other, name in (
        (wds.WebDataset(urls, seed=4, nodesplitter=wds.split_by_node).shuffle(10), "seed"),
        (wds.WebDataset(urls.replace("{0..6}", "0"), seed=3, nodesplitter=wds.split_by_node).shuffle(10), "urls"),
        (wds.WebDataset(urls, seed=3).shuffle(10), "stage 1"),
        (made.elastic(4), "streams"),
        (made.equal_epochs("drop"), "equal epochs"),
        (wds.Loader(made, 2, workers=3), "workers"),
    ):
        assert compute_rank_fingerprint(other)[name] != found[name]
    order = "order of shards before they are shared out"
    source, reader = wds.SimpleShardList(urls), wds.tarfile_to_samples()
    shuffled = wds.DataPipeline(source, wds.detshuffle(10), wds.split_by_node, reader)
    behind = wds.DataPipeline(source, wds.split_by_node, wds.detshuffle(10), reader)
    assert compute_rank_fingerprint(shuffled)[order] != compute_rank_fingerprint(behind)[order]
    assert compute_rank_fingerprint(shuffled)[order] == compute_rank_fingerprint(shuffled)[order]
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert (found["ranks"], compute_rank_fingerprint(made)["ranks"]) == (1, 3)
    assert is_split_between_ranks(made)
    assert is_split_between_ranks(wds.Loader(made.elastic(4)))
    assert is_split_between_ranks(wds.WebDataset(urls, resampled=True))
    assert not is_split_between_ranks(wds.WebDataset(urls, nodesplitter=None))
    with pytest.raises(UsageError, match="expected a dataset"):
        compute_rank_fingerprint([1])


@pytest.mark.parametrize(("how", "wanted"), [("pad", [0, 1, 2, 0, 0]), ("drop", [0, 1, 2])])
@pytest.mark.parametrize("every", [1, 2])
def test_a_rank_that_ends_before_others_had_batches(how, wanted, every, monkeypatch):
    """That one of them has none left is no error of a rank that gave some; one that gave none is."""
    pytest.importorskip("torch.distributed")
    for own, good in ((3, True), (0, False)):
        steps: Any = equal_steps(list(range(own)), how, every=every)
        counts = iter([min(every, left) for left in range(5, -every, -every)])
        monkeypatch.setattr(steps, "_exchange_counts", lambda count, counts=counts: [count, max(0, next(counts))])
        if good:
            assert list(steps) == wanted
        else:
            with pytest.raises(FlowError, match="rank 0 of 2 gave no batch at all"):
                list(steps)


@given(st.data())
def test_a_part_is_whole_however_the_lists_are_cut(data):
    """Of lists of any lengths, a part gives its samples and no others, also where a list ends with the shard."""
    count = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else ())
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    resumed = data.draw(st.none() | st.integers(0, stop - start - 1))
    first = 0 if resumed is None else start + resumed
    whole = list(range(count))
    edges = [first, *(cut for cut in cuts if cut > first), count]
    lists = iter([(whole[low:high], whole[low:high]) for low, high in pairwise(edges)])
    found = list(take_share(lists, {"part": (start, stop, count)}, resumed))
    assert [sample for samples, _ in found for sample in samples] == whole[max(first, start) : stop]
    assert all(samples == offsets for samples, offsets in found)
