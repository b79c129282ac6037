"""Pipelines that read: constructors, shard lists, splitting, handlers, caches. ``kit`` says what the names mean."""

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import kit
from kit import attempt, dataset, keys, pipeline, placed, scratch, shards, shown, taken, train

import webdataset as wds


@pipeline
def urls_in_braces():
    """A brace expression."""
    return dataset()


@pipeline
def urls_in_a_list():
    """A list, whose order is kept."""
    return wds.WebDataset(shards("train-002", "train-000"), shardshuffle=False)


@pipeline
def urls_joined_by_colons():
    """Two expressions in one string."""
    return wds.WebDataset("::".join(shards("train-003", "train-001")), shardshuffle=False)


@pipeline
def urls_from_the_environment():
    """${NAME} stands for the variable WDS_NAME."""
    os.environ["WDS_PLACE"] = kit.FOLDER
    return wds.WebDataset("${PLACE}/train-{001..002}.tar", shardshuffle=False)


@pipeline
def urls_of_commands():
    """The output of a command, one for each shard."""
    return wds.WebDataset("pipe:cat " + train(), shardshuffle=False)


@pipeline
def urls_of_files():
    """file: urls."""
    return wds.WebDataset("file:" + train(), shardshuffle=False)


@pipeline
def urls_with_marks():
    """Names of local files with the characters that urls give a meaning."""
    return {name: attempt(lambda: keys(dataset(name))) for name in ("od d", "od#d", "od?d", "od;d", "od%20d", "od+d")}


@pipeline
def urls_of_no_file():
    """A shard that is not there, between two that are."""
    return dataset("train-000", "missing", "train-001")


@pipeline
def urls_of_no_file_passed_over():
    """The same with a handler that goes on."""
    return dataset("train-000", "missing", "train-001", handler=wds.warn_and_continue)


@pipeline
def urls_of_no_file_stopped_at():
    """The same with a handler that stops."""
    return dataset("train-000", "missing", "train-001", handler=wds.ignore_and_stop)


@pipeline
def no_urls():
    """An empty list of shards."""
    return wds.WebDataset([], shardshuffle=False)


@pipeline
def compressed_shards():
    """gz, bz2 and xz shards, told by content."""
    return wds.WebDataset([f"{kit.FOLDER}/train-000.tar.{kind}" for kind in ("gz", "bz2", "xz")], shardshuffle=False)


@pipeline
def files_selected():
    """Members chosen by name."""
    return dataset(select_files=lambda name: name.endswith((".txt", ".cls")))


@pipeline
def files_renamed():
    """Members under other names, which group them anew."""
    return dataset(rename_files=lambda name: name.replace(".seg.png", ".mask").replace("/0", "/x0"))


@pipeline
def files_renamed_and_selected():
    """Renamed first, then chosen by the new name."""
    return dataset(rename_files=str.upper, select_files=lambda name: name.endswith("TXT"))


@pipeline
def split_over_nodes_and_workers():
    """Each process reads its shards, all of them together every shard once."""
    found = {}
    for rank, world, worker, workers in (
        (0, 1, 0, 1),
        (0, 2, 0, 1),
        (1, 2, 0, 1),
        (0, 2, 1, 2),
        (1, 2, 0, 2),
        (0, 1, 3, 4),
    ):
        placed(rank, world, worker, workers)
        place = f"{rank}/{world} {worker}/{workers}"
        found[str(place)] = attempt(lambda: keys(dataset(nodesplitter=wds.split_by_node)))
    return found


@pipeline
def split_by_hand():
    """The splitters as stages of a pipeline."""
    placed(1, 2, 0, 2)
    return wds.DataPipeline(
        wds.SimpleShardList(train()), wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples()
    )


@pipeline
def several_nodes_without_a_splitter():
    """The default splitter refuses to give every node the same."""
    placed(1, 2)
    return dataset()


@pipeline
def more_workers_than_shards():
    """A worker without a shard, with nothing said about it."""
    placed(0, 1, 5, 6)
    return dataset()


@pipeline
def splitter_of_ones_own():
    """A function of the shards."""
    return dataset(nodesplitter=lambda source: (shard for index, shard in enumerate(source) if index % 2))


@pipeline
def resampled_deterministically():
    """Shards drawn with replacement from a seed: the first epoch."""
    return wds.DataPipeline(
        wds.ResampledShards(train(), nshards=9, deterministic=True),
        wds.tarfile_to_samples(),
        wds.map(lambda s: s["__key__"]),
    )


