"""Specifications of any content: written down and read again, and mixed in their proportions."""

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from webdataset.core.errors import WebDatasetError
from webdataset.flow.run import Flow
from webdataset.shards.specs import DatasetSpec, Mix, Source, load_spec
from webdataset.shards.specs.syntax import SpecProblems, parse_json
from webdataset.stages.base import Run
from webdataset.stages.mix import EvenMix

yaml = pytest.importorskip("yaml")

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
urls = st.from_regex(r"(/|gs://b/|https://h:1/)[a-z$\-]{1,6}(-\{0\.\.9\})?\.tar", fullmatch=True)
numbers = st.one_of(st.integers(1, 1000), st.floats(0.001, 1000))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=9),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def sources(draw, mixes=None):
    """Return a source: a list of shards, or a mix."""
    fields = {
        "weight": draw(st.one_of(st.none(), numbers)),
        "subsample": draw(st.floats(0.01, 1)),
        "rename": draw(st.dictionaries(names, names, max_size=2)),
        "keep": tuple(draw(st.lists(names, max_size=2))),
        "extensions": tuple(draw(st.lists(names, max_size=2))),
        "tags": draw(st.dictionaries(names, values, max_size=2)),
        "decode": draw(st.one_of(st.none(), st.tuples(names))),
        "transforms": tuple(
            draw(
                st.lists(
                    st.tuples(
                        st.sampled_from(["gray", "a-b", "x$y"]),
                        st.one_of(st.none(), st.integers(), st.lists(st.text(max_size=3))),
                    ),
                    max_size=2,
                )
            )
        ),
        "preshuffle": draw(st.integers(0, 9)),
        "shuffle": draw(st.integers(0, 9)),
    }
    if mixes is not None and draw(st.booleans()):
        return Source(mix=draw(mixes), repeat=draw(st.integers(1, 3)), **fields)
    return Source(
        shards=tuple(draw(st.lists(urls, min_size=1, max_size=3))),
        repeat=draw(st.one_of(st.integers(1, 4), st.floats(0.1, 4))),
        choose=draw(st.one_of(st.none(), st.integers(1, 5))),
        subset=draw(st.sampled_from([(0, 1), (0.25, 0.5), (0, 0.1)])),
        shardshuffle=draw(st.sampled_from([None, True, False])),
        cache=draw(st.sampled_from([None, "/tmp"])),
        nsamples=draw(st.one_of(st.none(), st.integers(0, 10**9))),
        nbytes=draw(st.one_of(st.none(), st.integers(0, 10**15))),
        **fields,
    )


@st.composite
def mixtures(draw, inner=None):
    """Return a mix whose sources have names that differ."""
    how = draw(st.sampled_from(["interleave", "roundrobin", "concat"]))
    found = draw(st.lists(sources(inner), min_size=1, max_size=3))
    unnamed = [Source(**{**source.__dict__, "name": f"{draw(names)}{n}"}) for n, source in enumerate(found)]
    ends = "drop" if how == "concat" else draw(st.sampled_from(["restart", "drop", "stop"]))
    unit, power = draw(st.sampled_from(["samples", "shards", "bytes"])), draw(st.floats(0, 3))
    return Mix(how, tuple(unnamed), ends, unit, power)


specs = st.dictionaries(names, mixtures(mixtures()), min_size=1, max_size=2).map(DatasetSpec)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(specs)
def test_written_and_read(spec):
    """What is written in the native format reads as the same: as a dictionary and as YAML text."""
    assert load_spec(spec.dump()) == spec
    assert load_spec(yaml.safe_load(spec.dumps())) == spec


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0), st.integers(0, 2**63)
)
def test_proportions(weights, seed):
    """For any weights and seed, 10 000 samples have the shares within one percent."""
    mix = EvenMix([itertools.repeat(n) for n in range(len(weights))], weights)
    with Flow([mix], Run(seed=seed)) as flow:
        counts = Counter(itertools.islice(iter(flow), 10_000))
    for number, weight in enumerate(weights):
        assert abs(counts[number] / 10_000 - weight / sum(weights)) < 0.01


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(names, values, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_json_trees(document, indent, ascii_only):
    """The JSON reader with places reads what the standard library reads."""
    import json

    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    problems = SpecProblems()
    assert parse_json(text, "x.json", problems).plain() == json.loads(text)
    assert not problems.found


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "version",
                "sources",
                "splits",
                "dataset",
                "datasets",
                "mix",
                "defaults",
                "include",
                "wids_version",
                "shardlist",
                "__class__",
                "prefix",
            ]
        ),
        values,
        max_size=4,
    )
)
@example({"version": None, "include": "\0"})
@example({"version": None, "include": "-"})
@example({"version": 1, "include": "\ud800"})
@example({"version": 1, "sources": [{"shards": "-"}, {"shards": "\0.tar"}]})
def test_nothing_but_our_errors(document):
    """Any document is read, or refused with an error of this library's that says where."""
    try:
        load_spec(document)
    except WebDatasetError as error:
        assert str(error)  # noqa: PT017  it may also be read
