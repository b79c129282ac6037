"""Datasets that a specification describes, read from real shards."""

import json
from collections import Counter
from itertools import islice

import pytest

import webdataset as wds
from webdataset.core.errors import MissingField, NoSamples, NoShards, SpecError, UnsafeSpec, UsageError
from webdataset.core.seeds import hash_seed

SIZES = {"a": (4, 25), "b": (2, 30), "c": (1, 20)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of three datasets: a with 4 x 25 samples, b with 2 x 30, c with 1 x 20."""
    folder = tmp_path_factory.mktemp("shards")
    for name, (shards, samples) in SIZES.items():
        for number in range(shards):
            with wds.TarWriter(str(folder / f"{name}-{number}.tar")) as sink:
                for index in range(samples):
                    sink.write({"__key__": f"{name}{number}-{index}", "txt": name, "cls": index})
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def expression(name):
    """Return the shards of one dataset."""
    return f"{name}-{{0..{SIZES[name][0] - 1}}}.tar"


def keys(dataset):
    """Return the keys that a dataset gives."""
    return [sample["__key__"] for sample in dataset]


EVERY = {f"{name}{n}-{i}" for name, (shards, samples) in SIZES.items() for n in range(shards) for i in range(samples)}


def spec(sources=None, **mix):
    """Return a specification of all three, or of some sources."""
    return {"version": 1, **mix, "sources": sources or [expression(name) for name in SIZES]}


@pytest.mark.parametrize("how", ["exhaust", "roundrobin", "concat", "shards"])
def test_every_sample_once(how):
    """Mixes that end give every sample of every source once in each epoch."""
    dataset = wds.WebDataset(spec(mix=how), seed=3)
    first, second = keys(dataset), keys(dataset)
    assert sorted(first) == sorted(second) == sorted(EVERY)
    assert (first == second) == (how in ("roundrobin", "concat"))
    if how == "concat":
        assert first == [
            f"{name}{n}-{i}" for name, (shards, count) in SIZES.items() for n in range(shards) for i in range(count)
        ]
    if how == "roundrobin":
        assert first[:6] == ["a0-0", "b0-0", "c0-0", "a0-1", "b0-1", "c0-1"]


def test_ends():
    """An interleaving goes on for ever, ends with its first source, or with its last."""
    weights = [{"shards": expression("a"), "weight": 1}, {"shards": expression("c"), "weight": 3}]
    assert len(keys(islice(wds.WebDataset(spec(weights)), 1000))) == 1000
    assert Counter(key[0] for key in keys(wds.WebDataset(spec(weights, exhausted="drop")))) == {"a": 100, "c": 20}
    stopped = Counter(key[0] for key in keys(wds.WebDataset(spec(weights, exhausted="stop"))))
    assert stopped["c"] == 20
    assert 5 <= stopped["a"] <= 8


@pytest.mark.parametrize("weights", [(1, 1, 1), (8, 1, 1), (0.5, 0.3, 0.2), (100, 1, 9)])
def test_proportions(weights):
    """Over 10 000 samples each source has its share within one percent, and so it is in every thousand."""
    sources = [{"name": n, "shards": expression(n), "weight": w} for n, w in zip(SIZES, weights, strict=True)]
    found = [sample["__source__"] for sample in wds.WebDataset(spec(sources), seed=1).with_epoch(10_000)]
    for name, weight in zip(SIZES, weights, strict=True):
        share = weight / sum(weights)
        assert abs(found.count(name) / 10_000 - share) < 0.01
        for start in range(0, 10_000, 1000):
            assert abs(found[start : start + 1000].count(name) / 1000 - share) < 0.01


def test_nested_proportions():
    """A nested mix has the share of its source, and shares it out; names say the way."""
    nested = {
        "name": "n",
        "weight": 1,
        "spec": {
            "sources": [
                {"name": "b", "shards": expression("b"), "weight": 3},
                {"name": "c", "shards": expression("c"), "weight": 1},
            ]
        },
    }
    document = spec([{"name": "a", "shards": expression("a"), "weight": 1}, nested])
    found = Counter(sample["__source__"] for sample in wds.WebDataset(document).with_epoch(8000))
    assert set(found) == {"a", "n/b", "n/c"}
    planned = {line.name: line.samples for line in wds.load_spec(document).plan(samples=8000)}
    assert all(abs(found[name] - planned[name]) < 20 for name in planned)


def test_the_seed_decides():
    """A seed gives the same samples in the same order; another seed and another epoch give others."""

    def run(seed):
        sources = [
            {"shards": expression(name), "shardshuffle": True, "shuffle": 20, "subsample": 0.5} for name in SIZES
        ]
        return [
            keys(dataset) for dataset in [wds.WebDataset(spec(sources, mix="exhaust"), seed=seed)] for _ in range(2)
        ]

    first, second = run(7)
    assert run(7) == [first, second]
    assert first != second
    assert run(8)[0] != first


def test_the_seed_alone_decides():
    """The order is a function of the seed: not of PYTHONHASHSEED, nor of the version of Python (a pinned digest)."""
    sources = [{"name": n, "shards": expression(n), "weight": 1, "shuffle": 9, "shardshuffle": True} for n in SIZES]
    found = keys(wds.WebDataset(spec(sources), seed=42).with_epoch(300))
    assert hash_seed(*found) == PINNED


PINNED = 12589097687571086116


STAGES = [
    lambda dataset: dataset,
    lambda dataset: dataset.shuffle(30).batched(4),
]


@pytest.mark.parametrize("how", ["interleave", "exhaust", "roundrobin", "concat", "shards"])
@pytest.mark.parametrize("then", STAGES)
def test_snapshots(how, then):
    """A restored run goes on as the uninterrupted one would have, nested mixes and shuffles included."""
    sources = [expression("a"), expression("c")]
    if how != "shards":
        sources = [
            {"shards": expression("a"), "shuffle": 12, "shardshuffle": True, "subsample": 0.6, "tags": {"x": 1}},
            {
                "spec": {"mix": "roundrobin", "sources": [expression("b"), {"shards": "c-0.tar", "repeat": 2}]},
                "repeat": 2,
            },
        ]

    def made():
        return then(wds.WebDataset(spec(sources, mix=how), seed=5)).with_epoch(60)

    whole = [sample["__key__"] for sample in made().start()]
    assert len(whole) == 60
    for given in (0, 1, 17, 44, 59):
        run = made().start()
        first = [next(run)["__key__"] for _ in range(given)]
        state = json.loads(json.dumps(run.snapshot()))
        run.close()
        assert first + [sample["__key__"] for sample in made().start(state)] == whole


def test_labels_and_tags():
    """Samples say their source; tags of a source and of the mixes around it are copied into each; others have none."""
    nested = {
        "name": "n",
        "tags": {"lang": "de", "web": True},
        "spec": {"mix": "concat", "sources": [{"name": "c", "shards": "c-0.tar", "tags": {"lang": "en"}}]},
    }
    samples = list(wds.WebDataset(spec([nested, {"name": "b", "shards": "b-0.tar"}], mix="concat")))
    assert {sample["__source__"] for sample in samples} == {"n/c", "b"}
    assert samples[0]["__tags__"] == {"lang": "en", "web": True}
    assert samples[0]["__tags__"] is not samples[1]["__tags__"]
    assert samples[-1]["__tags__"] == {}
    assert "__tags__" not in next(iter(wds.WebDataset(spec())))


def test_fields():
    """Fields are renamed, kept, chosen, decoded and transformed, in this order."""

    def first(**more):
        return next(iter(wds.WebDataset(spec([{"name": "s", "shards": "c-0.tar", **more}]))))

    def fields(sample):
        return {name: value for name, value in sample.items() if name[:2] != "__"}

    assert fields(first()) == {"txt": b"c", "cls": b"0"}
    assert fields(first(decode="pil")) == {"txt": "c", "cls": 0}
    assert fields(first(rename={"text": "txt"}, keep="text")) == {"text": b"c"}
    assert fields(first(extensions=["seg.png", "cls"])) == {"cls": b"0"}
    assert first(decode="pil", transforms=[{"to_tuple": ["txt", "cls"]}]) == ("c", 0)
    assert fields(first(transforms=[{"rename": {"text": "txt"}}, {"slice": [1, 2]}])) == {"cls": b"1", "text": b"c"}
    packed = first(transforms=[lambda sample: {**sample, "input_ids": [7, 8]}, {"pack": {"max_tokens": 4}}])
    assert packed["segment_ids"].tolist() == [1, 1, 2, 2]
    with pytest.raises(MissingField, match="'jpg' or 'png'"):
        first(extensions=["jpg", "png"])


def test_functions(tmp_path, monkeypatch):
    """Under full trust a specification names functions; a dictionary may hold them; packages offer stages by name."""
    (tmp_path / "my_transforms.py").write_text(
        "def upper(sample, field='txt'):\n    return {**sample, 'up': field.upper()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for step, expected in (("my_transforms:upper", "TXT"), ({"my_transforms:upper": {"field": "x"}}, "X")):
        document = spec([{"shards": "c-0.tar", "transforms": [step]}])
        assert next(iter(wds.WebDataset(document, trust="full")))["up"] == expected
    document = spec([{"shards": "c-0.tar", "transforms": [lambda sample: {"n": 1}]}])
    assert next(iter(wds.WebDataset(document)))["n"] == 1
    for step, message in (
        ("my_transforms:none", "no attribute 'none'"),
        ("no_such_module:f", "No module"),
        ({"my_transforms:upper": [1]}, "mapping from name to value"),
        ("my_transforms:__name__", "no function"),
        ("scail", "did you mean 'scale'"),
        ({"scale": 3}, "scale"),
        ({"slice": "x"}, "slice"),
        ({"patches": {"sise": 3}}, "sise"),
    ):
        with pytest.raises(SpecError, match=message):
            wds.WebDataset(spec([{"shards": "c-0.tar", "transforms": [step]}]), trust="full")


def test_stages_of_installed_packages(tmp_path, monkeypatch):
    """A package offers stages under its own names, by entry points."""
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[webdataset.stages]\nonly = plug_stages:only\n")
    (tmp_path / "plug_stages.py").write_text(
        "import webdataset as wds\n\n"
        "def only(key):\n    return wds.select(lambda sample: sample['__key__'].endswith(key))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    document = spec([{"shards": expression("a"), "transforms": [{"only": "-7"}]}], mix="concat")
    assert keys(wds.WebDataset(document)) == ["a0-7", "a1-7", "a2-7", "a3-7"]
    with pytest.raises(SpecError, match="no transform of this name"):
        wds.WebDataset(
            wds.load_spec(spec([{"shards": "https://h/x", "transforms": [{"only": "-7"}]}]), url="https://h/y")
        )


def test_passes():
    """Shards repeated, in part, chosen, and drawn with replacement."""

    def count(**more):
        return Counter(
            key[:2] for key in keys(wds.WebDataset(spec([{"shards": expression("a"), **more}], mix="concat"), seed=2))
        )

    assert count(repeat=3) == {f"a{n}": 75 for n in range(4)}
    assert sorted(count(repeat=1.5).values()) == [25, 25, 50, 50]
    assert sorted(count(choose=3).values()) == [25, 25, 25]
    assert sorted(count(choose=2, repeat=2, subset=["0%", "50%"]).values()) == [50, 50]
    assert sum(count(resample=10).values()) == 250
    assert 20 < sum(count(subsample=0.5).values()) < 80
    assert count(subset=[0.5, 1]) == {"a2": 25, "a3": 25}
    for more, message in (({"choose": 5}, "'choose' is 5"), ({"repeat": 0.1}, "subsample: 0.1")):
        with pytest.raises(UsageError, match=message):
            count(**more)
    with pytest.raises(NoShards, match="has no shards"):
        count(subset=[0.1, 0.11])


def test_choices_differ_from_epoch_to_epoch():
    """What is chosen is chosen anew in each epoch, and equal for equal seeds."""

    def epochs():
        dataset = wds.WebDataset(spec([{"shards": expression("a"), "choose": 2}], mix="concat"), seed=2)
        return [keys(dataset)[::25] for _ in range(6)]

    assert epochs() == epochs()
    assert len({tuple(each) for each in epochs()}) > 1


@pytest.mark.parametrize("how", ["exhaust", "shards", "roundrobin"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 3), (3, 1), (4, 4)])
def test_sharing(how, ranks, workers, monkeypatch):
    """Every sample goes to exactly one worker of one rank, also where there are few shards."""
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            for name, value in zip(
                ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"), (rank, ranks, worker, workers), strict=True
            ):
                monkeypatch.setenv(name, str(value))
            sources = [{"shards": expression(name)} for name in SIZES]
            dataset = wds.WebDataset(spec(sources, mix=how), seed=1, nodesplitter=wds.split_by_node, empty_check=False)
            found.append(keys(dataset))
    assert sorted(key for part in found for key in part) == sorted(EVERY)


def test_sharing_with_shuffled_and_chosen_shards(monkeypatch):
    """Workers draw alike before shards are shared out: a choice is one choice, not one in each worker."""
    found = []
    for worker in range(3):
        monkeypatch.setenv("WORKER", str(worker))
        monkeypatch.setenv("NUM_WORKERS", "3")
        sources = [{"shards": expression("a"), "choose": 3, "shardshuffle": True}]
        found.append({key[:2] for key in keys(wds.WebDataset(spec(sources, mix="concat"), seed=9))})
    assert [len(part) for part in found] == [1, 1, 1]
    assert len(set().union(*found)) == 3


def test_splitters(monkeypatch):
    """Several ranks need a node splitter, as ever; one of the caller's own is used as it is."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="nodesplitter=wds.split_by_node"):
        keys(wds.WebDataset(spec(mix="concat")))
    assert len(keys(wds.WebDataset(spec(mix="concat"), nodesplitter=None))) == 180
    last = wds.WebDataset(spec([expression("a")], mix="concat"), nodesplitter=lambda shards: islice(shards, 3, None))
    assert {key[:2] for key in keys(last)} == {"a3"}


def test_arguments_of_the_dataset():
    """Handler, selection, shard shuffle, resampling, repetition and cache hold for every source."""
    missing = spec(["none.tar", "c-0.tar"], mix="concat")
    with pytest.raises(FileNotFoundError):
        keys(wds.WebDataset(missing))
    with pytest.raises(NoSamples):
        keys(wds.WebDataset(missing, handler=wds.ignore_and_continue))
    assert len(keys(wds.WebDataset(missing, handler=wds.ignore_and_continue, empty_check=False))) == 20
    one = wds.WebDataset(spec(mix="concat"), select_files=lambda name: name.endswith(".cls"))
    assert "txt" not in next(iter(one))
    orders = {
        tuple(keys(wds.WebDataset(spec([expression("a")], mix="concat"), shardshuffle=9, seed=n))[::25])
        for n in range(9)
    }
    assert len(orders) > 3
    assert len(keys(wds.WebDataset(spec(mix="concat"), repeat=2))) == 360
    drawn = keys(wds.WebDataset(spec(), resampled=True, seed=1).with_epoch(300))
    assert all(98 <= sum(key[0] == name for key in drawn) <= 102 for name in SIZES)
    with pytest.raises(UsageError, match="directory of shards"):
        wds.WebDataset(spec(), mode="unlink")
    with pytest.raises(UsageError, match="is a part of a dataset specification"):
        wds.WebDataset("c-0.tar", split="train")


def test_splits_and_files(folder, tmp_path):
    """A file, a Path, a dictionary, or what load_spec returned; with a split; as wds.from_spec or wds.WebDataset."""
    path = tmp_path / "s.yaml"
    document = {
        "version": 1,
        "splits": {
            "train": {"mix": "concat", "sources": [f"{folder}/a-0.tar"]},
            "val": {"mix": "concat", "sources": [f"{folder}/c-0.tar"]},
        },
    }
    path.write_text(json.dumps(document))
    (tmp_path / "s.json").write_text(json.dumps(document))
    loaded = wds.load_spec(path)
    for each in (path, str(path), tmp_path / "s.json", document, loaded):
        assert len(keys(wds.WebDataset(each))) == 25
        assert len(keys(wds.WebDataset(each, split="val"))) == 20
        assert len(keys(wds.from_spec(each, "val", shardshuffle=True))) == 20
    with pytest.raises(UsageError, match="no split 'test'"):
        wds.WebDataset(path, split="test")


def test_indexes(folder, tmp_path):
    """A wids index is a dataset: its shards in order, or mixed where its datasets have weights."""

    def index(name):
        return {
            "name": name,
            "shardlist": [
                {"url": f"{folder}/{name}-{n}.tar", "nsamples": SIZES[name][1]} for n in range(SIZES[name][0])
            ],
        }

    (tmp_path / "a.json").write_text(json.dumps({"wids_version": 1, **index("a")}))
    assert keys(wds.WebDataset(str(tmp_path / "a.json"))) == [f"a{n}-{i}" for n in range(4) for i in range(25)]
    assert len(keys(wds.WebDataset(str(tmp_path / "a.json"), resampled=True).with_epoch(150))) == 150
    mixed = {"wids_version": 1, "datasets": [{**index("a"), "weight": 1}, {**index("c"), "weight": 3}]}
    (tmp_path / "mixed.json").write_text(json.dumps(mixed))
    found = Counter(sample["__source__"] for sample in wds.WebDataset(tmp_path / "mixed.json").with_epoch(400))
    assert {name: round(count, -1) for name, count in found.items()} == {"a": 100, "c": 300}
    (tmp_path / "files.json").write_text('{"files": {"a.txt": {"offset": 512, "size": 3}}}')
    with pytest.raises(SpecError, match=r"files\.json:1:1: not a dataset specification: .*'wids_version'"):
        wds.WebDataset(str(tmp_path / "files.json"))


def test_multi_shard_samples_stay_what_they_were(folder, tmp_path):
    """A file for MultiShardSample is read by it; through load_spec it is a mix that reads the same shards."""
    path = tmp_path / "m.yaml"
    path.write_text(
        f"prefix: {folder}/\ndatasets: [{{shards: '{expression('a')}', choose: 2}}, {{shards: c-0.tar, resample: 3}}]\n"
    )
    dataset = wds.WebDataset(str(path))
    assert isinstance(dataset.pipeline[0], wds.MultiShardSample)
    for each in (dataset, wds.from_spec(path)):
        counts = Counter(key[0] for key in keys(each))
        assert counts == {"a": 50, "c": 60}


def test_network(folder):
    """A specification served over HTTP names shards beside it."""
    from webdataset.testing.sources import served

    pages = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir() if path.suffix == ".tar"}
    pages["/d/s.yaml"] = b"version: 1\nmix: concat\nsources: ['a-{0..1}.tar', {spec: inner.yaml}]\n"
    pages["/d/inner.yaml"] = b"dataset: [c-0.tar]\n"
    pages["/d/m.yaml"] = b"datasets: [{shards: 'http://HERE/d/c-0.tar'}]\n"
    with served(pages) as root:
        pages["/d/m.yaml"] = pages["/d/m.yaml"].replace(b"http://HERE", root.encode())
        assert len(keys(wds.WebDataset(f"{root}/d/s.yaml"))) == 70
        assert len(keys(wds.WebDataset(f"{root}/d/m.yaml"))) == 20


