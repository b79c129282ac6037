"""Samples whose members do not stand next to each other: told, however the shard is read."""

import io
import itertools
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset import tariterators
from webdataset.core.errors import DuplicateField, SampleError, SplitSample, Truncated, UsageError
from webdataset.core.seeds import make_rng
from webdataset.index import index_shard
from webdataset.index.formats import dali, files_json
from webdataset.samples.address import Address
from webdataset.samples.grouping import Grouper
from webdataset.samples.sample_reader import Position, Reading, read_samples
from webdataset.samples.split_samples import FinishedKeys
from webdataset.storage.open_url import open_stream
from webdataset.testing import archives
from webdataset.testing.sources import FaultyStream

COLUMNS = [("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3"), ("1.b", b"4")]
JOINED = [("0.a", b"1"), ("1.a", b"2"), ("0.a", b"3"), ("1.a", b"4")]
KINDS = ("file", "memory", "pipe", "gz", "zst")


def written(members, folder):
    """Return the path of a shard with these members."""
    path = Path(folder) / "x.tar"
    path.write_bytes(archives.by_hand(members))
    return path


def opened(kind, members, folder):
    """Return an opened shard of some kind of source."""
    path = written(members, folder)
    content = path.read_bytes()
    if kind in archives.COMPRESSIONS:
        content = archives.compressed(content, kind)
        path.write_bytes(content)
    stream = {"memory": io.BytesIO, "pipe": FaultyStream}.get(kind, lambda _: open_stream(path))(content)
    return {"url": str(path), "stream": stream}


def warned(shard, start=None, **rules):
    """Return keys with fields, the errors that a handler let pass, and the warnings."""
    errors = []
    reading = Reading(handler=lambda error: errors.append(error) or True, **rules)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = list(read_samples([shard], reading, start=start))
    return [plain(sample) for sample in samples], errors, [str(warning.message) for warning in caught]


def plain(sample):
    """Key and fields."""
    return sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}


def model(members):
    """Group and judge in the plainest words: what is delivered, which parts are left out, how many repeats."""
    samples = []
    for name, payload in members:
        key, _, field = name.partition(".")
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        samples[-1][1][field] = payload
    first, delivered, parts, repeats = {}, [], [], 0
    for key, fields in samples:
        before = first.setdefault(key, fields)
        if before is not fields and set(before) != set(fields):
            parts.append((key, fields))
            continue
        repeats += before is not fields
        delivered.append((key, fields))
    return samples, delivered, parts, repeats


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_errors(tmp_path, kind):
    """The handler is asked about each; the error says where, and that the first part has been delivered."""
    found, errors, caught = warned(opened(kind, COLUMNS, tmp_path))
    assert found == [("0", {"a": b"1"}), ("1", {"a": b"2"})]
    assert not caught
    assert [(type(error), error.key, error.offset) for error in errors] == [
        (SplitSample, "0", 2048),
        (SplitSample, "1", 3072),
    ]
    assert isinstance(errors[0], SampleError)
    message = str(errors[0])
    assert "'b' does not stand next to 'a', which was delivered before" in message
    assert "split_samples=" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_delivered_on_demand(tmp_path, kind):
    """``warn``: one warning with their number; ``ignore``: none."""
    whole = [("0", {"a": b"1"}), ("1", {"a": b"2"}), ("0", {"b": b"3"}), ("1", {"b": b"4"})]
    found, errors, caught = warned(opened(kind, COLUMNS, tmp_path), split_samples="warn")
    assert (found, errors) == (whole, [])
    assert len(caught) == 1
    assert "2 keys come again (the first is '0' at byte 2048) with other fields" in caught[0]
    assert warned(opened(kind, COLUMNS, tmp_path), split_samples="ignore") == (whole, [], [])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_fields_are_another_sample(tmp_path, kind):
    """Archives that were joined: all is delivered, with one warning for the shard, under every policy but one."""
    whole = [plain({"__key__": name[0], "a": payload}) for name, payload in JOINED]
    for policy in ("error", "warn"):
        found, errors, caught = warned(opened(kind, JOINED, tmp_path), split_samples=policy)
        assert (found, errors) == (whole, [])
        assert len(caught) == 1
        assert "2 keys come again (the first is '0' at byte 2048) with the same fields" in caught[0]
    assert warned(opened(kind, JOINED, tmp_path), split_samples="ignore") == (whole, [], [])


