"""Very many urls of braces: the same as a list of them, at the cost of the text."""

import copy
import io
import json
import pickle
import tracemalloc

import braceexpand
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.flow.fingerprint import fingerprint
from webdataset.flow.run import Bounds
from webdataset.shards import expand, lists
from webdataset.shards.expand import expand_to_sequence, expand_urls
from webdataset.shards.lazy_urls import LAZY_FROM, BraceText, LazyUrls
from webdataset.testing.archives import archive, member

MILLION = "s3://bucket/train-{000000..999999}.tar"

numbers = st.builds(
    lambda number, width, sign: sign + str(number).zfill(width),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", "", "-"]),
)
ranges = st.builds(
    lambda a, b, step: f"{{{a}..{b}{step}}}", numbers, numbers, st.sampled_from(["", "", "..0", "..2", "..07"])
)
words = st.text("ab.-01%é", max_size=4)
choices = st.lists(words, min_size=2, max_size=4).map(lambda each: "{" + ",".join(each) + "}")
texts = st.lists(st.one_of(ranges, choices, words, st.just("%d"), st.just("1..3")), min_size=1, max_size=3).map("".join)


@settings(max_examples=300)
@given(texts)
def test_as_braceexpand(text):
    """In order, by number, from the end, sliced: what braceexpand gives."""
    found = BraceText(text)
    assume(len(found) <= 3000)
    wanted = list(braceexpand.braceexpand(text))
    assert len(found) == len(wanted)
    assert list(found) == wanted
    assert [found[number] for number in range(len(found))] == wanted
    assert found[-1] == wanted[-1]
    if "{" in text:
        urls = LazyUrls([found, ["x"], BraceText("y{1..3}")])
        wanted += ["x", "y1", "y2", "y3"]
        assert list(urls) == wanted
        assert urls[2:-1] == wanted[2:-1]
        assert [urls[-number] for number in range(1, len(urls) + 1)] == wanted[::-1]


@pytest.mark.parametrize(
    "text", ["x{", "x}", "{a{1..3},b}", "{a..c}", "x{y}", r"\{1..2\}", "{1..2}{", "{1..1" + 30 * "0" + "}"]
)
def test_other_braces(text):
    """What is not made in this way is refused, and a list of it where it is valid."""
    with pytest.raises(ValueError, match=r"braces|numbers"):
        BraceText(text)


def test_as_a_sequence():
    """A long expression compares, slices, copies and pickles as a list would, and says what it is."""
    urls = expand_to_sequence(MILLION)
    assert isinstance(urls, LazyUrls)
    assert len(urls) == 1_000_000
    assert urls[0] == "s3://bucket/train-000000.tar"
    assert urls[-1] == urls[999_999] == "s3://bucket/train-999999.tar"
    assert urls[5:8] == [f"s3://bucket/train-{number:06}.tar" for number in (5, 6, 7)]
    assert repr(urls) == "<1000000 urls: s3://bucket/train-000000.tar … s3://bucket/train-999999.tar>"
    assert "secret" not in repr(expand_to_sequence("https://me:secret@host/{000000..999999}.tar"))
    for out in (1_000_000, -1_000_001):
        with pytest.raises(IndexError):
            urls[out]
    again = pickle.loads(pickle.dumps(urls))
    assert again == urls == copy.deepcopy(urls)
    assert urls != list(urls)[:-1]
    assert urls == list(urls)
    assert urls != "text"
    assert len(pickle.dumps(urls)) < 300
    with pytest.raises(TypeError):
        hash(urls)


def test_few_are_a_list():
    """Programs that change the list of their shards find one."""
    assert expand_to_sequence(f"x-{{1..{LAZY_FROM - 1}}}") == [f"x-{number}" for number in range(1, LAZY_FROM)]
    assert type(expand_to_sequence(f"x-{{1..{LAZY_FROM - 1}}}")) is list
    assert type(expand_to_sequence(f"x-{{1..{LAZY_FROM}}}")) is LazyUrls
    assert type(expand_urls(f"x-{{1..{LAZY_FROM}}}")) is list
    assert type(expand_to_sequence([MILLION])) is list
    assert expand_to_sequence(stream := io.BytesIO()) == [stream]


@pytest.mark.parametrize(
    "text",
    [
        "a/{0..9999}/*.tar",
        "a/{0..9999}/",
        "a/{0..9999}{,x}",
        "a/{0..9999}/{x,}",
        "{a,b/}{0..9999}",
        "{a..c}{0..9999}",
        r"{0..9999}\{1\}",
        "{0..9999}?a=b",
    ],
)
def test_more_than_braces_is_expanded(text, tmp_path, monkeypatch):
    """Wildcards, folders, escapes: such texts become lists, as ever."""
    monkeypatch.chdir(tmp_path)
    found = expand_to_sequence(text)
    assert type(found) is list
    assert found == expand_urls(text)


