# ruff: noqa: E501, PLC3002  a question a line
"""What a version of wids answers to the same questions, as JSON on the last line of stdout.

Runs in any interpreter in which ``import wids`` works: ``wids_probe.py FOLDER`` makes shards in the folder (empty at
first), asks, and prints ``{question: answer}``. An error is answered as ``"!"`` and its classes among the builtins.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

warnings.simplefilter("ignore")


def tar(name, members, form=tarfile.USTAR_FORMAT):
    """Write a tar file."""
    with tarfile.open(name, "w", format=form) as archive:
        for member, content in members:
            header = tarfile.TarInfo(member)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def plain(value):
    """Return a value as JSON can show it."""
    if isinstance(value, io.BytesIO):
        return ["stream", hashlib.sha1(value.getvalue()).hexdigest()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, Image.Image):
        return ["image", value.mode, list(value.size), hashlib.sha1(value.tobytes()).hexdigest()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if type(value).__name__ == "Tensor":
        return ["tensor", str(value.dtype), value.tolist()]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


class Sized:
    """A dataset of which only lengths matter."""

    def __init__(self, *lengths):
        self.lengths = list(lengths)

    def __len__(self):
        return sum(self.lengths)


# Encoders differ between versions of Pillow and zlib: the bytes of all fields are recorded.
RECORDED = Path(__file__).with_name("recorded") / "wids_fields.json"
FIELDS = {field: bytes.fromhex(content) for field, content in json.loads(RECORDED.read_text()).items()}


def shards():
    """Make the shards."""
    os.makedirs("d/sub")
    for name, count, prefix in (("a", 3, ""), ("b", 2, "x/"), ("sub/c", 4, "y.d/")):
        members = []
        for number in range(count):
            members += [(f"{prefix}s{number}.cls", b"%d" % number), (f"{prefix}s{number}.txt", name.encode())]
        tar(f"d/{name}.tar", members)
    for field, content in FIELDS.items():
        tar(f"d/field-{field}.tar", [(f"k.{field}", content)])
    listed = [{"url": "a.tar", "nsamples": 3}, {"url": "sub/c.tar", "nsamples": 4}]
    with open("d/index.json", "w") as stream:
        json.dump({"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "nm", "shardlist": listed}, stream)
    with open("d/odd.json", "w") as stream:
        json.dump({"wids_version": 2, "shardlist": listed}, stream)


def answers(wids, ask):
    """Ask everything."""
    W, S, DL, T, MM, L, X = (
        importlib.import_module("wids." + name)
        for name in ("wids", "wids_specs", "wids_dl", "wids_tar", "wids_mmtar", "wids_lru", "wids_index")
    )
    two = [{"url": "d/a.tar", "nsamples": 3}, {"url": "d/b.tar", "nsamples": 2}]
    made = lambda source=two, **kw: wids.ShardListDataset(source, **kw)
    for index in (0, 2, 3, 4, 5, -6):
        ask(f"list {index}", lambda: made()[index])
    for index in (-1, -3, -5):
        ask(f"negative {index}", lambda: made()[index]["__key__"])
    ask("numpy index", lambda: made()[np.int64(4)]["__key__"])
    ask("length", lambda: (len(made()), made().lengths, [int(each) for each in made().cum_lengths]))
    ask("stats", lambda: (lambda ds: [ds[0], ds[4], ds[1], ds.get_stats()][-1])(made()))
    ask("add_transform", lambda: (lambda ds: [ds.add_transform(lambda sample: sample[".cls"]) is ds, ds[1]])(made()))
    ask("own transformation", lambda: made(transformations=lambda sample: sample[".txt"].read().decode())[3])
    ask("list of transformations", lambda: made(transformations=[lambda sample: sample[".cls"].read()])[4])
    ask("no transformations", lambda: made(transformations=[])[0])
    ask("json", lambda: [made("d/index.json")[index] for index in range(7)])
    ask("json base", lambda: made("d/index.json", base=os.path.abspath("d"))[0][".txt"])
    ask("json option", lambda: made("d/index.json", options={"name": "oo"}).dataset_name)
    ask("json stream", lambda: made(open("d/index.json"), base="d")[6]["__key__"])
    ask("json version", lambda: made("d/odd.json"))
    ask(
        "fewer than there are",
        lambda: [each["__key__"] for each in map(made([{"url": "d/a.tar", "nsamples": 2}]).__getitem__, (0, 1))],
    )
    for field in FIELDS:
        for how in ("PIL", "numpy"):
            ask(
                f"field {field} {how}",
                lambda: made([{"url": f"d/field-{field}.tar", "nsamples": 1}], transformations=how)[0]["." + field],
            )
    for parts in (("d", "x.tar"), ("/a/b", "x.tar"), ("http://h/p", "x.tar"), ("http://h/p/", "../x.tar"), ("", "x.tar"),
                  ("http://h/p", "http://q/x.tar"), ("d", "/abs/x.tar"), ("gs://b/c", "x.tar"), ("d", "./x.tar")):  # fmt: skip
        ask(f"urlmerge {parts}", lambda: S.urlmerge(*parts))
    for url in ("http://h/p/i.json", "/a/b/i.json", "i.json", "d/i.json", "http://h/p/i.json?x=1"):
        ask(f"urldir {url}", lambda: S.urldir(url))
    ask("check_shards", lambda: S.check_shards([{"url": "a"}]))
    ask("hash_dataset_name", lambda: [W.hash_dataset_name(text) for text in ("abc", "")])
    for url in ("http://h/a/b.tar", "d/a.tar", "gs://b/c/a.tar?x=1", "pipe:cat a.tar"):
        ask(f"hash_localname {url}", lambda: W.hash_localname("hh")(url))
    for name in ("a.b", "a/b.c.d", "x", "a.b/c"):
        ask(f"splitname {name}", lambda: W.splitname(name))
    ask("group_by_key", lambda: W.group_by_key(["a.x", "a.y", "b.x", "a.z", "noext"]))
    ask("compute_num_samples", lambda: W.compute_num_samples("d/b.tar"))
    ask("compute_file_md5sum", lambda: W.compute_file_md5sum("d/b.tar"))
    ask("tar reader", lambda: (lambda t: [t.names(), len(t), t.get_file(1)])(T.TarFileReader("d/b.tar")))
    ask("mmtar", lambda: (lambda t: [list(t.names()), len(t), t.get_at_index(1), t.get_by_name("x/s0.cls"), t[0],
                                     t["x/s1.txt"], t.get_file(2), list(t), t.get_at_offset(1024)])(MM.MMIndexedTar("d/b.tar")))  # fmt: skip
    ask("find_index_file", lambda: T.find_index_file("a.tar"))
    ask("lru", lambda: lru(L.LRUCache))
    ask("lengths", lambda: W.ShardedSampler(Sized(3, 4, 5)).ranges)
    ask("create", lambda: created(X))
    ask("urls of create", lambda: created(X, "-n", "given", "-b", "http://b/c")["base"])
    return W


def newer(W, ask):
    """Ask what 0.2.86 does not have."""
    for kw in ({}, {"seed": 1}, {"shufflefirst": True}, {"lengths": [2, 3]}, {"lengths": [0, 2, 0]}):
        ask(f"sharded {kw}", lambda: (lambda s: [list(s) for _ in range(4)])(W.ShardListSampler(Sized(3, 4, 5), **kw)))
    for kw in (
        {}, {"chunksize": 10}, {"chunksize": 10, "seed": 3}, {"chunksize": 10, "shuffle": False},
        {"chunksize": 10, "shufflefirst": True}, {"chunksize": 10, "num_samples": 12},
        {"chunksize": 10, "num_samples": (5, 17)}, {"chunksize": 1, "seed": 9}, {"num_samples": 0},
    ):  # fmt: skip

        def chunked():
            sampler = W.ChunkedSampler(Sized(25), **kw)
            passes = [len(sampler), *(list(sampler) for _ in range(3))]
            sampler.set_epoch(1)
            return [*passes, list(sampler)]

        ask(f"chunked {kw}", chunked)
    for count, replicas in ((24, 1), (24, 3), (24, 4), (25, 3), (10, 4), (5, 4), (2, 4)):
        for kw in (
            {"chunksize": 4},
            {"chunksize": 2, "seed": 5},
            {"shufflefirst": True, "chunksize": 3},
            {"shuffle": False},
        ):
            for rank in range(replicas):

                def part():
                    sampler = distributed(W.DistributedChunkedSampler, Sized(count), replicas, rank, kw)
                    return [len(sampler), list(sampler), list(sampler)]

                ask(f"distributed {count} over {replicas}, rank {rank}, {kw}", part)
    ask("lengths_to_ranges", lambda: W.lengths_to_ranges([3, 0, 5]))
    ask(
        "intersect_range",
        lambda: [W.intersect_range(*pair) for pair in (((0, 5), (3, 9)), ((0, 3), (3, 5)), ((0, 2), (5, 9)))],
    )
    ask(
        "intersect_ranges", lambda: [W.intersect_ranges([(0, 3), (3, 7), (7, 12)], r) for r in ((2, 8), (3, 7), (9, 9))]
    )
    for indexshuffle in (True, False):
        for shardshuffle in (True, False):
            ask(
                f"iterate {indexshuffle} {shardshuffle}",
                lambda: list(W.iterate_ranges([(0, 3), (3, 7), (7, 12)], random.Random(7), indexshuffle, shardshuffle)),
            )
    for url in ("http://h/a/b.tar", "d/a.tar", "gs://b/c/a.tar?x=1"):
        ask(f"DefaultLocalname {url}", lambda: W.DefaultLocalname("dd")(url))
        ask(f"CacheLocalname {url}", lambda: W.CacheLocalname("cc")(url))
    ask("samples", lambda: (lambda s: [len(s), s[0], s[-1]])(W.IndexedTarSamples(path="d/b.tar")))
    ask("samples of a stream", lambda: W.IndexedTarSamples(stream=open("d/b.tar", "rb"))[0])
    ask("samples, wrong size", lambda: W.IndexedTarSamples(path="d/b.tar", expected_size=3))
    decode = importlib.import_module("wids.wids_decode")
    sample: dict[str, Any] = {
        "__key__": "k",
        ".png": FIELDS["png"],
        ".cls": b" 3\n",
        ".txt.gz": FIELDS["txt.gz"],
        ".zz": b"x",
    }
    fields = lambda: {name: value if name == "__key__" else io.BytesIO(value) for name, value in sample.items()}
    for how in ("PIL", "numpy", "rgb"):
        ask(f"default_decoder {how}", lambda: decode.default_decoder(fields(), how))
    ask("default_decoder gz_update_key", lambda: decode.default_decoder(fields(), "PIL", gz_update_key=True))
    for name in ("decode_images_to_pil", "decode_images_to_numpy", "decode_all_gz"):
        ask(name, lambda: getattr(decode, name)(fields()))
    for names in ({"a": 1}, {".a": 1}, {"__a__": 1}):
        ask(f"check_keys {names}", lambda: decode.check_keys(names))


def older(W, ask):
    """Ask what only 0.2.86 has."""
    positional = lambda: W.ShardListDataset([{"url": "d/a.tar", "nsamples": 3}], 10, "cache", "nm", None, [], True)
    ask("positional", lambda: positional()[2])
    ask("positional sampler", lambda: sorted(W.ShardedSampler(Sized(3, 4), [2, 3], 1, True)))
    ask("samples by position", lambda: (lambda s: [len(s), s[0]])(W.IndexedTarSamples("d/b.tar", None, 2)))
    ask("default_localname", lambda: W.cache_localname("cc")("http://h/a/b.tar"))


def distributed(kind, dataset, replicas, rank, kw):
    """Return a sampler as in a job of so many ranks."""
    if "torch" in sys.modules and hasattr(kind, "__code__"):  # upstream's is a function, and asks torch only
        group = sys.modules["torch"].distributed
        group.is_initialized, group.get_rank, group.get_world_size = lambda: True, lambda *a: rank, lambda *a: replicas
    return kind(dataset, num_replicas=replicas, rank=rank, **kw)


def lru(kind):
    """Use a cache a little."""
    released = []
    cache = kind(2, release_handler=lambda key, value: released.append((key, value)))
    cache["a"], cache["b"] = 1, 2
    seen = [cache["a"], cache["none"]]
    cache["c"] = 3
    return [seen, list(released), sorted(cache.keys()), "b" in cache, "c" in cache, len(cache), sorted(cache.values())]


def created(X, *options):
    """Make an index with the program."""
    os.makedirs("made", exist_ok=True)
    here, argv = os.getcwd(), sys.argv
    os.chdir("d")
    sys.argv = ["widsindex", "create", "b.tar", "a.tar", "-o", "made.json", *options]
    try:
        X.main()
        with open("made.json") as stream:
            return json.load(stream)
    finally:
        sys.argv = argv
        os.chdir(here)


def main():
    """Answer everything."""
    found = {}

    def ask(question, function):
        try:
            found[question] = plain(function())
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            found[question] = "!" + " ".join(kinds[: kinds.index("Exception")])

    os.chdir(sys.argv[1])
    os.environ["WIDS_CACHE"] = os.path.abspath("near")
    with contextlib.redirect_stdout(sys.stderr):
        shards()
        W = answers(importlib.import_module("wids"), ask)
        if hasattr(W, "ChunkedSampler"):
            newer(W, ask)
        if hasattr(W, "cache_localname"):
            older(W, ask)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