def test_an_unknown_policy():
    """A mistake is told at once."""
    with pytest.raises(UsageError, match="split_samples='maybe'"):
        Reading(split_samples="maybe")
    with pytest.raises(UsageError, match="split_samples='maybe'"):
        list(tariterators.group_by_keys([], split_samples="maybe"))


def test_every_shard_by_itself(tmp_path):
    """The same keys in another shard, in another pass, or in the same shard again are nothing unusual."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_hand(COLUMNS[:2]))
    (tmp_path / "y.tar").write_bytes(archives.by_hand(COLUMNS[2:]))
    dataset = wds.WebDataset([str(path), str(tmp_path / "y.tar"), str(path)], shardshuffle=False)
    for _ in range(2):
        assert [sample["__key__"] for sample in dataset] == ["0", "1"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_random_orders_agree_with_a_model(tmp_path, kind):
    """Members of a few keys in every order: rising, falling, in parts, joined; large shards and small ones."""
    parts_seen = repeats_seen = 0
    for trial in range(60):
        rng = make_rng("split", kind, trial)
        keys = [f"{rng.randrange(rng.choice((4, 40, 100_000))):06d}" for _ in range(rng.choice((3, 30, 800)))]
        if rng.random() < 0.5:
            keys.sort()
        members = []
        for index, (key, _) in enumerate(itertools.groupby(keys)):
            for field in rng.choice((["a"], ["b"], ["a", "b"], ["a", "b", "__c"])):
                members.append((f"{key}.{field}", bytes(rng.choice((1, 500, 4000))) + b"%d" % index))
        whole, delivered, parts, repeats = model(members)
        found, errors, caught = warned(opened(kind, members, tmp_path))
        assert len(found) == len(delivered)
        assert [key for key, _ in found] == [key for key, _ in delivered]
        assert [error.key for error in errors] == [key for key, _ in parts]
        assert len(caught) == (repeats > 0)
        assert not repeats or f": {repeats} keys come again" in caught[0]
        assert len(warned(opened(kind, members, tmp_path), split_samples="warn")[0]) == len(whole)
        parts_seen, repeats_seen = parts_seen + len(parts), repeats_seen + repeats
    assert parts_seen > 50
    assert repeats_seen > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_taken_up_in_its_middle_has_the_same_verdict(tmp_path, kind):
    """From each sample on: what is delivered, and which parts are errors, is the rest of an unbroken run."""
    for trial in range(12):
        rng = make_rng("resumed", kind, trial)
        keys = [f"{number:04d}" for number in range(rng.randint(2, 40))]
        columns = [(f"{key}.{field}", bytes(rng.choice((1, 3000)))) for field in "ab" for key in keys]
        joined = [(f"{key}.a", b"1") for _ in range(2) for key in keys]
        mixed = rng.sample(columns, len(columns))
        for members in (columns, joined, mixed):
            reading = Reading(handler=lambda _: True, addresses=True, split_samples="error")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                whole = list(read_samples([opened(kind, members, tmp_path)], reading))
            _, errors, _ = warned(opened(kind, members, tmp_path))
            place = rng.randrange(len(whole))
            address = whole[place]["__address__"]
            position = Position()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in itertools.islice(
                    read_samples([opened(kind, members, tmp_path)], reading, position), place + 1
                ):
                    pass
            shard = {**opened(kind, members, tmp_path), "rising": position.rising}
            again, later, _ = warned(shard, start=Address(*address))
            assert [key for key, _ in again] == [sample["__key__"] for sample in whole[place:]]
            assert [(e.key, e.offset) for e in later] == [
                (e.key, e.offset) for e in errors if e.offset > address.offset
            ]


def test_members_one_by_one(tmp_path):
    """``tar_file_expander`` and ``group_by_keys``: as the stage; others' items are of any number of shards."""
    shard = opened("memory", COLUMNS, tmp_path)
    seen = []
    found = list(
        tariterators.group_by_keys(tariterators.tar_file_expander([shard]), handler=lambda e: seen.append(e) or True)
    )
    assert [plain(sample) for sample in found] == [("0", {"a": b"1"}), ("1", {"a": b"2"})]
    assert [(type(error), error.key, error.url) for error in seen] == [
        (SplitSample, key, str(tmp_path / "x.tar")) for key in "01"
    ]
    with pytest.raises(SplitSample):
        list(tariterators.group_by_keys(tariterators.tar_file_expander([opened("memory", COLUMNS, tmp_path)])))
    stopped = tariterators.group_by_keys(
        tariterators.tar_file_expander([opened("memory", COLUMNS, tmp_path)]), handler=lambda _: False
    )
    assert len(list(stopped)) == 2
    grouped = tariterators.group_by_keys(tariterators.tar_file_expander([opened("memory", JOINED, tmp_path)]))
    with pytest.warns(UserWarning, match="2 keys come again .the first is '0'. with the same"):
        assert len(list(grouped)) == 4
    both = [opened("memory", JOINED, tmp_path), {**opened("memory", COLUMNS[:1], tmp_path), "url": "other.tar"}]
    with pytest.warns(UserWarning, match="2 keys come again .the first is '0'. with the same"):
        assert len(list(tariterators.group_by_keys(tariterators.tar_file_expander(both)))) == 5
    cut = {"url": "cut.tar", "stream": io.BytesIO(written(COLUMNS, tmp_path).read_bytes()[:1500])}
    with pytest.raises(Truncated) as caught:
        list(tariterators.tar_file_expander([cut]))
    assert (caught.value.url, caught.value.offset) == ("cut.tar", 1500)
    expanded = tariterators.tar_file_expander([opened("memory", COLUMNS, tmp_path)])
    assert len(list(tariterators.group_by_keys(expanded, split_samples="ignore"))) == 4
    for url in ({}, {"__url__": "u"}):
        items = [{"fname": name, "data": payload, **url} for name, payload in COLUMNS]
        assert len(list(tariterators.group_by_keys(items))) == 4


