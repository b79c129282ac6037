"""Say as JSON what the installed webdataset does with the shards of a folder; see test_reader_differential.py."""

import io
import json
import os
import sys
import time

given = json.loads(sys.stdin.buffer.read())
time.sleep = lambda seconds: None  # published warning handlers sleep half a second

import webdataset as wds  # noqa: E402
from webdataset import tariterators  # noqa: E402
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander, url_opener, valid_sample  # noqa: E402

FOLDER = given["folder"]
HANDLERS = ["reraise_exception", "ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop"]
seen = {}


def shown(value):
    """JSON for a value of a sample."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(name): shown(entry) for name, entry in value.items() if name != "__local_path__"}
    if isinstance(value, (list, tuple)):
        return [shown(entry) for entry in value]
    if isinstance(value, str):
        return value.replace(FOLDER + "/", "")
    return value if value is None or isinstance(value, (int, bool)) else repr(value)


def see(case, function):
    """Keep what a function gives: all its items, or those before an error and the error's classes."""
    items = []
    try:
        for entry in function():
            items.append(shown(entry))
            if len(items) > 200:
                break
    except Exception as error:
        items.append({"raises": [kind.__name__ for kind in type(error).__mro__]})
    seen[case] = items


def path(*names):
    """Paths of shards."""
    return [f"{FOLDER}/{name}.tar" for name in names]


def dataset(names, **kw):
    """The fluent way."""
    if wds.__version__.startswith("1") or not wds.__version__.startswith("0"):
        kw.setdefault("empty_check", False)
    return wds.WebDataset(path(*names), shardshuffle=False, **kw)


def pipeline(names, **kw):
    """The stages."""
    return wds.DataPipeline(wds.SimpleShardList(path(*names)), wds.tarfile_to_samples(**kw))


def handler_named(name):
    """One of the five handlers."""
    return getattr(wds, name)


for name in given["names"]:
    see(f"base_plus_ext {name!r}", lambda: [base_plus_ext(name)])

SINGLE = [
    "plain", "odd", "meta", "hidden", "upper", "clash", "twice", "last-twice", "apart", "bad", "keys", "empty-fields",
    "nothing", "long", "joined", "junk", "zero-bytes", "cut", "cut-between", "flipped", "links", "missing",
]  # fmt: skip
for name in SINGLE:
    see(f"dataset {name}", lambda: dataset([name]))
    see(f"pipeline {name}", lambda: pipeline([name]))
for ending in ("plain.tar.gz", "plain.tar.bz2", "plain.tar.xz", "pieces.tar.gz"):
    see(f"compressed {ending}", lambda: wds.DataPipeline(
        wds.SimpleShardList([f"{FOLDER}/{ending}"]), wds.tarfile_to_samples()
    ))  # fmt: skip
for names in (
    ["head", "tail"],
    ["head", "tail-clash"],
    ["plain", "plain"],
    ["last-twice", "last-twice"],
    ["head", "nothing", "tail"],
):
    see(f"dataset {'+'.join(names)}", lambda: dataset(names))
    see(f"pipeline {'+'.join(names)}", lambda: pipeline(names))
for handler in HANDLERS:
    for broken in ("twice", "last-twice", "clash", "junk", "zero-bytes", "cut", "cut-between", "flipped", "missing"):
        see(f"dataset {broken}+tail {handler}", lambda: dataset([broken, "tail"], handler=handler_named(handler)))
        see(f"pipeline {broken}+tail {handler}", lambda: pipeline([broken, "tail"], handler=handler_named(handler)))

ORDER = []


def rename(name):
    """Note the call; rename."""
    ORDER.append(["rename", name])
    return "r-" + name


def select(name):
    """Note the call; keep the texts."""
    ORDER.append(["select", name])
    return name.endswith(".txt")


see("select and rename", lambda: dataset(["plain"], select_files=select, rename_files=rename))
see("select and rename, order", lambda: ORDER)
see("select meta", lambda: dataset(["meta"], select_files=lambda name: "x" in name))
see("rename to meta", lambda: dataset(["plain"], rename_files=lambda name: name.replace("a.txt", "__m__/a.txt")))
see("rename from meta", lambda: dataset(["meta"], rename_files=lambda name: name.replace("__", "")))
see("rename together", lambda: dataset(["plain"], rename_files=lambda name: "one." + name))
see("select none", lambda: dataset(["plain"], select_files=lambda name: False))


