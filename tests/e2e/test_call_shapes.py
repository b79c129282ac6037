"""How well-known trainings and tools call this library: each shape in our own words, run to its samples."""

import functools
import importlib
import io
import json
import multiprocessing
import random
import subprocess
import sys
import tarfile
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.testing import archives

PNG = pytest.importorskip("PIL.Image", reason="pictures")
PER_SHARD, SHARDS = 6, 4


def picture(value):
    """A PNG of one colour."""
    stream = io.BytesIO()
    PNG.fromarray(np.full((4, 6, 3), value, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def urls(tmp_path):
    """Four shards of six samples: picture, caption, class, json."""
    for shard in range(SHARDS):
        members = []
        for n in range(PER_SHARD):
            number = shard * PER_SHARD + n
            key = f"{number:06d}"
            fields = {"clip_score": 0.2 + number / 100, "original_width": 6, "key": key}
            members += [
                (f"{key}.png", picture(number)),
                (f"{key}.txt", f"caption {number}".encode()),
                (f"{key}.cls", str(number % 3).encode()),
                (f"{key}.json", json.dumps(fields).encode()),
            ]
        (tmp_path / f"train-{shard:03d}.tar").write_bytes(archives.by_hand(members))
    return f"{tmp_path}/train-{{000..003}}.tar"


def silently(function):
    """Run without torch's warnings about pinning without an accelerator and its like."""

    @functools.wraps(function)
    def run(*args, **kw):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            return function(*args, **kw)

    return run


# -- CLIP trainings (open_clip, open_flamingo, CLAP): a shard list, a shuffle and a grouper of their own, and a loader
#    with attributes


class EpochValue:
    """A number that workers see change."""

    def __init__(self, epoch=0):
        self.shared = multiprocessing.get_context("fork").Value("i", epoch)

    def set_value(self, epoch):
        self.shared.value = epoch

    def get_value(self):
        return self.shared.value


class OwnShuffle(wds.PipelineStage):
    """A shuffle that depends on a shared epoch, over the function behind ours."""

    def __init__(self, bufsize=1000, initial=100, seed=0, epoch=-1):
        self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

    def run(self, src):
        from webdataset.filters import _shuffle

        epoch = self.epoch.get_value() if isinstance(self.epoch, EpochValue) else self.epoch
        rng = random.Random(self.seed + epoch)
        return _shuffle(src, self.bufsize, self.initial, rng)


class OwnResampled(wds.ResampledShards):
    """A source that draws shards by weight."""

    def __init__(self, urls, weights=None, nshards=sys.maxsize, deterministic=False, epoch=-1):
        from webdataset.utils import pytorch_worker_seed

        super().__init__(urls, nshards=nshards, deterministic=deterministic)
        self.weights, self.epoch, self.worker_seed = weights, epoch, pytorch_worker_seed

    def __iter__(self):
        self.epoch += 1
        rng = random.Random(self.worker_seed() + self.epoch)
        for _ in range(self.nshards):
            yield {"url": rng.choices(self.urls, weights=self.weights)[0]}


def lenient_samples(src, handler=wds.warn_and_continue):
    """Group by key, as those trainings do: a repeated extension begins a new sample."""
    from webdataset.tariterators import base_plus_ext, tar_file_expander, url_opener, valid_sample

    current = None
    for entry in tar_file_expander(url_opener(src, handler=handler), handler=handler):
        name, payload = entry["fname"], entry["data"]
        prefix, suffix = base_plus_ext(name)
        if prefix is None:
            continue
        suffix = suffix.lower()
        if current is None or prefix != current["__key__"] or suffix in current:
            if valid_sample(current):
                yield current
            current = {"__key__": prefix, "__url__": entry["__url__"]}
        current[suffix] = payload
    if valid_sample(current):
        yield current


def has_caption(sample):
    """The filter of those trainings."""
    return "txt" in sample and any(extension in sample for extension in ("png", "jpg", "jpeg", "webp"))


def logged(error):
    """A handler of a caller."""
    return isinstance(error, Exception)


def to_pixels(image):
    """A transform of a caller."""
    return np.asarray(image).astype("float32") / 255


@silently
def test_a_clip_training(urls):
    """Two epochs of equal length under workers; what is set on the loader stays; the epoch changes the order."""
    pytest.importorskip("torch")
    shared = EpochValue(0)
    pipeline = [
        wds.SimpleShardList(urls),
        OwnShuffle(bufsize=2000, initial=500, seed=0, epoch=shared),
        wds.split_by_node,
        wds.split_by_worker,
        lenient_samples,
        wds.shuffle(bufsize=50, initial=10, rng=random.Random(0)),
        wds.select(has_caption),
        wds.decode("pilrgb", handler=logged),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
        wds.map_dict(image=to_pixels, text=str.upper, handler=logged),
        wds.to_tuple("image", "text"),
        wds.batched(4, partial=False),
    ]
    loader = wds.WebLoader(
        wds.DataPipeline(*pipeline),
        batch_size=None,
        shuffle=False,
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        prefetch_factor=2,
        worker_init_fn=None,
        multiprocessing_context="fork",
    )
    loader.num_batches, loader.num_samples = 6, 24
    for epoch in range(2):
        shared.set_value(epoch)
        batches = list(loader)
        assert len(batches) == 6
        for images, texts in batches:
            assert tuple(images.shape) == (4, 4, 6, 3)
            assert all(text.startswith("CAPTION ") for text in texts)
    assert (loader.num_batches, loader.num_samples) == (6, 24)


SCRIPT = """
import multiprocessing, random, sys
import webdataset as wds
from webdataset.filters import _shuffle


class SharedEpoch:
    def __init__(self, context):
        self.value = multiprocessing.get_context(context).Value("i", 0)


class OwnShuffle(wds.PipelineStage):
    def __init__(self, epoch):
        self.epoch = epoch

    def run(self, src):
        return _shuffle(src, 100, 10, random.Random(self.epoch.value.value))


if __name__ == "__main__":
    url, context = sys.argv[1:]
    shared = SharedEpoch(context)
    dataset = wds.DataPipeline(
        wds.SimpleShardList(url),
        OwnShuffle(shared),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.map(lambda sample: int(sample["__key__"])),
        wds.batched(3, collation_fn=None),
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context=context
    )
    orders = []
    for epoch in range(2):
        shared.value.value = epoch
        orders.append([number for batch in loader for number in batch])
        assert sorted(orders[-1]) == list(range(24)), orders
    assert orders[0] != orders[1]
    print("complete")
"""


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_training_whose_workers_are_started_afresh(urls, tmp_path, context):
    """A lambda, and a value in shared memory, travel in the pipeline; the workers see it change."""
    pytest.importorskip("torch")
    (tmp_path / "training.py").write_text(SCRIPT)
    shown = subprocess.run(
        [sys.executable, str(tmp_path / "training.py"), urls, context], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == "complete\n"


def test_a_source_of_ones_own_that_draws_by_weight(urls):
    """A list of shards drawn by weights, in the place of ours; an epoch counted in batches."""
    drawn = OwnResampled(urls, weights=[0, 1, 0, 0])
    pipeline = wds.DataPipeline(drawn, wds.tarfile_to_samples(), wds.to_tuple("cls"), wds.batched(6)).with_epoch(3)
    assert [len(batch[0]) for batch in pipeline] == [6, 6, 6]
    assert {sample["__url__"][-7:] for sample in islice(wds.DataPipeline(drawn, wds.tarfile_samples), 9)} == {"001.tar"}


def test_a_stage_list_with_none_and_extensions(urls):
    """Stages are gathered in a list, some of them None, and extended."""
    pipeline: list[Any] = [wds.SimpleShardList(urls)]
    pipeline.extend([wds.split_by_worker, wds.tarfile_to_samples(handler=logged)])
    pipeline.extend([wds.select(has_caption), wds.decode("pilrgb", handler=logged), wds.to_tuple("png", "txt")])
    assert len(list(wds.DataPipeline(*pipeline, None))) == PER_SHARD * SHARDS


@silently
def test_an_open_flamingo_training(urls):
    """Resampled or listed, json first, batches that are mapped behind, an epoch, and a loader of batches."""
    pytest.importorskip("torch")

    def from_json(sample):
        found = json.loads(sample[0])
        if found["clip_score"] < 0.25:
            raise ValueError("too unlike")
        return found["key"], found["clip_score"]

    dataset = wds.DataPipeline(
        wds.ResampledShards(urls),
        wds.tarfile_to_samples(handler=logged),
        wds.shuffle(bufsize=50, initial=10),
        wds.to_tuple("json", handler=logged),
        wds.map(from_json, handler=logged),
        wds.batched(2, partial=False),
        wds.map_tuple(list, None),
    ).with_epoch(5)
    loader = wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=2, persistent_workers=True)
    loader.num_batches = 10
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == loader.num_batches
        assert all(len(names) == 2 and float(scores.min()) >= 0.25 for names, scores in batches)


# -- diffusers' distillation and ControlNet scripts


def test_a_diffusion_training(urls, tmp_path):
    """One field serves two outputs; keep=False; ResampledShards and a shuffle of 690 with a handler."""

    def wanted(sample):
        fields = json.loads(sample["json"])
        return fields.get("original_width", 0) >= 6 and fields["clip_score"] >= 0.3

    pipeline = wds.DataPipeline(
        wds.ResampledShards(urls),
        lenient_samples,
        wds.select(wanted),
        wds.shuffle(690, handler=wds.warn_and_continue),
        wds.decode("pil", handler=wds.ignore_and_continue),
        wds.rename(
            image="jpg;png;jpeg;webp", control_image="jpg;png;jpeg;webp", text="text;txt;caption",
            orig_size="json", handler=wds.warn_and_continue,
        ),
        wds.map(lambda sample: {name: sample[name] for name in ("image", "control_image", "text", "orig_size")}),
        wds.map_dict(image=to_pixels, control_image=np.asarray, orig_size=lambda found: found["original_width"]),
        wds.to_tuple("image", "control_image", "text", "orig_size"),
        wds.batched(3, partial=False, collation_fn=wds.default_collation_fn),
    )  # fmt: skip
    images, controls, texts, widths = next(iter(pipeline))
    assert images.shape == controls.shape == (3, 4, 6, 3)
    assert images.dtype == np.float32
    assert len(texts) == 3
    assert list(widths) == [6, 6, 6]
    small = wds.rename(image="jpg;png", text="txt", keep=False, handler=wds.warn_and_continue)
    first = next(iter(wds.WebDataset(urls, shardshuffle=False).compose(small)))
    assert sorted(first) == ["image", "text"]


def test_a_dataset_resampled_and_cached(urls, tmp_path):
    """Every keyword that the fluent callers give, a splitter of theirs, and a shuffle that is given a handler."""
    dataset = (
        wds.WebDataset(
            urls,
            resampled=True,
            handler=wds.warn_and_continue,
            cache_dir=str(tmp_path),
            cache_size=10**10,
            nodesplitter=lambda src: src,
        )
        .shuffle(690, handler=wds.warn_and_continue)
        .decode("pilrgb", handler=wds.warn_and_continue)
        .to_tuple("png", "cls", handler=wds.warn_and_continue)
    )
    samples = list(islice(dataset, 10))
    assert {image.size for image, _ in samples} == {(6, 4)}


# -- CLIP benchmark and retrieval


@silently
def test_a_benchmark_over_a_url(urls, tmp_path):
    """A dataset by url, an image handler with extensions of its own, alternatives as lists, labels set on it."""
    handler = wds.autodecode.ImageHandler("pil", extensions=["webp", "png", "jpg", "jpeg"])
    (tmp_path / "cache").mkdir()
    dataset = (
        wds.WebDataset(urls, cache_dir=str(tmp_path / "cache"), nodesplitter=lambda src: src, shardshuffle=False)
        .decode(handler)
        .to_tuple(["webp", "png", "jpg", "jpeg"], "cls")
        .map_tuple(to_pixels, None)
    )
    dataset.classes, dataset.templates = ["a", "b", "c"], ["a photo of {c}"]
    assert (dataset.classes, dataset.templates) == (["a", "b", "c"], ["a photo of {c}"])
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(dataset.batched(8), batch_size=None, shuffle=False, num_workers=2)
    labels = [int(label) for _, batch in loader for label in batch]
    assert sorted(labels) == sorted(n % 3 for n in range(24))


def test_a_cache_directory_that_does_not_exist(urls, tmp_path):
    """It is made, where both versions raise; a file in its place is a ValueError."""
    folder = tmp_path / "nowhere" / "yet"
    assert len(list(wds.WebDataset(urls, cache_dir=str(folder), shardshuffle=False))) == 24
    assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot make the cache directory"):
        wds.WebDataset(urls, cache_dir=str(tmp_path / "file"))


def test_a_retrieval_tool_reads_keys_and_metadata(urls):
    """A handler and a mapping of whole samples, batched by torch's own loader."""
    data = pytest.importorskip("torch.utils.data")
    dataset = wds.WebDataset(urls, cache_dir=None, cache_size=10**10, handler=wds.handlers.warn_and_continue)
    chosen = dataset.select(lambda sample: "txt" in sample).map(
        lambda sample: {"text": sample["txt"].decode(), "key": sample["__key__"]},
        handler=wds.handlers.warn_and_continue,
    )
    loader = data.DataLoader(chosen, batch_size=5, num_workers=0)
    assert sum(len(batch["key"]) for batch in loader) == 24


# -- NeMo and lhotse


class Tokens:
    """An iterator that a stage returns."""

    def __init__(self, source):
        self.source = iter(source)

    def __iter__(self):
        return self

    def __next__(self):
        key, text = next(self.source)
        return key, text.decode().split()


def test_a_speech_training(urls, monkeypatch):
    """urls= by keyword, key from __key__, an iterator class as a stage, a patched opener, a list as first stage."""

    def opener(data, handler, **kw):
        for shard in data:
            yield {**shard, "stream": wds.gopen(shard["url"])}

    monkeypatch.setattr(wds.tariterators, "url_opener", opener)
    dataset = wds.DataPipeline(
        wds.SimpleShardList(urls=urls),
        wds.shuffle(2),
        wds.tarfile_to_samples(),
        wds.rename(text="txt", key="__key__"),
        wds.to_tuple("key", "text"),
        Tokens,
        wds.map(lambda pair: (int(pair[0]), pair[1][1])),
    )
    found = sorted(dataset)
    assert found == [(n, str(n)) for n in range(24)]


class Cuts(wds.DataPipeline):
    """A reader that is a pipeline, with things of its own."""

    def __init__(self, urls, shuffle=False, split=True):
        stages: list[Any] = [wds.SimpleShardList(urls=urls)]
        stages += [wds.split_by_node, wds.split_by_worker] if split else []
        stages.append(wds.tarfile_to_samples(wds.reraise_exception))
        super().__init__(*stages)
        self.shuffling = shuffle
        self.epoch_length = None

    def with_epoch_of(self, count):
        self.epoch_length = count
        return self.with_epoch(count)


def test_a_derived_pipeline_keeps_what_it_has(urls):
    """A subclass that sets attributes, chains on itself, and is read twice."""
    cuts = Cuts(wds.expand_urls(urls)).with_epoch_of(7)
    assert isinstance(cuts, Cuts)
    assert [len(list(cuts)) for _ in range(2)] == [7, 7]
    assert cuts.epoch_length == 7


# -- Cosmos, ml-4m, video2dataset: our internals as theirs


def test_a_client_that_reads_through_its_own_scheme(urls, monkeypatch):
    """The module is reached by every form of import; a scheme is put into its table; its info is written to."""
    import webdataset.gopen as opener_module

    module = importlib.import_module("webdataset.gopen")
    assert module is opener_module
    asked = []

    def from_store(url, mode="rb", bufsize=8192, **kw):
        asked.append(url)
        return Path(url.removeprefix("store://")).open("rb")

    monkeypatch.setitem(opener_module.gopen_schemes, "store", from_store)
    opener_module.info["endpoint"] = "here"
    assert opener_module.gopen_schemes.get("store") is from_store
    paths = ["store://" + path for path in wds.expand_urls(urls)]
    assert len(list(wds.WebDataset(paths, shardshuffle=False))) == 24
    assert asked == paths
    assert opener_module.info.pop("endpoint") == "here"
    with wds.gopen(paths[0][8:]) as first, opener_module.gopen(paths[0]) as second:
        assert first.read() == second.read()


def test_a_client_that_derives_from_the_fluent_classes(urls):
    """DataPipeline with FluidInterface, built of pieces from several compatibility modules."""
    from webdataset import cache, filters, shardlists
    from webdataset.compat import FluidInterface
    from webdataset.filters import pipelinefilter
    from webdataset.handlers import reraise_exception

    def _resized(data, size, handler=reraise_exception):
        for sample in data:
            yield {**sample, "size": size}

    resized = pipelinefilter(_resized)

    class Theirs(wds.DataPipeline, FluidInterface):
        def __init__(self, urls, shardshuffle=None, detshuffle=False, cache_dir=None, cache_size=-1):
            super().__init__()
            self.append(shardlists.SimpleShardList(urls))
            self.append(shardlists.single_node_only)
            self.append(shardlists.split_by_worker)
            if shardshuffle is not None:
                self.append(filters.detshuffle(shardshuffle) if detshuffle else filters.shuffle(shardshuffle))
            self.append(
                cache.cached_tarfile_to_samples(handler=reraise_exception, cache_size=cache_size, cache_dir=cache_dir)
            )

    dataset = Theirs(urls, shardshuffle=3, detshuffle=True)
    decoder = wds.autodecode.Decoder([wds.autodecode.imagehandler("rgb8"), wds.handle_extension("txt", bytes.decode)])
    found = list(dataset.map(decoder).compose(resized(256)).shuffle(5).to_tuple("png", "txt", "size").batched(6))
    assert len(found) == 4
    images, texts, sizes = found[0]
    assert images.shape == (6, 4, 6, 3)
    assert list(sizes) == [256] * 6


def test_a_client_with_a_compose_of_stages(urls):
    """filters.compose makes one stage of several; tarfile_samples stands in it uncalled."""
    stage = wds.filters.compose(wds.split_by_worker, wds.tarfile_samples)
    pipeline = wds.DataPipeline(wds.ResampledShards(wds.expand_urls(urls)), stage, wds.decode("rgb8"), wds.slice(5))
    assert [sample["png"].shape for sample in pipeline] == [(4, 6, 3)] * 5


def test_a_client_that_reads_one_tar(urls):
    """Readers of single files iterate members of one opened file, and take the first present field."""
    from webdataset.filters import getfirst
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    with wds.gopen(wds.expand_urls(urls)[0]) as stream:
        members = list(tar_file_iterator(stream))
    assert [sorted(member) for member in members[:1]] == [["data", "fname"]]
    samples = list(group_by_keys({**member, "__url__": "x"} for member in members))
    assert len(samples) == PER_SHARD
    assert getfirst(samples[0], "jpg;jpeg;png") == picture(0)


# -- writers


class Lent(io.BytesIO):
    """A file object of a store's, which is asked for its bytes when it is closed."""

    def close(self):
        self.kept = self.getvalue()
        super().close()


@pytest.mark.parametrize("kind", ["object", "fsspec", "pipe"])
def test_a_downloader_writes(tmp_path, kind):
    """img2dataset and video2dataset write into a file object, or through a command; json is a dict, a text or bytes."""
    path = tmp_path / "00000.tar"
    if kind == "fsspec":
        fsspec = pytest.importorskip("fsspec")
        target = fsspec.filesystem("file").open(str(path), "wb")
    else:
        target = {"object": lambda: Lent(), "pipe": lambda: f"pipe:cat > {path}"}[kind]()
    writer = wds.TarWriter(target)
    for n, value in enumerate([{"a": 1}, json.dumps({"a": 1}, indent=4), b'{"a": 1}']):
        writer.write({"__key__": f"{n:09d}", "jpg": b"bytes", "txt": str("caption"), "json": value})
    writer.close()
    if kind != "pipe":
        target.close()
    content = target.kept if kind == "object" else path.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert len(archive.getnames()) == 9
    path.write_bytes(content)
    found = [sample["json"] for sample in wds.WebDataset(str(path), shardshuffle=False).decode()]
    assert found[0] == found[2] == {"a": 1}
    assert found[1] == {"a": 1} or json.loads(found[1]) == {"a": 1}


def test_a_benchmark_writes_shards(tmp_path):
    """A pattern with limits, an encoder that is off, a mode; shards are turned by hand, and counted."""
    sink = wds.ShardWriter(
        f"{tmp_path}/%06d.tar", maxcount=3, maxsize=10**9, encoder=False, compress=False, mode=0o644, verbose=0
    )
    for n in range(4):
        sink.write({"__key__": f"s{n}", "cls": b"%d" % n, "npy": b"raw"})
    assert sink.shard == 2
    sink.next_stream()
    sink.write({"__key__": "last", "cls": b"9"})
    assert (sink.shard, sink.total) == (3, 5)
    sink.close()
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["000000.tar", "000001.tar", "000002.tar"]
    with tarfile.open(tmp_path / "000002.tar") as archive:
        assert [(member.name, member.mode) for member in archive] == [("last.cls", 0o644)]
    found = list(wds.WebDataset(f"{tmp_path}/{{000000..000002}}.tar", shardshuffle=False))
    assert [sample["__key__"] for sample in found] == ["s0", "s1", "s2", "s3", "last"]


# -- timm: a reader with stages that look at the worker


class SampleReader:
    """A dataset of torch's over a pipeline, with a share of the epoch for each worker."""

    def __init__(self, urls, training):
        self.urls, self.training = wds.shardlists.expand_urls(urls), training
        self.pipeline = None

    def _start(self):
        stages: list[Any] = [wds.SimpleShardList(self.urls)]
        if self.training:
            stages += [wds.detshuffle(bufsize=10, initial=5, seed=42), wds.split_by_worker]
        else:
            stages.append(wds.split_by_worker)
        stages.append(wds.tarfile_to_samples(handler=wds.handlers.reraise_exception))
        if self.training:
            stages.append(wds.shuffle(bufsize=16, initial=8, rng=random.Random(42)))
        self.pipeline = wds.DataPipeline(
            *stages, wds.map(functools.partial(dict, seen=True)), wds.rename(image="png", target="cls")
        )

    def __iter__(self):
        if self.pipeline is None:
            self._start()
        for sample in self.pipeline:
            yield sample["image"], int(sample["target"])


@silently
@pytest.mark.parametrize("training", [True, False])
def test_an_image_training(urls, training):
    """The pipeline is made in the worker, and all samples come once."""
    data = pytest.importorskip("torch.utils.data")

    class Wrapped(data.IterableDataset):
        def __init__(self, reader):
            self.reader = reader

        def __iter__(self):
            yield from self.reader

    loader = data.DataLoader(Wrapped(SampleReader(urls, training)), batch_size=None, num_workers=2)
    for _ in range(2):
        assert sorted(target for _, target in loader) == sorted(n % 3 for n in range(24))
