"""Which bytes are read of the samples that a table does not exclude; resumes while columns files come and go."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from support.elastic_resumes import check_three_resumes
from support.where_rows import key_of, set_columns, write_rows
from webdataset.samples import selected_extents
from webdataset.samples.selected_extents import MOST_GAP_BYTES, WASTE, SelectionTable, plan_selected_runs

HEADER = 512


@given(st.lists(st.integers(1, 900), min_size=1, max_size=60), st.data())
def test_a_plan_reads_what_is_needed_and_wastes_little(blocks, data):
    """Each wanted sample is in one run, runs rise, gaps are small, and no more than twice the bytes are read."""
    table = make_table([count + 1 for count in blocks])
    starts = table.starts
    wanted = sorted(data.draw(st.sets(st.integers(0, len(blocks) - 1), min_size=1)))
    length = starts[-1] + 1024
    runs = plan_selected_runs(table, wanted, length)
    covered = [number for run in runs for number in range(run.first, run.stop)]
    assert covered == sorted(set(covered))
    assert set(wanted) <= set(covered)
    assert all(run.start_bytes == starts[run.first] for run in runs)
    assert all({run.first, run.stop - 1} <= set(wanted) for run in runs)
    needed = sum(starts[number + 1] - starts[number] for number in wanted)
    ends = sum(HEADER if number + 1 < len(blocks) else 1024 for number in wanted)
    assert sum(run.stop_bytes - run.start_bytes for run in runs) <= WASTE * (needed + ends)
    passed = [number for number in covered if number not in wanted]
    assert all(starts[number + 1] - starts[number] <= MOST_GAP_BYTES + HEADER for number in passed)


def make_table(blocks):
    """Return a table of samples of so many blocks each."""
    starts = [512 * sum(blocks[:number]) for number in range(len(blocks) + 1)]
    entries = [SimpleNamespace(offset=start, fields=[SimpleNamespace(offset=start + HEADER)]) for start in starts[:-1]]
    return SelectionTable(entries, starts[:-1], starts[-1], None, len(blocks))


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [
        ([10, 12, 10, 6, 10], [(0, 5)]),
        ([10, 40, 10, 6, 10], [(0, 1), (2, 5)]),
        ([10, 6, 10, 600, 10], [(0, 3), (4, 5)]),
    ],
)
def test_the_smallest_gaps_are_read_over_first(blocks, runs):
    """With bytes to spare for one gap, the smaller of two is read."""
    table = make_table(blocks)
    found = plan_selected_runs(table, [0, 2, 4], table.starts[-1] + 1024)
    assert [(run.first, run.stop) for run in found] == runs


STAGES = {
    "plain": lambda made: made,
    "shuffled": lambda made: made.shuffle(20),
    "batched": lambda made: made.shuffle(7).batched(3, collation_fn=None),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize(("shards", "streams", "open_shards"), [(2, 12, 1), (7, 5, 1), (13, 4, 3)])
@pytest.mark.repeats
def test_three_resumes_while_columns_come_and_go(name, shards, streams, open_shards, tmp_path, monkeypatch):
    """Stopped three times on other ranks and workers, each time beside other columns files: the same items."""
    pytest.importorskip("pyarrow")
    draws, urls, per = random.Random(shards), [], 800 // shards
    for number in range(shards):
        # in every third shard nothing matches
        rows = [
            {"a": index if number % 3 != 2 else -1, "lang": draws.choice(["de", "en", None])} for index in range(per)
        ]
        urls.append(str(tmp_path / f"s-{number:02d}.tar"))
        write_rows(Path(urls[-1]), rows, number * per)
    opened = []
    begin = selected_extents.SelectedReader.__init__
    monkeypatch.setattr(
        selected_extents.SelectedReader, "__init__", lambda self, *call: opened.append(1) or begin(self, *call)
    )

    def make():
        for url in urls:
            set_columns(url, there=draws.random() < 0.5)
        made = wds.WebDataset(
            urls, where="json.a % 5 == 1 and json.lang != 'en'", seed=3, shardshuffle=10, open_shards=open_shards
        )
        return STAGES[name](made).elastic(streams)

    for epoch in (0, 2):
        check_three_resumes(make, epoch, name, rounds=2)
    assert opened


def test_a_shard_that_cannot_be_read_by_ranges_is_read_whole(tmp_path, monkeypatch):
    """Where a request for a range fails, the rest of the shard comes by one stream, with a warning."""
    pytest.importorskip("pyarrow")
    shard = tmp_path / "s.tar"
    write_rows(shard, [{"a": number} for number in range(60)])
    wds.write_columns(str(shard), "json.a")
    read, calls = selected_extents.ExtentReader._read_run, []

    def fail_second(self, run):
        calls.append(run)
        if len(calls) == 2:
            raise wds.errors.SourceError("no answer")
        return read(self, run)

    monkeypatch.setattr(selected_extents.ExtentReader, "_read_run", fail_second)
    made = wds.WebDataset(str(shard), where="json.a in (3, 20, 41)", shardshuffle=False, addresses=True)
    with pytest.warns(UserWarning, match="read whole"):
        found = [(sample["__key__"], sample["__address__"].ordinal) for sample in made]
    assert found == [(key_of(number), number) for number in (3, 20, 41)]