@pipeline
def resampled_for_ever():
    """Shards drawn with replacement: what comes is among what there is."""
    found = taken(300, wds.WebDataset(train(), resampled=True, shardshuffle=False))
    return {"count": len(found), "keys": sorted(set(keys(found)))}


@pipeline
def resampled_over_nodes():
    """The same on the second of two nodes."""
    placed(1, 2)
    found = taken(200, wds.WebDataset(train(), resampled=True, shardshuffle=False))
    return {"count": len(found), "keys": sorted(set(keys(found)))}


@pipeline
def shards_in_seeded_order():
    """SimpleShardList with a seed."""
    return wds.DataPipeline(wds.SimpleShardList(train(), seed=17), wds.tarfile_to_samples())


@pipeline
def shards_in_seeded_order_twice():
    """The order of two epochs of one list."""
    source = wds.DataPipeline(wds.SimpleShardList(train(), seed=17), wds.tarfile_to_samples())
    return {"first": sorted(keys(source)), "second": sorted(keys(source))}


@pipeline
def shards_shuffled():
    """Shards through a buffer: each once, samples within in order."""
    found = keys(wds.WebDataset(train(), shardshuffle=100))
    return {"all": sorted(found), "in order": [[key for key in found if key[:2] == f"s{n}"] for n in range(4)]}


@pipeline
def shards_shuffled_by_detshuffle():
    """detshuffle=True."""
    return {"all": sorted(keys(wds.WebDataset(train(), shardshuffle=100, detshuffle=True)))}


@pipeline
def shards_of_a_directory():
    """DirectoryShardList: files are kept, given once, the oldest first."""
    place = scratch("inbox")
    os.makedirs(place)
    for index, shard in enumerate(shards("train-000", "train-001", "train-002")):
        shutil.copy(shard, place)
        os.utime(f"{place}/{os.path.basename(shard)}", (1000 + index, 1000 + index))
    source = wds.shardlists.DirectoryShardList(place + "/", pattern="*.tar", poll=None, mode="unlink", select="oldest")
    found = [{**sample, "__url__": ""} for sample in wds.DataPipeline(source, wds.tarfile_to_samples())]
    return {"samples": found, "left": sorted(os.listdir(place))}


@pipeline
def shards_of_a_mixture():
    """MultiShardSample from YAML."""
    os.environ["ALLOW_OBSOLETE"] = "1"
    path = scratch("mixture.yaml")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(f"prefix: {kit.FOLDER}/\ndatasets:\n")
        stream.write(
            "- {name: a, shards: 'train-{000..003}.tar', choose: 2}\n- {name: b, shards: upper.tar, resample: 3}\n"
        )
    source = wds.shardlists.MultiShardSample(path)
    source.set_epoch(7)
    return wds.DataPipeline(source, wds.tarfile_to_samples())


@pipeline
def shards_by_shardspec():
    """The function shardspec chooses the kind of list."""
    return wds.DataPipeline(wds.shardspec(train()), wds.tarfile_to_samples())


@pipeline
def shards_of_another_dataset():
    """An iterable of {"url": …} as first stage."""
    return wds.DataPipeline([[{"url": url} for url in shards("train-001", "upper")]], wds.tarfile_to_samples())


@pipeline
def no_samples_at_all():
    """A shard without members."""
    return dataset("nothing")


@pipeline
def no_samples_at_all_in_stages():
    """The same without the class."""
    return wds.DataPipeline(wds.SimpleShardList(shards("nothing")), wds.tarfile_to_samples())


def damaged(handler):
    """Good shards around damaged ones."""
    names = ("train-000", "junk", "train-001", "zero-bytes", "cut", "train-002", "twice", "train-003")
    return dataset(*names, handler=handler)


@pipeline
def damage_raised():
    """Damage is an error by default."""
    return damaged(wds.reraise_exception)


@pipeline
def damage_passed_over():
    """Damage passed over: all samples of all good shards."""
    return damaged(wds.ignore_and_continue)


@pipeline
def damage_warned_about():
    """The same with warnings."""
    return damaged(wds.warn_and_continue)


@pipeline
def damage_stopped_at():
    """Damage ends the reading."""
    return damaged(wds.ignore_and_stop)


@pipeline
def damage_handled_by_a_function():
    """A handler of one's own sees each error once."""
    seen = []

    def handler(error):
        seen.append(isinstance(error, Exception))
        return True

    found = keys(dataset("junk", "train-000", "missing", "zero-bytes", handler=handler))
    return {"keys": found, "errors": len(seen)}


@pipeline
def odd_names():
    """Names without, with empty and with many extensions; directories with dots."""
    return dataset("odd")


@pipeline
def hidden_and_meta_names():
    """Dotfiles and __meta__ names."""
    return dataset("meta", "hidden")


