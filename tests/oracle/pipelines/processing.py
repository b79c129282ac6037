"""Pipelines that decode, choose, rename, shuffle, batch and mix. ``kit`` says what the names mean."""

import io
import random
from functools import partial

import kit
import numpy as np
from kit import attempt, dataset, drawn, keys, pipeline, scratch, shown, taken, train

import webdataset as wds

FIELDS = "txt cls json seg.png npy"


@pipeline
def decoded_plainly():
    """Every basic kind of field."""
    return dataset().decode()


@pipeline
def decoded_by_each_image_spec():
    """Every image specification without torch."""
    specs = ("l8", "rgb8", "rgba8", "l", "rgb", "rgba", "pill", "pil", "pilrgb", "pilrgba")
    return {spec: attempt(lambda: list(dataset("train-000").decode(spec).to_tuple("seg.png jpg"))) for spec in specs}


@pipeline
def decoded_by_an_unknown_spec():
    """A specification that there is not."""
    return dataset().decode("rgb9")


@pipeline
def decoded_fields_of_every_extension():
    """A shard with one field for every extension that has a decoder, each for itself: one error hides no other."""
    sample = next(iter(dataset("extensions")))
    return {
        field: attempt(lambda: list(dataset("extensions").decode("rgb8", only=[field]).to_tuple(field)))
        for field in sample
    }


@pipeline
def decoded_gz_fields():
    """Compressed fields are decompressed, then decoded."""
    return dataset("gzipped").decode("rgb8")


@pipeline
def decoded_only_some():
    """only= as a list and as a string."""
    one = dataset().decode("rgb8", only=["txt", "cls"]).to_tuple(FIELDS)
    return {"list": shown(list(one)), "text": shown(list(dataset().decode(only="txt json").to_tuple(FIELDS)))}


@pipeline
def decoded_after_decoding():
    """partial= passes what is decoded already."""
    return dataset().decode(only=["cls"]).decode(partial=True).to_tuple("txt cls")


@pipeline
def decoded_after_decoding_without_partial():
    """Without it, that is an error."""
    return dataset().decode(only=["cls"]).decode().to_tuple("txt cls")


@pipeline
def decoded_by_functions():
    """Handlers of one's own, in order, before the basic ones."""

    def upper(key, data):
        return data.upper() if key == ".txt" else None

    def never(key, data):
        return b"never" if key == ".txt" else None

    return dataset().decode(upper, never, wds.imagehandler("l8")).to_tuple(FIELDS)


@pipeline
def decoded_with_pre_and_post():
    """pre= and post= replace the handlers before and behind."""

    def first(key, data):
        return wds.Continue(".cls", data) if key == ".txt" else None

    def last(key, data):
        return ("last", key, data)

    return dataset("numbers").decode(pre=[first], post=[wds.autodecode.basichandlers, last])


@pipeline
def decoded_by_extension():
    """handle_extension for several extensions, and for one of two parts."""
    return (
        dataset()
        .decode(
            wds.handle_extension("cls json", lambda data: len(data)),
            wds.handle_extension("seg.png", lambda data: data[:4]),
        )
        .to_tuple(FIELDS)
    )


@pipeline
def decoded_with_an_error():
    """A field that cannot be decoded."""
    return dataset("broken-field").decode()


@pipeline
def decoded_past_an_error():
    """A handler passes over the sample."""
    return dataset("broken-field").decode(handler=wds.warn_and_continue)


@pipeline
def decoded_up_to_an_error():
    """A handler stops at the sample."""
    return dataset("broken-field").decode(handler=wds.ignore_and_stop)


@pipeline
def decoded_null():
    """JSON null."""
    return dataset("nulls").decode()


@pipeline
def decoded_pickles():
    """Pickles of plain values."""
    return dataset("pickles").decode()


@pipeline
def decoded_by_xdecode():
    """Rules of xdecode as patterns and keywords."""
    return dataset("xdecode").compose(
        wds.xdecode(
            ("*.seg.png", lambda stream: len(stream.read())), cls=lambda stream: int(stream.read()), must_decode=False
        )
    )


@pipeline
def fluent_xdecode():
    """The fluent form."""
    return dataset("xdecode").xdecode(txt=lambda stream: stream.read().decode(), cls=False, must_decode=False)


@pipeline
def tuples():
    """to_tuple in each form."""
    forms = {
        "words": ("txt", "cls"), "one string": ("txt cls",), "alternatives": ("jpg;png;seg.png", "cls"),
        "list": (["webp", "txt"], "cls"), "mixed": ("jpeg;txt cls",), "meta": ("__key__", "txt"),
        "missing": ("nothing",),
    }  # fmt: skip
    return {name: attempt(lambda: list(dataset().to_tuple(*form))) for name, form in forms.items()}


