"""Samples that ``where=`` leaves out: numbers and offsets of the others, shares, handlers, and what is said of none."""

import pickle
import warnings
from pathlib import Path

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from support.where_rows import key_of, write_rows
from webdataset.core.distributed import WorkerContext, use_place
from webdataset.core.errors import NoSamples, SampleError, SpecError, StateMismatch, UsageError
from webdataset.samples.sample_reader import Reading

COUNT = 150


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Three shards of 50 samples, of which every third has no language."""
    folder = tmp_path_factory.mktemp("selection")
    found = []
    for first in range(0, COUNT, 50):
        rows = [{"a": number, "lang": ("de", "en", None)[number % 3]} for number in range(first, first + 50)]
        rows[7] = None
        found.append(str(folder / f"s-{first:03d}.tar"))
        write_rows(Path(found[-1]), rows, first)
    return found


def select(urls, where, **options):
    """Return a dataset."""
    return wds.WebDataset(urls, where=where, shardshuffle=False, seed=1, **options)


def keys(items):
    """Return the keys of samples."""
    return [item["__key__"] for item in items]


WHERE = "json.a % 4 == 0 and json.lang == 'de' if json.a is not None else False"
CHOSEN = [key_of(number) for number in range(COUNT) if number % 4 == number % 3 == 0 and number % 50 != 7]


def test_samples_keep_their_numbers_and_offsets(urls):
    """The addresses of selected samples are those that they have where all are read."""
    every = {sample["__key__"]: sample["__address__"] for sample in select(urls, None, addresses=True)}
    found = list(select(urls, WHERE, addresses=True))
    assert keys(found) == CHOSEN
    assert [sample["__address__"] for sample in found] == [every[key] for key in CHOSEN]


@pytest.mark.parametrize("where", [
    WHERE, "json.lang is None", "not has('json')", "json.a > 20 and json.lang != 'en'", "key > '0100'", "json.nothing",
    "size('bin') > 1000 or '12' in key",
])  # fmt: skip
def test_the_selection_is_that_of_wds_grep(where, urls):
    """The expression of wds grep finds the same samples, missing fields and None included."""
    assert keys(select(urls, where, empty_check=False)) == [
        line["key"] for line in json_lines(run_wds("grep", "--json", where, *urls, status=where == "json.nothing"))
    ]


@pytest.mark.parametrize("splitter", [wds.split_by_sample, wds.split_by_node])
@pytest.mark.parametrize("open_shards", [1, 2])
def test_a_share_is_cut_by_all_samples(splitter, open_shards, urls):
    """What a rank gives of a selection is what it gives of all samples, without those that are left out."""
    for rank in range(2):
        with use_place(WorkerContext(rank, 2, 0, 1)):
            options = {"nodesplitter": splitter, "open_shards": open_shards, "empty_check": False}
            every = keys(select(urls, None, **options))
            found = keys(select(urls, WHERE, **options))
            # shards that are open side by side take turns by what is selected
            chosen = [key for key in every if key in CHOSEN]
            assert (found == chosen) if open_shards == 1 else (sorted(found) == sorted(chosen))


@pytest.mark.parametrize("make", [
    lambda made: made,
    lambda made: made.elastic(4),
    lambda made: pickle.loads(pickle.dumps(made)).shuffle(20).elastic(7),
])  # fmt: skip
def test_loaders_read_the_same_selection(make, urls):
    """Loader with threads and processes gives each selected sample once, columns files beside the shards or not."""
    for workers, mode in ((0, "threads"), (2, "threads"), (2, "processes")):
        made = make(select(urls, WHERE, empty_check=False))
        with wds.Loader(made, 4, workers=workers, mode=mode) as loader:
            assert sorted(key for batch in loader for key in batch["__key__"]) == CHOSEN


def test_a_trace_gives_the_selected_keys(urls, tmp_path):
    """What a run would deliver is told by samples, not by indexes that know keys alone."""
    copies = [str(tmp_path / Path(url).name) for url in urls]
    for url, copy in zip(urls, copies, strict=True):
        Path(copy).write_bytes(Path(url).read_bytes())
    wds.write_indexes(copies, "binary")
    made = select(copies, WHERE).shuffle(10).elastic(4)
    assert [key for batch in wds.states.trace(made) for key in batch.keys] == keys(made)


def test_torch_reads_the_same_selection(urls):
    """Two workers of torch's DataLoader share the shards out, and each leaves out what does not match."""
    pytest.importorskip("torch")
    made = select(urls, WHERE, empty_check=False).to_tuple("__key__")
    loader = wds.WebLoader(made, num_workers=2, batch_size=None)
    assert sorted(key for (key,) in loader) == CHOSEN