def test_travel():
    """A dataset of a specification can be sent to a worker."""
    import pickle

    sources = [{"shards": expression("a"), "transforms": ["gray"], "tags": {"x": 1}}, {"spec": spec(mix="concat")}]
    dataset = wds.WebDataset(spec(sources), seed=1)
    assert len(pickle.loads(pickle.dumps(dataset)).pipeline) == len(dataset.pipeline)
    plain = wds.WebDataset(spec(mix="exhaust"), seed=1)
    assert keys(pickle.loads(pickle.dumps(plain))) == keys(plain)


@pytest.mark.torch
def test_loader():
    """Under a DataLoader every sample of an epoch comes once."""
    pytest.importorskip("torch")
    dataset = wds.WebDataset(spec(mix="exhaust"), seed=1).to_tuple("__key__").map(lambda sample: sample[0])
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(loader) == sorted(EVERY)


@pytest.mark.parametrize("deterministic", [False, True])
def test_sharing_by_samples_with_a_shard_shuffle(deterministic, monkeypatch):
    """More workers than shards, and the dataset's own shuffle of shards: still every sample comes once."""
    described = spec([expression("a")], mix="concat")
    found = []
    for worker in range(9):
        monkeypatch.setenv("WORKER", str(worker))
        monkeypatch.setenv("NUM_WORKERS", "9")
        found += keys(wds.WebDataset(described, shardshuffle=True, detshuffle=deterministic, seed=5))
    assert sorted(found) == sorted(key for key in EVERY if key[0] == "a")