def test_several_texts(tmp_path, monkeypatch):
    """``::``, variables and wildcards beside it; a file of just that name is meant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDS_WHERE", "s3://bucket")
    for name in ("b-1.tar", "b-2.tar", "{0..99999}.tar"):
        (tmp_path / name).touch()
    found = expand_to_sequence("${WHERE}/{0..9999}.tar::b-*.tar::c{0..20000}::d{1..2}::{0..99999}.tar")
    assert isinstance(found, LazyUrls)
    wanted = [f"s3://bucket/{number}.tar" for number in range(10_000)] + ["b-1.tar", "b-2.tar"]
    wanted += [f"c{number}" for number in range(20_001)] + ["d1", "d2", "{0..99999}.tar"]
    assert found == wanted


def test_too_many_names():
    """More names than can be meant are an error before any is made."""
    with pytest.raises(UsageError, match="stands for more than"):
        expand_to_sequence("{0..99999}{0..99999}")


@pytest.mark.parametrize("seed", [None, 7])
def test_the_same_passes(monkeypatch, seed):
    """Lists of shards give the same in the same order, and draw the same, whichever way their urls are kept."""
    text = "x-{0..299}-{a,b}.tar::y"
    plain = [lists.SimpleShardList(text, seed=seed), lists.ResampledShards(text, 50, seed=3, deterministic=True)]
    monkeypatch.setattr(expand, "LAZY_FROM", 10)
    lazy = [lists.SimpleShardList(text, seed=seed), lists.ResampledShards(text, 50, seed=3, deterministic=True)]
    for one, another in zip(plain, lazy, strict=True):
        assert type(another.urls) is LazyUrls
        assert list(one) == list(another)
        assert repr(one) == repr(another)


def test_the_same_description(monkeypatch):
    """A state of a dataset whose urls are a list is one of the same urls in braces."""
    text = (
        "x-{0..299}.tar::pipe:curl -H 'Authorization: Bearer abc' {0..20}.tar?token=3::http://me:secret@h/{1..12}.tar"
    )
    bounds = Bounds()
    plain = [fingerprint([lists.SimpleShardList(urls)], bounds) for urls in (text, expand_urls(text))]
    monkeypatch.setattr(expand, "LAZY_FROM", 10)
    lazy = lists.SimpleShardList(text)
    assert type(lazy.urls) is LazyUrls
    assert fingerprint([lazy], bounds) == plain[0] == plain[1]


@pytest.fixture
def shards(tmp_path):
    """Twelve shards of five samples."""
    for shard in range(12):
        members = [member(f"{shard:02}-{number}.txt".encode(), b"x") for number in range(5)]
        (tmp_path / f"{shard:02}.tar").write_bytes(archive(*members))
    return f"{tmp_path}/{{00..11}}.tar"


def keys_of(dataset):
    """Return the keys of an epoch."""
    return [sample["__key__"] for sample in dataset]


@pytest.mark.parametrize("shuffle", [False, 5, True])
@pytest.mark.parametrize("streams", [None, 1, 5, 24])
def test_the_same_samples_and_states(monkeypatch, shards, streams, shuffle):
    """Order, states and what follows a state do not depend on how urls are kept; shown and planned alike."""

    def made():
        dataset = wds.WebDataset(shards, shardshuffle=shuffle, seed=5)
        return dataset if streams is None else dataset.elastic(streams)

    plain, shown = made(), repr(made())
    wanted = keys_of(plain)
    monkeypatch.setattr(expand, "LAZY_FROM", 10)
    lazy = made()
    assert type(lazy.pipeline[0].urls) is LazyUrls
    assert repr(lazy) == shown
    assert keys_of(pickle.loads(pickle.dumps(lazy))) == keys_of(lazy) == wanted
    if streams is None:
        return
    items = iter(made())
    first = [next(items)["__key__"] for _ in range(17)]
    state = items.state_dict()
    assert first + keys_of(items) == wanted
    monkeypatch.setattr(expand, "LAZY_FROM", 10_000)
    again, reference = made(), iter(made())
    assert [next(reference)["__key__"] for _ in range(17)] == first
    assert json.dumps(reference.state_dict()) == json.dumps(state)
    again.load_state_dict(state)
    assert keys_of(again) == wanted[17:]


def test_nothing_reads_all_urls_before_the_first_sample(monkeypatch, shards):
    """A million urls: made, shown, pickled and begun without going through them."""
    made = []
    own = BraceText.__iter__

    def note(self):
        for url in own(self):
            made.append(url)
            yield url

    monkeypatch.setattr(BraceText, "__iter__", note)
    text = shards.replace("{00..11}.tar", "00.tar") + "::" + MILLION
    tracemalloc.start()
    dataset = wds.WebDataset(text, shardshuffle=False).elastic(8)
    assert "1000001 shards" in repr(dataset)
    assert len(pickle.dumps(dataset)) < 3000
    assert next(iter(dataset))["__key__"] == "00-0"
    assert tracemalloc.get_traced_memory()[0] < 5_000_000
    tracemalloc.stop()
    assert len(made) < 1000
