"""What stages refuse where it is written, and what they say."""

import io
import itertools
import random
import re
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.stages import argument_checks

GIVEN = [
    (lambda d: d.map(None), r"map takes a function of a sample, not None \(pass the function f itself: f, not f\(\)\)"),
    (lambda d: d.map("jpg"), r"not 'jpg': write map\(function\), or map_dict\(jpg=function\)"),
    (lambda d: d.map(None, rng=True), r"map with rng= takes a function of a sample and a generator, not None"),
    (lambda d: d.map(lambda sample, rng: sample, rng=True, handler="warn"), "handler='warn': a function of the except"),
    (lambda d: d.select("jpg"), r"write select\(lambda sample: 'jpg' in sample\)"),
    (lambda d: d.select(None), r"not None .*write select\(lambda sample: 'jpg' in sample\)"),
    (lambda d: d.map_dict(cls=None), r"map_dict takes a function for each field, not cls=None .*map_dict\(jpg=fu"),
    (lambda d: d.map_dict({"cls": int}), r"a dictionary stands in the place of handler=.*map_dict\(\*\*"),
    (lambda d: d.map_tuple(int, "cls"), r"or None to leave it, not 'cls': write map_tuple\(function, None\)"),
    (lambda d: d.decode(5), r"decode takes image specs and functions f\(key, bytes\), not 5: write decode\('rgb'\)"),
    (lambda d: d.decode("rbg"), "unknown image spec or format 'rbg'"),
    (lambda d: d.decode(pre=int), r"pre= and post= take a list of functions .*: write pre=\[function\]"),
    (lambda d: d.decode(post=["rgb"]), r"pre= and post= take a list of functions .*, not 'rgb'"),
    (lambda d: d.decode(only=5), "only= names fields, not 5: write only='jpg cls'"),
    (lambda d: d.decode(trust="strickt"), "trust level 'strickt' is not one of strict, safe, full"),
    (lambda d: d.xdecode(5), r"a rule of xdecode is a pair \(pattern, function of a stream\), not 5"),
    (lambda d: d.xdecode(("*.txt", "utf-8")), "xdecode takes functions of a stream, or False .*not 'utf-8'"),
    (lambda d: d.xdecode(txt="utf-8"), "xdecode takes functions of a stream, or False .*not txt='utf-8'"),
    (lambda d: d.to_tuple("txt", 5), "a field is named by a string or a list of strings, not by 5: write 'jpg;png'"),
    (lambda d: d.to_tuple("txt", []), r"a field is named by .*, not by \[\]"),
    (lambda d: d.to_dict(5), "a field is named by"),
    (lambda d: d.rename(image=None), "a field is named by .*, not by None"),
    (lambda d: d.compose(wds.rename({"image": "jpg"})), "a dictionary stands in the place of handler="),  # type: ignore[arg-type]
    (lambda d: d.rename_keys(5), r"a rule is a pair \(new name, pattern\) of strings, not 5"),
    (lambda d: d.rename_keys(image=5), r"a rule is a pair \(new name, pattern\) of strings"),
    (lambda d: d.extract_keys(5), r"extract_keys takes patterns of field names, not 5: write '\*.jpg;\*.png'"),
    (lambda d: d.extract_keys([]), r"extract_keys takes patterns of field names, not \[\]"),
    (lambda d: d.compose(wds.associate(5)), "associate takes a dictionary from key to fields"),  # type: ignore[arg-type]
    (lambda d: d.compose("shuffle"), r"'shuffle' is no stage: a stage is what wds.map\(function\)"),
    (lambda d: d.rsample(50), r"rsample\(50\): the probability with which a sample is kept is from 0 to 1"),
    (lambda d: d.rsample("0.5"), r"rsample\('0.5'\)"),
    (lambda d: d.rsample(float("nan")), r"rsample\(nan\)"),
    (lambda d: d.slice(-1), r"slice\(-1\): positions are whole numbers from 0"),
    (lambda d: d.slice("2", None), r"slice\('2', None\): positions are whole numbers"),
    (lambda d: d.shuffle(None), "bufsize=None: it is a finite number, such as bufsize=1000"),
    (lambda d: d.shuffle("100"), "bufsize='100': it is a finite number"),
    (lambda d: d.shuffle(100, initial=None), "initial=None: it is a finite number"),
    (lambda d: d.shuffle(100, max_bytes="1G"), "max_bytes='1G': it is a finite number"),
    (lambda d: d.shuffle(100, rng=5), r"rng=5 is no generator: write rng=random.Random\(0\), or seed=0"),
    (lambda d: d.shuffle(100, seed=[1]), r"seed=\[1\]: a seed is a whole number"),
    (lambda d: d.compose(wds.detshuffle(100, seed="x")), "seed='x': the seed of detshuffle is a number"),  # type: ignore[arg-type]
    (lambda d: d.block_shuffle(None), "size=None: it is a finite number"),
    (lambda d: d.block_shuffle(2.5), "size=2.5: a block holds a whole number of samples"),
    (lambda d: d.batched(None), "batchsize=None: a batch holds at least one sample"),
    (lambda d: d.batched(2, collation_fn="list"), r"collation_fn='list': it makes a batch .*collation_fn=None"),
    (lambda d: d.bucket("cls", [9], batch_size=2, collation_fn="list"), "collation_fn='list'"),
    (lambda d: d.pack(None), r"max_tokens is None: .*pack\(2048\)"),
    (lambda d: d.pack(8, tokens=["ids"]), r"tokens= is the name of a field, such as 'input_ids', and not \['ids'\]"),
    (lambda d: d.pack(8, tokens="ids", also=5), r"also= names fields, not 5: write also=\['labels'\]"),
    (lambda d: d.pack(8, tokens="ids", also=[5]), r"also= names fields, not \[5\]"),
    (lambda d: d.pack(8, tokens="ids", also=[["a"]]), r"also= names fields, not \[\['a'\]\]"),
    (lambda d: d.interleaved(decode=5), r"decode takes image specs and functions f\(key, bytes\), not 5"),
    (lambda d: d.interleaved(decode="rbg"), "unknown image spec or format 'rbg'"),
    (lambda d: d.interleaved(handler=5), "handler=5: a function of the exception"),
    (lambda d: d.log_keys(1), r"the path of a file is a str or a pathlib.Path, not 1"),
    (lambda d: d.lmdb_cached(5), "the path of an LMDB file is a str or a pathlib.Path, not 5"),
    (lambda d: d.with_epoch("100"), r"with_epoch\(nsamples='100'\): it is a whole number"),
    (lambda d: d.with_epoch(None), r"with_epoch\(nsamples=None\): it is a whole number"),
    (lambda d: d.with_length("100"), r"with_length\(n='100'\): it is a whole number"),
    (lambda d: d.repeat(2, nbatches="3"), r"repeat\(nbatches='3'\): it is a whole number"),
    (lambda d: d.set_epoch(-1), r"set_epoch\(-1\): an epoch is a whole number, numbered from 0"),
    (lambda d: d.elastic().set_epoch("1"), r"set_epoch\('1'\): an epoch is a whole number"),
    (lambda d: wds.SimpleShardList(["a.tar"]).set_epoch(-1), r"set_epoch\(-1\)"),
    (lambda d: wds.SimpleShardList(["a.tar"], seed=[1]), r"seed=\[1\]: a seed is a whole number"),  # type: ignore[arg-type]
    (lambda d: wds.ResampledShards(["a.tar"], 1e6), "nshards=1000000.0: the draws in a pass, a whole number; leave it"),
    (lambda d: wds.ResampledShards(["a.tar"], None), "nshards=None: the draws in a pass"),
    (lambda d: wds.ResampledShards(["a.tar"], -1), "nshards=-1: the draws in a pass"),
    (lambda d: wds.ResampledShards(["a.tar"], seed=[1]), r"seed=\[1\]: a seed is a whole number"),
    (lambda d: wds.ResampledShards(["a.tar"], deterministic="no"), "deterministic='no' is a text, which counts"),  # type: ignore[arg-type]
    (lambda d: wds.ResampledShards(["a.tar"], empty_check="no"), "write empty_check=True or False"),  # type: ignore[arg-type]
    (lambda d: wds.ResampledShards(["a.tar"], max_urls="all"), "max_urls='all': the most urls to take"),  # type: ignore[arg-type]
    (lambda d: wds.resampled("x"), r"resampled\(n='x'\): the number of draws; leave it out for no end"),
    (lambda d: wds.resampled(n=-5), r"resampled\(n=-5\): the number of draws"),
    (lambda d: wds.WebDataset(["a.tar"], resampled="false"), "resampled='false' is a text, which counts as True whate"),  # type: ignore[arg-type]
    (lambda d: wds.WebDataset(["a.tar"], empty_check="no"), "write empty_check=True or False"),  # type: ignore[arg-type]
    (lambda d: wds.WebDataset(["a.tar"], detshuffle="no"), "write detshuffle=True or False"),  # type: ignore[arg-type]
    (lambda d: d.batched(2, partial="no"), "write partial=True or False"),
    (lambda d: d.bucket("cls", [9], batch_size=2, partial="no"), "write partial=True or False"),
    (lambda d: d.decode(partial="no"), "write partial=True or False"),
    (lambda d: d.to_tuple("cls", missing_is_error="no"), "write missing_is_error=True or False"),
    (lambda d: d.to_dict("cls", none_is_error="no"), "write none_is_error=True or False"),
    (lambda d: d.rename(keep="no", a="cls"), "write keep=True or False"),
    (lambda d: wds.RandomMix([d, d], longest="no"), "write longest=True or False"),  # type: ignore[arg-type]
    (lambda d: wds.RoundRobin([d, d], longest="no"), "write longest=True or False"),  # type: ignore[arg-type]
    (lambda d: wds.RandomMix(5), r"a mix takes a list of datasets, and this is 5: write \[a, b\]"),  # type: ignore[arg-type]
    (lambda d: wds.RandomMix(["a.tar", "b.tar"]), r"'a.tar' is none: write wds.WebDataset\(url\)"),
    (lambda d: wds.RandomMix([d, 5]), "a mix takes datasets, and 5 is none"),
    (lambda d: wds.RandomMix([d, d], 0.5), r"weights 0.5 are no numbers: give one for each dataset, \[0.7, 0.3\]"),  # type: ignore[arg-type]
    (lambda d: wds.RandomMix([d, d], ["a", 1]), "weights .* are no numbers"),  # type: ignore[list-item]
    (lambda d: wds.cbors_to_samples(handler=5), "handler=5: a function of the exception"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.fixture
def dataset(tmp_path):
    """Samples with a number and a text."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number:03d}", "txt": f"c{number}", "cls": number})
    return wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)


@pytest.mark.parametrize(("make", "message"), GIVEN)
def test_a_wrong_argument_fails_where_it_is_written(make, message, dataset):
    """Nothing has been read, and the message says what to write."""
    with pytest.raises(UsageError, match=f"(?s){message}") as failure:
        make(dataset)
    assert len(str(failure.value).splitlines()) <= 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("select_files", "jpg"), ("rename_files", ""), ("url_to_name", 5), ("keys", "jpg"), ("keys", None),
        ("suffixes", 5), ("limits", None), ("duplicates", "frist"), ("nodesplitter", True), ("workersplitter", "x"),
        ("shardshuffle", "100"), ("repeat", [2]), ("cache_dir", 5), ("open_shards", 2.5), ("open_shards", None),
    ],
)  # fmt: skip
def test_a_dataset_checks_its_arguments(name, value, tmp_path):
    """By name, before a shard is opened: there is none."""
    with pytest.raises(UsageError, match=f"^{name}={re.escape(repr(value))}: "):
        wds.WebDataset(str(tmp_path / "none.tar"), **{name: value})


def test_what_published_versions_take_is_taken(dataset):
    """None in map_tuple, False for a splitter and for a rule, numbers that are fractions, seeds of several kinds."""
    pairs = dataset.to_tuple("txt", "cls")
    assert next(iter(pairs.map_tuple(None, int))) == (b"c0", 0)
    assert next(iter(dataset.xdecode(txt=False, cls=lambda stream: int(stream.read()))))["cls"] == 0
    assert len(list(pairs.batched(2.5))) == 2
    assert len(list(pairs.batched(np.float32(2)))) == 2
    assert len(list(pairs.batched(2, collation_fn=None))) == 2
    for options in ({"seed": "x"}, {"seed": 2.5}, {"seed": np.int64(3)}, {"rng": random.Random(1)}, {"rng": random}):
        assert len(list(dataset.shuffle(1e2, initial=2.5, **options))) == 4
    assert len(list(dataset.rsample(1))) == 4
    assert not list(dataset.rsample(0))
    url = dataset.pipeline[0].urls[0]
    others = {"shardshuffle": 2.0, "nodesplitter": None, "workersplitter": False, "suffixes": {"txt"}}
    assert len(list(wds.WebDataset(url, **others))) == 4  # type: ignore[arg-type]
    assert len(list(dataset.with_epoch(2.0))) == 2


def test_numpys_seed_draws_as_pythons(dataset):
    """A seed is what it counts, whatever its type."""
    orders = [[sample["__key__"] for sample in dataset.shuffle(10, seed=seed)] for seed in (3, np.int64(3))]
    assert orders[0] == orders[1]
    lists = [list(wds.SimpleShardList([f"{n}.tar" for n in range(9)], seed=seed)) for seed in (3, np.int64(3))]
    assert lists[0] == lists[1]


def test_a_dataset_after_a_wrong_epoch(dataset):
    """What is refused changes nothing."""
    elastic = dataset.shuffle(10).elastic()
    elastic.set_epoch(3)
    for wrong in (-1, "1", None, 1.5):
        for each in (elastic, dataset):
            with pytest.raises(UsageError, match="set_epoch"):
                each.set_epoch(wrong)
    assert elastic.epoch == 3
    assert dataset.epoch == 0


WRONG = [None, "jpg", "", 0, -1, 2.5, [], {}, [1], object(), float("nan")]
STAGES = {
    name: (lambda d, value, name=name: getattr(d, name)(value))
    for name in "map select decode map_tuple to_tuple rename_keys extract_keys xdecode to_dict slice rsample shuffle "
    "block_shuffle batched listed compose with_epoch repeat pack interleaved".split()
} | {
    f"{name} {argument}": (lambda d, value, name=name, argument=argument: getattr(d, name)(**{argument: value}))
    for name, argument in [
        ("map_dict", "cls"), ("rename", "image"), ("decode", "pre"), ("decode", "post"), ("decode", "only"),
        ("decode", "trust"), ("xdecode", "txt"), ("rename_keys", "image"), ("interleaved", "decode"),
    ]
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_fails_with_an_error_of_pythons(stage, dataset):
    """Whatever it is given, it is refused at once, or works, or fails on a sample with an error that says which."""
    for value in WRONG:
        try:
            made = STAGES[stage](dataset.map(lambda sample: {**sample, "input_ids": [1, 2]}), value)
        except UsageError:
            continue
        try:
            list(itertools.islice(made, 9))
        except WebDatasetError as error:
            assert not isinstance(error, UsageError) or "stage" in str(error), value  # noqa: PT017


@pytest.mark.torch
def test_an_epoch_that_no_loader_of_torch_has_is_refused(dataset):
    """As that of a dataset."""
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"set_epoch\(-1\)"):
        wds.WebLoader(dataset).set_epoch(-1)


def test_a_value_is_shown_short():
    """A long list is cut, and None is explained."""
    assert len(argument_checks.show_value(list(range(1000)))) < 60
    assert argument_checks.show_value(None) == "None (pass the function f itself: f, not f())"
    assert argument_checks.name_values({"cls": 1}) == [("cls=", 1)]
    assert argument_checks.name_values((1, 2)) == [("", 1), ("", 2)]


def test_huge_counts():
    """A whole number is as large as it is; a fraction is rounded up."""
    assert argument_checks.read_count(10**400, "n") == 10**400
    assert argument_checks.read_count(0.1, "n") == 1


untyped: Any = wds


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: untyped.tarfile_to_samples(select_files="x"), r"select_files='x': .*lambda name: name\.endswith"),
        (lambda: untyped.tarfile_to_samples(rename_files="x"), "rename_files='x': .*that returns another"),
        (lambda: untyped.cached_tarfile_to_samples(select_files="x"), "select_files='x'"),
        (lambda: untyped.tarfile_to_samples(handler="x"), r"wds\.warn_and_continue"),
        (lambda: untyped.tarfile_to_samples(keys="x"), r"keys='x': .*returns \(key, extension\)"),
        (lambda: untyped.tarfile_to_samples(suffixes=5), r"suffixes=5: .*\['jpg', 'json'\]"),
        (lambda: untyped.tarfile_to_samples(duplicates="x"), "duplicates='x' is not one of error"),
        (lambda: untyped.tarfile_to_samples(limits="x"), "limits='x'"),
        (lambda: untyped.tarfile_to_samples(trust="x"), "trust level 'x' is not one of"),
        (lambda: untyped.tariterators.tar_file_expander([], select_files="x"), "select_files='x'"),
        (lambda: list(untyped.tariterators.group_by_keys([], keys="x")), "keys='x'"),
        (lambda: untyped.WebDataset([""], select_files="x"), "select_files='x'"),
        (lambda: untyped.info(5), r"fmt=5: .*info\('{__key__} {cls}'\)"),
        (lambda: untyped.info(n="x"), r"info\(n='x'\): .*info\(n=10\)"),
        (lambda: untyped.info(every="x"), r"info\(every='x'\)"),
        (lambda: untyped.info(width=2.5), r"info\(width=2\.5\)"),
        (lambda: untyped.info(stream="x"), "stream='x': .*stream=sys.stdout"),
        (lambda: list(untyped.resampled("x")([1])), r"resampled\(n='x'\)"),
        (lambda: untyped.WebDataset([""], seed=[1]), r"seed=\[1\]: a seed is a whole number"),
        (lambda: untyped.WebDataset([""], seed="x").elastic(), "seed='x': states name the seed"),
    ],
)
def test_readers_and_reports_check_their_arguments(make, said):
    """A wrong one fails where the stage is made, and not with the first shard, in a worker."""
    with pytest.raises(UsageError, match=said):
        make()


def test_an_argument_that_readers_do_not_have():
    """The error names what was called, and the argument that was meant."""
    with pytest.raises(TypeError, match=r"tarfile_to_samples\(\) got .* 'sufixes'; did you mean 'suffixes'"):
        untyped.tarfile_to_samples(sufixes=["jpg"])


def test_what_programs_give_readers_and_reports():
    """None for a handler, a set of suffixes, a buffer to write to, an object that is called: as upstream takes them."""
    assert untyped.tarfile_to_samples(None, None, lambda name: name, suffixes={"jpg"}, keys=lambda name: ("a", "b"))
    out = io.StringIO()
    list(untyped.info("{cls}", 1, -1, 5, out, "name")([{"cls": 3}]))
    assert out.getvalue() == "3\n"
    assert len(list(untyped.resampled(np.int64(3))([1]))) == 3
    assert type(untyped.WebDataset([""], seed=np.int64(5)).elastic().seed) is int