def test_a_small_part_of_a_small_source_comes_again():
    """A source that by chance gives nothing in a pass keeps its share; one that never gives is an error."""
    with wds.TarWriter("few-0.tar") as sink:
        sink.write({"__key__": "few", "txt": "few"})
    sources = [{"shards": "few-0.tar", "subsample": 0.3}, {"shards": expression("a")}]
    for seed in range(5):
        found = keys(wds.WebDataset(spec(sources), seed=seed).with_epoch(200))
        assert abs(found.count("few") - 100) <= 5
    sources[0]["subsample"] = 1e-9
    with pytest.raises(NoSamples, match="a larger subsample"):
        keys(wds.WebDataset(spec(sources), seed=1).with_epoch(200))


@pytest.mark.parametrize("how", [{"repeat": 2}, {"resample": 8}, {"spec": {"sources": ["one.tar"]}}])
def test_what_comes_twice_in_an_epoch_is_changed_anew(how):
    """A transform draws anew for each time that a sample comes."""
    image = pytest.importorskip("PIL.Image")
    with wds.TarWriter("one.tar") as sink:
        sink.write({"__key__": "k", "png": image.linear_gradient("L")})
    source = {"shards": "one.tar", **how} if "spec" not in how else how
    described = spec([{**source, "decode": "pil", "transforms": [{"scale": [0.1, 1]}]}], mix="concat")
    ends = {"mix": "interleave"} if "spec" in how else {}
    found = [sample["png"].size for sample in wds.WebDataset({**described, **ends}, seed=2).with_epoch(2)]
    assert len(set(found)) == 2
    assert found == [sample["png"].size for sample in wds.WebDataset({**described, **ends}, seed=2).with_epoch(2)]