@pipeline
def keys_that_come_apart():
    """A sample whose members are not adjacent."""
    return dataset("apart")


@pipeline
def extensions_in_capitals():
    """Extensions are lower-cased, keys are not."""
    return dataset("upper")


@pipeline
def samples_across_a_border():
    """The same key ends one shard and begins the next."""
    return dataset("head", "tail")


@pipeline
def samples_marked_bad():
    """__bad__ samples are left out."""
    return dataset("bad")


class Quiet(SimpleHTTPRequestHandler):
    """Serves the folder without a word."""

    def log_message(self, *arguments):
        """Say nothing."""


def served(function):
    """Call a function with the address of a server of the folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=kit.FOLDER))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        return function(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()


def placeless(samples):
    """Samples without the address of the server."""
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


@pipeline
def read_from_http():
    """A web server's shards."""
    return served(lambda base: placeless(wds.WebDataset(base + "/train-{000..001}.tar", shardshuffle=False)))


def stored(place):
    """Count the files of a cache directory; those of hidden folders are the cache's own affair."""
    return sum(len(files) for folder, _, files in os.walk(place) if "/." not in folder[len(place) :])


@pipeline
def cached_from_http():
    """Through the cache, twice: the same samples, a file for each shard."""
    place = scratch("cache")
    os.makedirs(place)

    def twice(base):
        source = wds.WebDataset(base + "/train-{000..001}.tar", shardshuffle=False, cache_dir=place)
        first, second = placeless(source), placeless(source)
        return {"first": shown(first), "equal": first == second, "files": stored(place)}

    return served(twice)


@pipeline
def cached_by_the_environment():
    """WDS_CACHE names the cache."""
    place = os.environ["WDS_CACHE"] = scratch("cache-by-name")
    os.makedirs(place)
    try:
        found = served(lambda base: keys(wds.WebDataset(base + "/train-000.tar", shardshuffle=False)))
    finally:
        del os.environ["WDS_CACHE"]
    return {"keys": found, "files": stored(place)}


@pipeline
def cache_in_no_directory():
    """A cache directory that is not there is an error at once."""
    return {
        "built": attempt(lambda: wds.WebDataset(train(), shardshuffle=False, cache_dir=scratch("nowhere")) and "built")
    }


@pipeline
def another_scheme():
    """A scheme that the program adds."""

    def opened(url, mode="rb", bufsize=8192, **kw):
        return open(kit.FOLDER + "/" + url.split(":", 1)[1], mode)

    import importlib

    schemes = importlib.import_module("webdataset.gopen").gopen_schemes
    schemes["mine"] = opened
    try:
        return placeless(wds.WebDataset("mine:train-{000..001}.tar", shardshuffle=False))
    finally:
        del schemes["mine"]


@pipeline
def another_url_opener():
    """A replaced tariterators.url_opener, as NeMo and ml-4m do."""
    from webdataset import tariterators

    kept = tariterators.url_opener

    def opened(source, handler=wds.reraise_exception, **kw):
        for entry in source:
            yield {**entry, "stream": open(entry["url"].replace("elsewhere", kit.FOLDER), "rb")}

    tariterators.url_opener = opened  # type: ignore[assignment]
    try:
        source = wds.SimpleShardList("elsewhere/train-{000..001}.tar")
        return list(wds.DataPipeline(source, wds.tarfile_to_samples()))
    finally:
        tariterators.url_opener = kept


@pipeline
def grouper_of_another_program():
    """open_clip's and open_flamingo's shape: own grouper behind the published opener and expander."""
    from webdataset.tariterators import base_plus_ext, tar_file_expander, url_opener, valid_sample

    def grouped(members):
        current = None
        for entry in members:
            prefix, suffix = base_plus_ext(entry["fname"])
            if prefix is None:
                continue
            if current is None or prefix != current["__key__"] or suffix in current:
                if valid_sample(current):
                    yield current
                current = {"__key__": prefix, "__url__": entry["__url__"]}
            current[suffix] = entry["data"]
        if valid_sample(current):
            yield current

    def stage(source):
        return grouped(
            tar_file_expander(url_opener(source, handler=wds.warn_and_continue), handler=wds.warn_and_continue)
        )

    return wds.DataPipeline(wds.SimpleShardList(shards("train-000", "upper", "train-001")), stage)


@pipeline
def records_of_cbor():
    """Whole samples as a sequence of CBOR items."""
    return wds.DataPipeline(wds.SimpleShardList([f"{kit.FOLDER}/records.cbors"]), wds.cbors_to_samples())
