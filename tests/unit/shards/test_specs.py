"""Mixtures of datasets described in YAML."""

import pickle

import pytest

from webdataset.core.errors import NotFound, UsageError
from webdataset.shards.lists import SimpleShardList
from webdataset.shards.specs import MultiShardSample, shardspec
from webdataset.stages.base import Run


def sample(spec, seed=0):
    """Return the urls of one pass."""
    shards = MultiShardSample(spec)
    shards.set_epoch(seed)
    return [shard["url"] for shard in shards]


def test_a_file(tmp_path, monkeypatch):
    """The documented form: prefix, one bucket, braces, ~ and $NAME, choose and resample."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SETS", "/sets")
    (tmp_path / "mix.yaml").write_text(
        "prefix: 'p:'\n"
        "datasets:\n"
        "- {name: one, shards: 'a{0..3}.tar', choose: 2}\n"
        "- {name: two, shards: ['b{0..1}', '~/c', '$SETS/d'], buckets: [$SETS/x]}\n"
        "- {name: three, shards: e, resample: 3, buckets: gs://k}\n"
    )
    urls = sample(str(tmp_path / "mix.yaml"))
    others = sorted(url for url in urls if not url.startswith("p:a"))
    assert others == ["p:/home/me/c", "p:/sets/d", "p:/sets/x/b0", "p:/sets/x/b1", *["p:gs://k/e"] * 3]
    assert sum(url.startswith("p:a") for url in urls) == 2
    assert isinstance(shardspec(tmp_path / "mix.yaml"), MultiShardSample)


def test_pinned_draws():
    """After set_epoch, the draws of both published versions."""
    shards = "a{0..9}"
    assert sample({"datasets": [{"shards": shards, "resample": 5}]}, 7) == ["a1", "a0", "a5", "a3", "a6"]
    assert sample({"datasets": [{"shards": shards, "choose": 5}]}, 7) == ["a4", "a1", "a8", "a3", "a7"]
    assert sample({"datasets": [{"shards": shards}]}, 7) == [f"a{n}" for n in "8314709625"]


def test_passes_go_on_after_set_epoch():
    """The second pass after set_epoch has another order, and set_epoch repeats the first."""
    shards = MultiShardSample({"datasets": [{"shards": "a{0..9}"}]})
    shards.set_epoch(3)
    assert shards.get_shards_for_epoch() == [f"a{n}" for n in "1560947283"]
    assert [shard["url"] for shard in shards] == [f"a{n}" for n in "2068951347"]
    shards.set_epoch(3)
    assert shards.get_shards_for_epoch()[0] == "a1"


def test_without_epoch_every_pass_differs():
    """Unseeded passes draw from entropy, and copies in workers do not repeat each other."""
    shards = MultiShardSample({"datasets": [{"shards": "a{0..99}"}]})
    copy = pickle.loads(pickle.dumps(shards))
    assert len({tuple(each.get_shards_for_epoch()) for each in (shards, shards, copy)}) == 3


def test_in_a_run():
    """In a pipeline's run the draws follow its seed and epoch; shared by workers where a split follows."""
    shards = MultiShardSample({"datasets": [{"shards": "a{0..99}", "choose": 50}]})
    run = Run(seed=1, epoch=2, shared=True)
    first = list(shards.draw_shards(run))
    assert first == list(shards.draw_shards(run))
    assert first != list(shards.draw_shards(Run(seed=1, epoch=3, shared=True)))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "datasets"),
        ({"datasets": 3}, "datasets"),
        ({"datasets": [], "extra": 1}, "extra"),
        ({"datasets": [{"name": "x"}]}, "shards"),
        ({"datasets": [{"shards": "a", "perepoch": 1}]}, "perepoch"),
        ({"datasets": [{"shards": "a", "choose": 1, "resample": 1}]}, "not both"),
        ({"datasets": [{"shards": "a", "choose": 2}]}, "only 1"),
        ({"datasets": [{"shards": "a", "choose": "2"}]}, "number"),
        ({"datasets": [{"shards": "a", "buckets": ["x", "y"]}]}, "exactly one"),
    ],
)
def test_specifications_that_make_no_sense(spec, reason):
    """Each mistake is named."""
    with pytest.raises(UsageError, match=reason):
        MultiShardSample(spec)


def test_files_that_are_no_specification(tmp_path):
    """A missing file is NotFound; bad YAML and tags that would run code are refused."""
    with pytest.raises(NotFound):
        MultiShardSample(str(tmp_path / "none.yaml"))
    for text in ("a: [", "datasets: !!python/object/apply:os.system ['touch owned']"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(UsageError):
            MultiShardSample(tmp_path / "bad.yaml")


def test_shardspec_of_urls():
    """Anything else is a plain list."""
    assert isinstance(shardspec("a{0..1}"), SimpleShardList)