def test_an_index_within_a_json_file(tmp_path):
    """A JSON specification may hold a shard index."""
    index = {"wids_version": 1, "shardlist": [{"url": f"a-{n}.tar", "nsamples": 25} for n in range(2)]}
    with open("holding.json", "w") as stream:
        json.dump(spec([{"spec": index}], mix="concat"), stream)
    assert len(keys(wds.WebDataset("holding.json"))) == 50


def test_a_command_is_no_specification():
    """What a command prints is shards, whatever its last word ends in."""
    assert len(keys(wds.WebDataset("pipe:cat a-0.tar # options.json"))) == 25


def test_tokens_are_not_shown_to_servers_that_a_foreign_specification_names():
    """A specification from the network sends no header of the user to another server than its own."""
    spec = wds.load_spec(
        {"version": 1, "sources": ["https://own.invalid/a.tar", {"shards": "https://other.invalid/b.tar"}]},
        url="https://own.invalid/mix.yaml",
    )
    for options in ({"token": "secret"}, {"headers": {"X-Key": "secret"}}):
        with pytest.raises(UnsafeSpec, match="names another server") as caught:
            wds.WebDataset(spec, storage_options=options)
        assert caught.value.url == "https://other.invalid/b.tar"
    wds.WebDataset(spec)
    wds.WebDataset(spec, storage_options={"verify": False})


def test_logins_and_other_packages_are_not_for_foreign_specifications():
    """No machine is logged in to on behalf of a specification from the network, other than its own."""
    for url in ("ssh://host/a.tar", "memory://name/a.tar", "hdfs://host/a.tar"):
        with pytest.raises(UnsafeSpec):
            wds.load_spec({"version": 1, "sources": [url]}, url="https://own.invalid/mix.yaml")
    beside = wds.load_spec({"version": 1, "sources": ["a.tar"]}, url="ssh://host/folder/mix.yaml")
    assert beside.split().sources[0].urls() == ["ssh://host/folder/a.tar"]
    with pytest.raises(UnsafeSpec):
        wds.load_spec({"version": 1, "sources": ["ssh://elsewhere/a.tar"]}, url="ssh://host/folder/mix.yaml")