def test_the_expression_is_a_part_of_the_state(urls):
    """A state goes on under an expression that means the same, and is refused by name under another one."""
    with select(urls, "json.a>=30  and (json.lang=='de')").elastic(3).elastic_run() as run:
        given = keys(item for _, item in zip(range(5), run, strict=False))
        state = run.state_dict()
    with select(urls, 'json.a >= 30 and json.lang == "de"').elastic(3).elastic_run(state=state) as run:
        assert sorted(given + keys(run)) == keys(select(urls, "json.a >= 30 and json.lang == 'de'"))
    for other in ("json.a >= 31 and json.lang == 'de'", None):
        with pytest.raises(StateMismatch, match=r"where=.*json.a >= 30"):
            list(select(urls, other).elastic(3).elastic_run(state=state))


def test_an_expression_that_fails_asks_the_handler(urls):
    """A sample that an expression cannot judge is an error with its key; a handler leaves it out, or stops."""
    where = "json.a < 5 or json.lang + 'x' == 'dex'"
    with pytest.raises(SampleError, match="takes numbers") as found:
        list(select(urls, where))
    assert found.value.key == key_of(5)
    asked = []
    left = keys(select(urls, where, handler=lambda error: asked.append(error.key) or True))
    failing = [number for number in range(5, COUNT) if number % 3 == 2 or number % 50 == 7]
    assert asked == [key_of(number) for number in failing]
    assert left == [
        key_of(number) for number in range(COUNT) if number not in failing and (number < 5 or number % 3 == 0)
    ]
    assert keys(select(urls, where, handler=wds.ignore_and_stop)) == [key_of(number) for number in range(5)]


@pytest.mark.parametrize("make", [lambda made: made, lambda made: made.elastic(4)])
@pytest.mark.parametrize("open_shards", [1, 3])
def test_a_selection_of_nothing_is_told(make, open_shards, urls):
    """A pass without a match ends with a warning that names the expression, as select() does; a share says nothing."""
    with pytest.warns(UserWarning, match=r"where: 'json.widht > 5' kept none of the 150 samples of this pass"):
        assert list(make(select(urls, "json.widht > 5", open_shards=open_shards))) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(make(select(urls, "json.widht > 5", open_shards=open_shards, empty_check=False))) == []
        assert keys(select(urls, "key == '0003'").elastic(5)) == ["0003"]


def test_empty_shards_are_told_as_without(tmp_path):
    """Where there is no sample to select from, that is an error."""
    write_rows(tmp_path / "e.tar", [])
    for made in (select(str(tmp_path / "e.tar"), "json.a"), select(str(tmp_path / "e.tar"), "json.a").elastic(2)):
        with pytest.raises(NoSamples, match="no samples found"):
            list(made)


def test_a_source_of_a_specification_selects(urls):
    """`where:` of a source and the dataset's own have to hold both."""
    spec = {
        "version": 1,
        "sources": [
            {"name": "a", "shards": urls[:2], "where": "json.lang == 'de'"},
            {"name": "b", "shards": urls[2:], "where": "json.a > 120"},
        ],
        "mix": "concat",
    }
    found = list(wds.WebDataset(spec, where="json.a > 10"))
    assert keys(found) == [
        key_of(number)
        for number in range(11, COUNT)
        if number % 50 != 7 and (number % 3 == 0 if number < 100 else number > 120)
    ]
    broken = {"version": 1, "sources": [{"name": "b", "shards": urls, "where": "json.a >"}]}
    with pytest.raises(SpecError, match=r"source 'b': where: .*is no expression"):
        wds.WebDataset(broken)


def test_the_description_says_what_is_left_out(urls):
    """`explain()` shows the whole expression, and when less than all of a shard is read."""
    text = select(urls, "json.a >= 30 and (json.lang=='de')").explain()
    assert "leaves out samples for which this does not hold: json.a >= 30 and json.lang == 'de'" in text
    assert "where=" not in select(urls, None).explain()


@pytest.mark.parametrize("where", ["json.a >", "import os", "__import__('os')", "", 5, lambda _sample: True])
def test_what_is_no_expression_is_refused(where, urls):
    """A mistake is an error when the dataset is made."""
    with pytest.raises(UsageError):
        select(urls, where)
    with pytest.raises(UsageError):
        Reading(where="json.a > 5")  # type: ignore[arg-type]


def test_equal_epochs_cannot_be_planned(urls):
    """How many samples a selection keeps is not known before they are read."""
    with pytest.raises(UsageError, match=r"where='json.a > 5'"):
        list(select(urls, "json.a > 5").equal_epochs("drop", counts=True))


def test_a_replaced_grouper_is_refused(urls, monkeypatch):
    """A reader that a program put in place of this library's gives no samples that were not selected."""
    monkeypatch.setattr(wds.tariterators, "group_by_keys", lambda *_arguments, **_options: iter([{"__key__": "x"}]))
    with pytest.raises(UsageError, match="where="):
        list(select(urls, "json.a > 5"))