def opened(*names):
    """Opened shards."""
    return url_opener(iter([{"url": url} for url in path(*names)]))


def expanded(*names, **kw):
    """Members."""
    return tar_file_expander(opened(*names), **kw)


see("url_opener", lambda: [sorted(entry) for entry in opened("plain")])
see("url_opener missing", lambda: opened("missing", "plain"))
see("url_opener missing, ignored", lambda: [
    sorted(entry) for entry in url_opener(iter([{"url": url} for url in path("missing", "plain")]),
                                          handler=wds.ignore_and_continue)
])  # fmt: skip
see("expander", lambda: expanded("plain", "head"))
see("expander fname", lambda: [entry["fname"] for entry in expanded("plain", "head")])
see("expander select", lambda: expanded("plain", select_files=lambda name: name.endswith("cls")))
see("group lcase=False", lambda: group_by_keys(expanded("upper"), lcase=False))
see("group suffixes", lambda: group_by_keys(expanded("plain", "upper"), suffixes={"txt", "seg.png"}))
see("group keys", lambda: group_by_keys(expanded("plain"), keys=lambda name: (name[-3:], name[0])))
see("group keys none", lambda: group_by_keys(expanded("plain"), keys=lambda name: (None, None)))
WITHOUT_URL = [{"fname": "a.txt", "data": b"0"}, {"fname": "a.cls", "data": b"1"}]
see("group list", lambda: group_by_keys(iter([*WITHOUT_URL, {"fname": "b.txt", "data": b"2", "__url__": "u"}])))
see("group nothing", lambda: group_by_keys(iter([])))
see(
    "group empty item",
    lambda: group_by_keys(iter([{"fname": "a.txt", "data": b"0"}, {}, {"fname": "a.cls", "data": b"1"}])),
)
see("tar_file_iterator", lambda: tariterators.tar_file_iterator(io.BytesIO(open(path("meta")[0], "rb").read())))
for sample in ({}, None, {"a": 1}, {"__bad__": True}, {"__bad__": False}, {"__key__": "x"}, [], [1]):
    see(f"valid_sample {sample!r}", lambda: [bool(valid_sample(sample))])
see("pipe", lambda: wds.DataPipeline(
    wds.SimpleShardList([f"pipe:cat {FOLDER}/plain.tar"]), wds.tarfile_to_samples()
))  # fmt: skip
see("pipe dataset", lambda: wds.WebDataset(f"pipe:cat {FOLDER}/plain.tar", shardshuffle=False))
see("file url", lambda: wds.WebDataset(f"file:{FOLDER}/plain.tar", shardshuffle=False))
see("braces", lambda: wds.WebDataset(FOLDER + "/{plain,upper}.tar", shardshuffle=False))
see("double colon", lambda: wds.WebDataset("::".join(path("plain", "upper")), shardshuffle=False))
see("to_tuple", lambda: dataset(["plain"]).to_tuple("txt", "cls"))
see("repeat", lambda: dataset(["plain"]).repeat(2))
see("slice", lambda: dataset(["plain", "plain"]).slice(3))

for rank, world in ((0, 1), (0, 3), (2, 3), (4, 5)):
    for worker, workers in ((0, 1), (1, 2), (3, 4)):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), WORKER=str(worker), NUM_WORKERS=str(workers))
        place = f"{rank}/{world} {worker}/{workers}"
        see(f"split_by_node {place}", lambda: wds.split_by_node(iter(range(10))))
        see(f"split_by_worker {place}", lambda: wds.split_by_worker(iter(range(10))))
        see(f"both {place}", lambda: wds.split_by_worker(wds.split_by_node(iter(range(10)))))
        see(f"single_node_only {place}", lambda: wds.shardlists.single_node_only(iter(range(3))))
        see(f"dataset split {place}", lambda: [
            sample["__key__"] for sample in dataset(["plain", "upper", "head", "tail"], nodesplitter=wds.split_by_node)
        ])  # fmt: skip

print(json.dumps(seen))
