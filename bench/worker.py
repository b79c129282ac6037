"""One library under measurement, in a process of its own: takes jobs as JSON lines, answers with CPU seconds.

Run by any interpreter that has ``webdataset`` installed, whichever version that is; every job uses only names that all
versions share. One job is one warm measurement; the process stays, so that caches, imports and pools are warm for all.
"""

import gc
import importlib
import itertools
import json
import os
import random
import resource
import sys
import time
import warnings
from typing import Any


def cpu():
    """Return the CPU seconds, user and system, of this process and its reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def drained(iterable):
    """Consume an iterable and return how many it gave."""
    count = 0
    for _ in iterable:
        count += 1
    return count


def dataset(shards):
    """Return the undecoded samples of some shards, in order."""
    import webdataset as wds

    return wds.WebDataset(shards, shardshuffle=False)


def raw(shards):
    """Iterate over undecoded samples."""
    return drained(dataset(shards))


def chain(shards):
    """Shuffle, decode, pick two fields, batch by 64; return the number of batches."""
    flow = dataset(shards).shuffle(1000, rng=random.Random(0))
    return drained(flow.decode().to_tuple("cls", "json").batched(64))


def stream(urls):
    """Read every byte of some urls; return how many there were."""
    gopen = importlib.import_module("webdataset.gopen").gopen
    total = 0
    for url in urls:
        with gopen(url, "rb") as source:
            while piece := source.read(393216):
                total += len(piece)
    return total


def first(shards):
    """Open and take one sample."""
    iterator = iter(dataset(shards))
    next(iterator)
    return 1


def mapped(count, depth):
    """Pass integers through some map stages of the library."""
    import webdataset as wds

    stages = [wds.map(unchanged) for _ in range(depth)]
    return drained(wds.DataPipeline(range_source(count), *stages))


def bare(count, depth):
    """Pass integers through as many bare generators."""
    flow = iter(range(count))
    for _ in range(depth):
        flow = bare_map(flow)
    return drained(flow)


def bare_map(flow):
    """Do what a map stage must do, and nothing else."""
    for item in flow:
        result = unchanged(item)
        if result is not None:
            yield result


def unchanged(item):
    """Return the argument."""
    return item


def staged(shards, stages):
    """Pass undecoded samples through some stages; return the number of items."""
    flow = dataset(shards)
    for stage in stages:
        flow = STAGES[stage](flow)
    return drained(flow)


STAGES = {
    "decode": lambda flow: flow.decode(),
    "decode only cls": lambda flow: flow.decode(only=["cls"]),
    "map": lambda flow: flow.map(unchanged),
    "map_dict": lambda flow: flow.map_dict(cls=unchanged),
    "map_tuple": lambda flow: flow.map_tuple(unchanged, unchanged),
    "select": lambda flow: flow.select(bool),
    "rename": lambda flow: flow.rename(label="cls"),
    "rename_keys": lambda flow: flow.rename_keys(label="cls"),
    "extract_keys": lambda flow: flow.extract_keys("cls", "json"),
    "to_tuple": lambda flow: flow.to_tuple("cls", "json"),
    "shuffle": lambda flow: flow.shuffle(1000, rng=random.Random(0)),
    "slice": lambda flow: flow.slice(10**9),
    "batched": lambda flow: flow.batched(64),
    "unbatched": lambda flow: flow.unbatched(),
}


def range_source(count):
    """Return a pipeline source that gives integers."""
    return lambda: iter(range(count))


def readinto(shards, size=262144):
    """Read every byte of some files into one reused buffer: the limit for any reader."""
    buffer = bytearray(size)
    total = 0
    for shard in shards:
        with open(shard, "rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
    return total


def reads(shards, size):
    """Read every byte of some files into new bytes of a member's size: the limit for a reader that gives bytes."""
    total = 0
    for shard in shards:
        with open(shard, "rb", buffering=0) as stream:
            while chunk := stream.read(size):
                total += len(chunk)
    return total


def received(urls, size):
    """Receive every byte of some urls of one web server in one reused buffer: the limit for any reader over HTTP."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    buffer = bytearray(size)
    connection = HTTPConnection(urlsplit(urls[0]).netloc)
    total = 0
    for url in urls:
        connection.request("GET", urlsplit(url).path)
        response = connection.getresponse()
        while count := response.readinto(buffer):
            total += count
    connection.close()
    return total


def obstore(urls):
    """Read every byte of some urls of one web server as obstore's streams, one after the other."""
    from urllib.parse import urlsplit

    library = importlib.import_module("obstore")
    root = "{0.scheme}://{0.netloc}".format(urlsplit(urls[0]))
    store = importlib.import_module("obstore.store").HTTPStore.from_url(root, client_options={"allow_http": True})
    total = 0
    for url in urls:
        for piece in library.get(store, urlsplit(url).path.lstrip("/")).stream():
            total += len(piece)
    return total