@pipeline
def tuples_with_gaps():
    """A field that some samples lack: dropped by a handler, or None."""
    return {
        "handler": attempt(lambda: list(dataset("gaps").to_tuple("txt", "cls", handler=wds.warn_and_continue))),
        "stop": attempt(lambda: list(dataset("gaps").to_tuple("txt", "cls", handler=wds.ignore_and_stop))),
        "none": attempt(lambda: list(dataset("gaps").to_tuple("txt", "cls", missing_is_error=False))),
        "none by stages": attempt(
            lambda: list(dataset("gaps").compose(wds.to_tuple("txt cls", missing_is_error=False)))
        ),
    }


@pipeline
def mapped():
    """map, with None to drop, keys kept."""

    def changed(sample):
        return None if sample["cls"] == b"1" else {**sample, "n": len(sample["txt"])}

    return dataset().map(changed)


@pipeline
def mapped_with_errors():
    """A function that fails on some, under each handler."""

    def failing(sample):
        return {"__key__": sample["__key__"], "n": 10 // int(sample["cls"])}

    handlers = ("reraise_exception", "ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop")
    return {name: attempt(lambda: list(dataset().map(failing, handler=getattr(wds, name)))) for name in handlers}


@pipeline
def mapped_by_field():
    """map_dict and map_tuple after each other."""
    return (
        dataset()
        .decode()
        .map_dict(cls=lambda n: n + 1, txt=str.upper)
        .to_tuple("txt", "cls", "__key__")
        .map_tuple(len, None)
    )


@pipeline
def selected():
    """Samples chosen by a predicate."""
    return dataset().decode().select(lambda sample: sample["cls"] % 2 == 0).to_tuple("__key__ cls")


@pipeline
def renamed():
    """Fields renamed, with alternatives, and with keep=False."""
    return {
        "kept": shown(list(dataset().rename(image="jpg;png;seg.png", text="txt"))),
        "alone": shown(list(dataset().rename(image="jpg;png;seg.png", text="txt", keep=False))),
        "twice": attempt(lambda: list(dataset().rename(image="seg.png", control="seg.png", keep=False))),
        "key": attempt(lambda: list(dataset().rename(key="__key__", text="txt", keep=False))),
        "missing": attempt(lambda: list(dataset("gaps").rename(label="cls", handler=wds.ignore_and_continue))),
    }


@pipeline
def renamed_by_patterns():
    """rename_keys."""
    return {
        "patterns": attempt(lambda: list(dataset().compose(wds.rename_keys(("image", "*.png"), label="cls")))),
        "kept": attempt(lambda: list(dataset().rename_keys(("image", "*.png"), keep_unselected=True))),
        "unmatched": attempt(lambda: list(dataset().rename_keys(image="*.nothing"))),
        "lenient": attempt(lambda: list(dataset().rename_keys(image="*.nothing", label="cls", must_match=False))),
    }


@pipeline
def extracted():
    """extract_keys."""
    return {
        "dotted": attempt(lambda: list(dataset().extract_keys("*.txt", "*.cls"))),
        "bare": attempt(lambda: list(dataset().extract_keys("txt", "cls"))),
        "alternatives": attempt(lambda: list(dataset().extract_keys("*.jpg;*.txt"))),
        "missing": attempt(lambda: list(dataset().extract_keys("*.nothing", "*.txt", ignore_missing=True))),
    }


@pipeline
def associated():
    """Fields added from a table and by a function."""
    table = {key: {"more": index} for index, key in enumerate(keys(dataset()))}
    return {
        "table": shown(list(dataset().compose(wds.associate(table)))),
        "function": shown(list(dataset().compose(wds.associate(lambda key: {"more": len(key)})))),
    }


@pipeline
def sliced():
    """Slices in each form."""
    return {str(bounds): keys(dataset().slice(*bounds)) for bounds in ((3,), (2, 9), (1, 20, 3), (0,), (99,))}


@pipeline
def shuffled_by_a_generator():
    """A buffer with a generator of one's own, small buffers and large."""
    return {
        str(size): keys(dataset().compose(wds.shuffle(size, initial=initial, rng=random.Random(5))))
        for size, initial in ((1, 1), (4, 2), (7, 7), (1000, 100))
    }


@pipeline
def shuffled_fluently():
    """The fluent shuffle, which may be given a handler; size 0 leaves the order."""
    return {
        "rng": keys(dataset().shuffle(5, initial=3, rng=random.Random(1))),
        "nothing": keys(dataset().shuffle(0)),
        "all": sorted(keys(dataset().shuffle(690, handler=wds.warn_and_continue))),
    }


@pipeline
def shuffled_by_seed():
    """shuffle(seed=)."""
    return keys(dataset().shuffle(6, seed=3))


@pipeline
def shuffled_the_same_each_run():
    """detshuffle: epochs differ, runs do not."""
    source = wds.DataPipeline(wds.SimpleShardList(train()), wds.tarfile_to_samples(), wds.detshuffle(8, 4, seed=9))
    return {"epochs": [keys(source) for _ in range(3)]}


@pipeline
def open_flamingo():
    """The order of stages that many trainings have."""
    return wds.DataPipeline(
        wds.SimpleShardList(train()), wds.detshuffle(100, 10, seed=1), wds.split_by_node, wds.split_by_worker,
        wds.tarfile_to_samples(handler=wds.warn_and_continue), wds.shuffle(12, initial=6, rng=random.Random(2)),
        wds.decode("rgb8", handler=wds.warn_and_continue), wds.rename(image="jpg;png;seg.png", text="txt", label="cls"),
        wds.map_dict(text=str.upper), wds.to_tuple("image", "text", "label"), wds.batched(5, partial=False),
    )  # fmt: skip


@pipeline
def batched_tuples():
    """Batches of arrays, numbers and texts."""
    return dataset().decode("rgb8").to_tuple("seg.png", "cls", "txt").batched(5)


@pipeline
def batched_without_the_rest():
    """partial=False."""
    return dataset().decode("rgb8").to_tuple("seg.png", "cls", "txt").batched(7, partial=False)


@pipeline
def batched_as_lists():
    """collation_fn=None."""
    return dataset().decode().to_tuple("cls", "txt").batched(5, collation_fn=None)


@pipeline
def batched_by_a_function():
    """A collation of one's own."""
    return dataset().decode().batched(5, collation_fn=lambda samples: {"keys": keys(samples), "n": len(samples)})


@pipeline
def batched_dictionaries():
    """Samples as they are."""
    return [sorted(batch.items()) for batch in dataset().decode(only=["cls"]).rename(cls="cls", keep=False).batched(4)]


@pipeline
def batched_arrays_of_several_shapes():
    """Arrays that cannot be stacked."""
    return dataset("shapes").decode().to_tuple("npy").batched(4)


@pipeline
def batched_and_unbatched():
    """What unbatched gives is what batched took."""
    return dataset().decode("rgb8").to_tuple("seg.png", "cls", "txt").batched(5).unbatched()


@pipeline
def batched_anew():
    """Batches of another size, shuffled between, as the readme shows."""
    return (
        dataset().decode("rgb8").to_tuple("seg.png", "cls").batched(6)
        .unbatched().shuffle(9, rng=random.Random(4)).batched(4)
    )  # fmt: skip


@pipeline
def listed():
    """Lists with listed and unlisted."""
    source = dataset().decode().to_tuple("cls", "txt")
    return {
        "listed": attempt(lambda: list(source.listed(7))),
        "unlisted": attempt(lambda: list(source.listed(7).unlisted())),
    }


@pipeline
def listed_without_the_rest():
    """partial=False."""
    return dataset().to_tuple("cls").listed(7, partial=False)


@pipeline
def repeated():
    """repeat: epochs, and a bound on the items of all of them."""
    return {
        "twice": keys(dataset("train-000").repeat(2)),
        "bounded": keys(dataset("train-000").repeat(3, nbatches=8)),
        "with_epoch": keys(dataset("train-000").with_epoch(8)),
        "with_epoch of batches": shown(list(dataset("train-000").to_tuple("cls").batched(2).with_epoch(nbatches=5))),
        "again": [keys(epoch) for dataset_ in [dataset("train-000").with_epoch(4)] for epoch in (dataset_, dataset_)],
    }


@pipeline
def repeatedly():
    """utils.repeatedly over a dataset."""
    return keys(wds.repeatedly(dataset("train-000"), nepochs=2)) + keys(
        wds.repeatedly(dataset("train-000"), nbatches=4)
    )


@pipeline
def with_a_length():
    """with_length."""
    source = dataset("train-000").with_length(17)
    return {"len": len(source), "keys": keys(source)}


@pipeline
def stages_by_name():
    """append, compose, stage, and a dataset that stays as it was."""
    source = dataset("train-000")
    longer = source.compose(wds.slice(2))
    found = {"source": keys(source), "longer": keys(longer)}
    source.append(wds.slice(1))
    return {**found, "appended": keys(source), "longer again": keys(longer)}


class Numbered(wds.PipelineStage):
    """A stage as programs write it."""

    def __init__(self, start):
        self.start = start

    def run(self, source):
        """Number the samples."""
        for index, sample in enumerate(source, self.start):
            yield index, sample["__key__"]


@pipeline
def stages_of_ones_own():
    """A class, a generator function, a partial, and a function that filters."""

    def every(step, source):
        return (entry for index, entry in enumerate(source) if index % step == 0)

    def plain(source):
        yield from source

    return wds.DataPipeline([list(dataset())], plain, partial(every, 3), None, Numbered(5))


@pipeline
def stages_made_by_pipelinefilter():
    """A function turned into a stage."""

    @wds.pipelinefilter
    def longer(source, least, *, field="txt"):
        return (sample for sample in source if len(sample[field]) >= least)

    return dataset().compose(longer(20), longer(5, field="json"))


@pipeline
def wrapped_source():
    """FluidWrapper around a list."""
    return wds.FluidWrapper(list(dataset("train-000"))).decode().map(lambda sample: sample["cls"] + 1)


@pipeline
def mixed_at_random():
    """RandomMix of two datasets, by weight, and to the end of the longest."""
    two = lambda: [dataset("train-000", "train-001"), dataset("train-002", "train-003")]  # noqa: E731
    return {
        "even": keys(wds.RandomMix(two(), **drawn(3))),
        "weighted": keys(wds.RandomMix(two(), [5, 1], **drawn(4))),
        "longest": keys(wds.RandomMix(two(), [5, 1], longest=True, **drawn(5))),
    }


@pipeline
def mixed_in_turns():
    """RoundRobin of datasets of different lengths."""
    datasets = lambda: [dataset("train-000"), dataset("upper"), dataset("train-001", "train-002")]  # noqa: E731
    return {"shortest": keys(wds.RoundRobin(datasets())), "longest": keys(wds.RoundRobin(datasets(), longest=True))}


@pipeline
def mixed_then_processed():
    """A mix as the source of a pipeline."""
    mix = wds.RandomMix([dataset("train-000"), dataset("train-001")], longest=True, **drawn(6))
    return wds.DataPipeline(mix, wds.decode(), wds.to_tuple("txt", "cls"), wds.batched(4))


@pipeline
def cached_in_memory():
    """Cached: the second pass comes from memory."""
    source = dataset("train-000").compose(wds.Cached())
    return {"passes": [shown(list(source)) for _ in range(2)]}


@pipeline
def logged_keys():
    """log_keys writes a line for each sample."""
    path = scratch("keys.log")
    found = keys(dataset("train-000").compose(wds.filters.log_keys(path)))
    with open(path, encoding="utf-8") as stream:
        return {"keys": found, "log": stream.read()}


@pipeline
def told_about():
    """What info prints, and that it passes samples on."""
    stream = io.StringIO()
    found = keys(
        dataset("train-000").map(lambda s: {"__key__": s["__key__"]}).compose(wds.info(n=2, every=3, stream=stream))
    )
    return {"keys": found, "told": stream.getvalue()}


@pipeline
def drawn_by_chance():
    """rsample: all, none, and a share."""
    found = sum(len(keys(dataset().rsample(0.5))) for _ in range(20))
    return {"all": keys(dataset().rsample(1.0)), "none": keys(dataset().rsample(0.0)), "share": 120 < found < 360}


@pipeline
def several_passes():
    """A dataset is iterated as often as one likes, also where a pass was given up."""
    source = dataset().decode()
    return {"given up": keys(taken(4, source)), "whole": keys(source), "again": keys(source)}


@pipeline
def mock_samples():
    """MockDataset as a source."""
    return wds.DataPipeline(wds.MockDataset({"__key__": "k", "x": np.arange(3)}, 4), wds.to_tuple("x"), wds.batched(3))


@pipeline
def decoder_on_a_sample():
    """Decoder called on one sample."""
    sample = next(iter(dataset("train-000")))
    return {"sample": shown(wds.Decoder([wds.imagehandler("l8")])(sample))}


@pipeline
def first_of_a_sample():
    """The functions getfirst and transform_with."""
    sample = next(iter(dataset("train-000").decode()))
    return {
        "first": shown(wds.getfirst(sample, "jpg;txt")),
        "with": shown(wds.transform_with([sample["txt"], 2], [len])),
    }


@pipeline
def closed():
    """close() ends a dataset."""
    source = dataset("train-000")
    found = keys(taken(1, source))
    return {"keys": found, "close": attempt(source.close)}


@pipeline
def shards_of_the_zoo():
    """Every shard of the zoo, whole."""
    names = sorted(path.stem for path in (kit.Path(kit.FOLDER) / "zoo").glob("*.tar"))
    return {
        name: attempt(lambda: list(wds.WebDataset(f"{kit.FOLDER}/zoo/{name}.tar", shardshuffle=False)))
        for name in names
    }