def test_an_index_has_the_same_verdict(tmp_path):
    """Made from headers, by streaming, of an index file, while reading, by ``wids``: an error, or the same samples."""
    path = written(COLUMNS, tmp_path)
    for hashes in ((), ("md5",)):
        with pytest.raises(SplitSample) as caught:
            index_shard(path, hashes=hashes)
        assert (caught.value.key, caught.value.offset, caught.value.url) == ("0", 2048, str(path))
    with pytest.raises(SplitSample):
        len(wds.IndexedShard(path))
    passing = index_shard(path, handler=lambda _: True)
    assert [entry.key for entry in passing.entries] == ["0", "1"]
    with pytest.warns(UserWarning, match="2 keys come again"):
        assert len(index_shard(path, split_samples="warn").entries) == 4
    whole = index_shard(path, split_samples="ignore")
    assert [plain(sample) for sample in wds.IndexedShard(path, split_samples="ignore")] == [
        ("0", {"a": b"1"}), ("1", {"a": b"2"}), ("0", {"b": b"3"}), ("1", {"b": b"4"})
    ]  # fmt: skip
    for kind in (dali, files_json):
        (tmp_path / "given").write_bytes(kind.dumps(whole))
        with pytest.raises(SplitSample):
            len(wds.IndexedShard(path, tmp_path / "given"))
        assert len(wds.IndexedShard(path, tmp_path / "given", split_samples="ignore")) == 4
    indexes = []
    rules: dict[str, Any] = {"handler": lambda _: True, "observer": wds.IndexWhileReading(then=indexes.append)}
    assert len(list(wds.WebDataset(str(path), shardshuffle=False, **rules))) == 2
    assert [entry.key for entry in indexes[0].entries] == ["0", "1"]
    written(JOINED, tmp_path)
    with pytest.warns(UserWarning, match="come again") as caught:
        assert len(list(wds.WebDataset(str(path), shardshuffle=False, **rules))) == 4
    assert len(caught) == 1