_indexed: dict[Any, Any] = {}


def ordered(count, order):
    """Return the numbers below ``count``, in order or shuffled."""
    numbers = list(range(count))
    if order == "random":
        random.Random(0).shuffle(numbers)
    return numbers


def indexed(shards, order):
    """Read every sample by its number, undecoded; the dataset stays open."""
    import wids

    key = tuple(shard["url"] for shard in shards)
    if key not in _indexed:
        _indexed[key] = wids.ShardListDataset(shards, transformations=[], lru_size=len(shards))
    dataset = _indexed[key]
    for number in ordered(sum(shard["nsamples"] for shard in shards), order):
        dataset[number]
    return len(dataset)


def stretches(shards, order):
    """Read as many stretches of the same files with ``pread``, each as long as a sample is on average."""
    files = [os.open(shard["url"], os.O_RDONLY) for shard in shards]
    sizes = [os.path.getsize(shard["url"]) // max(1, shard["nsamples"]) for shard in shards]
    places = [
        (file, size, number * size)
        for file, size, shard in zip(files, sizes, shards)  # noqa: B905  for old Pythons, too
        for number in range(shard["nsamples"])
    ]
    for number in ordered(len(places), order):
        file, size, offset = places[number]
        os.pread(file, size, offset)
    for file in files:
        os.close(file)
    return len(places)


def index_build(path):
    """Index a shard by its headers; return the number of samples."""
    import webdataset as wds

    return len(wds.index_shard(path))


def index_write(path):
    """Write the index file that is mapped beside a shard; return the number of files."""
    import webdataset as wds

    return len(wds.write_indexes([path], "binary"))


def index_open(path, sample=None):
    """Open a shard with the index beside it, and read a sample where one is named; return the number of samples."""
    import webdataset as wds

    shard = wds.IndexedShard(path)
    if sample is not None:
        shard[sample]
    return len(shard)


def index_len(path):
    """Return the length of a dataset whose shard has an index beside it."""
    import webdataset as wds

    return len(wds.IndexedDataset([path]))


_by_number: dict[str, Any] = {}


def index_lookups(path, count, lookups):
    """Read samples by number, at random; the index is built by the first call, and kept."""
    import webdataset as wds

    if path not in _by_number:
        dataset, rng = wds.IndexedDataset([path], index=False), random.Random(0)
        len(dataset)
        _by_number[path] = dataset, [rng.randrange(count) for _ in range(lookups)]
    dataset, numbers = _by_number[path]
    for number in numbers:
        dataset[number]
    return lookups


_samples: dict[Any, Any] = {}


def load(shards):
    """Keep raw samples of some shards in memory, as input of ``write``."""
    _samples["all"] = [{name: sample[name] for name in sample if name not in DROPPED} for sample in dataset(shards)]
    return len(_samples["all"])


DROPPED = {"__url__", "__local_path__"}


def write(path):
    """Write the samples that ``load`` kept, as one shard with default options, and return the count."""
    import webdataset as wds

    with wds.TarWriter(path) as sink:
        for sample in _samples["all"]:
            sink.write(sample)
    return len(_samples["all"])


def limit(path):
    """Write the same payloads with nothing around them: the limit for any writer."""
    with open(path, "wb") as sink:
        for sample in _samples["all"]:
            for name, payload in sample.items():
                if name != "__key__":
                    sink.write(payload)
    return len(_samples["all"])


def size(path):
    """Return a file's size in bytes."""
    return os.path.getsize(path)


JOBS = {
    job.__name__: job
    for job in (
        raw,
        chain,
        staged,
        stream,
        first,
        mapped,
        bare,
        obstore,
        readinto,
        received,
        reads,
        indexed,
        index_build,
        index_len,
        index_lookups,
        index_open,
        index_write,
        stretches,
        load,
        write,
        limit,
        size,
    )
}


def answer(line):
    """Run one job and return its CPU and wall seconds and its result."""
    job = json.loads(line)
    function = JOBS[job.pop("job")]
    gc.collect()
    started, begun = time.perf_counter(), cpu()
    result = function(**job)
    used = cpu() - begun
    return {"cpu": used, "wall": time.perf_counter() - started, "result": result}


def main():
    """Answer jobs until the input ends."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in itertools.takewhile(bool, iter(sys.stdin.readline, "")):
        replies.write(json.dumps(answer(line)) + "\n")


if __name__ == "__main__":
    main()