def test_duplicates_that_begin_anew_are_no_parts(tmp_path):
    """``duplicates="new"`` makes several samples of one key in a row; those that stand apart are parts all the same."""
    members = [("0.a", b"1"), ("0.b", b"1"), ("0.a", b"2"), ("1.a", b"1"), ("1.a", b"1"), ("2.a", b"1")]
    for kind in KINDS:
        found, errors, caught = warned(opened(kind, members, tmp_path), duplicates="new")
        assert [key for key, _ in found] == ["0", "0", "1", "1", "2"]
        assert (errors, caught) == ([], [])
        _, errors, caught = warned(opened(kind, [*members, ("1.b", b"1")], tmp_path), duplicates="new")
        assert [(type(error), error.key) for error in errors] == [(SplitSample, "1")]
        _, errors, _ = warned(opened(kind, members, tmp_path))
        assert {type(error) for error in errors} == {DuplicateField}


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rising", [True, False])
def test_a_run_that_resumes_between_samples_of_one_key(tmp_path, monkeypatch, kind, native, rising):
    """Under ``duplicates="new"`` the sample before the first one may have its key: it is no part of one."""
    monkeypatch.setenv("WDS_NATIVE", native)
    members = [("0.a", b"1"), ("0.b", b"1"), ("0.a", b"2"), ("1.a", b"1"), ("1.a", b"1"), ("1.a", b"3"), ("0.c", b"1")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = list(
            read_samples(
                [opened(kind, members, tmp_path)],
                Reading(handler=lambda _: True, addresses=True, duplicates="new"),
            )
        )
    assert [sample["__key__"] for sample in whole] == ["0", "0", "1", "1", "1"]
    for place, sample in enumerate(whole):
        shard = {**opened(kind, members, tmp_path), "rising": rising}
        found, errors, caught = warned(shard, start=Address(*sample["__address__"]), duplicates="new")
        assert [key for key, _ in found] == [each["__key__"] for each in whole[place:]]
        assert ([(type(error), error.key) for error in errors], caught) == ([(SplitSample, "0")], [])


def test_documents_judge_their_own_keys(tmp_path):
    """A rule of keys that remembers members is not watched."""
    members = [("d.json", b"{}"), ("d-0.jpg", b"1"), ("e.json", b"{}"), ("d-1.jpg", b"2"), ("d.txt", b"3")]
    found, errors, caught = warned(opened("file", members, tmp_path), keys=wds.sibling_keys)
    assert [key for key, _ in found] == ["d", "e", "d-1", "d"]
    assert (errors, caught) == ([], [])


def test_keys_that_are_no_texts(tmp_path):
    """A user's rule may make keys of any kind."""

    def number(name):
        key, _, extension = name.partition(".")
        return (int(key) if key != "1" else None, key), extension

    found, errors, _ = warned(opened("file", COLUMNS, tmp_path), keys=number)
    assert len(found) == 2
    assert [error.key for error in errors] == [(0, "0"), (None, "1")]


@pytest.mark.parametrize("seeks", [False, True])
@pytest.mark.parametrize("rises", [False, True])
def test_memory_is_bounded(seeks, rises):
    """Of a shard with more keys than fit the newest are known, whether or not they rise or can be looked up."""
    count, grouper = 30_000, Grouper()
    grouper.open({"__url__": "u"})
    finished = FinishedKeys("u", grouper, most_bytes=1 << 20)
    if seeks:
        finished.follow(lambda _: FinishedKeys("u", grouper))
    odd = 0x9E3779B97F4A7C15F39CC0605CEDC835
    tracemalloc.start()
    for start in range(0, count, 200):
        places = range(start, start + 200)
        names = [f"{place:032x}" if rises else f"{place * odd % (1 << 128):032x}" for place in places]
        samples = grouper.add([(f"{name}.a", b"", 0) for name in names])
        assert finished.add(samples, [0] * len(samples)) == []
        del samples
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 1_500_000
    assert finished.rising == rises
    if not seeks:
        found = finished.add([{"__key__": names[-3]}], [7])
        assert [(index, part.key) for index, part in found] == [(0, names[-3])]


def test_keys_that_do_not_rise_and_are_new_are_looked_up_once():
    """The fields before are asked for where a key comes again, and only then."""
    grouper, asked = Grouper(), []
    grouper.open({"__url__": "u"})

    def look_up(offset):
        asked.append(offset)
        earlier = FinishedKeys("u", grouper)
        earlier.add([{"__key__": "m", "a": b""}], [0])
        return earlier

    finished = FinishedKeys("u", grouper)
    assert finished.add([{"__key__": "m", "a": b""}], [0]) == []
    finished.follow(look_up)
    for number, keys in enumerate(("dc", "ba", "ih")):
        assert finished.add([{"__key__": key, "a": b""} for key in keys], [number, number]) == []
    assert asked == [0]
    finished.add([{"__key__": "m", "a": b""}], [9])
    assert asked == [0, 9]
