"""Play cases of the fuzz with the webdataset that is installed: JSON in, JSON out. See test_fuzz_differential.py."""

import itertools
import json
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np

import webdataset as wds
from webdataset import compat, tariterators

given = json.loads(sys.stdin.buffer.read())
time.sleep = lambda seconds: None  # published warning handlers sleep half a second
V086 = wds.__version__.startswith("0.2.")
OURS = not V086 and not wds.__version__.startswith("1.")
MOST = 80
SECONDS = 1.5  # of processor time


class Hangs(BaseException):
    """A case that takes too long."""


def ring(*_):
    """End a case."""
    raise Hangs


def shown(value):
    """JSON for a value, its type included."""
    if value is None or isinstance(value, (bool, int, float)):
        return value if type(value) in (type(None), bool, int, float) else [type(value).__name__, repr(value)]
    if type(value) is str:
        return value.replace(given["folder"], "")
    if isinstance(value, bytes):
        return ["bytes", value.decode("latin-1")]
    if isinstance(value, dict):
        return ["dict", [[shown(name), shown(entry)] for name, entry in value.items() if name != "__local_path__"]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [shown(entry) for entry in value]]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), [shown(entry) for entry in value.ravel().tolist()]]
    return [type(value).__name__, repr(value)]


# -- functions that pipelines are made of


def with_length(sample):
    """Add a field."""
    return {**sample, "n.txt": sum(not name.startswith("__") for name in sample)}


def without_key(sample):
    """A new sample without a key."""
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def some_fail(sample):
    """Fail at some samples."""
    if "3" in str(sample.get("__key__")):
        raise ValueError("three")
    return sample


def some_none(sample):
    """Drop some samples."""
    return None if "1" in str(sample.get("__key__")) else sample


def in_place(sample):
    """Change a sample in place."""
    sample["txt"] = b"changed"
    return sample


def to_key(sample):
    """Another kind of item."""
    return sample["__key__"]


def even(sample):
    """Keep some samples."""
    return len(str(sample.get("__key__"))) % 2 == 0


def has_text(sample):
    """Keep samples with a text; fails at others."""
    return len(sample["txt"]) > 1


def doubled(value):
    """Twice a value; fails at some kinds."""
    return value + value


def size(value):
    """Length, of a dict that of its own fields; fails at numbers."""
    return sum(not name.startswith("__") for name in value) if isinstance(value, dict) else len(value)


def text(value):
    """Any value as text."""
    return str(value)


def no_texts(name):
    """Leave members out."""
    return not name.endswith(".txt")


def in_folder(name):
    """Rename members."""
    return "d/" + name


def upper(name):
    """Rename members."""
    return name.replace("a", "A")


def as_list(samples):
    """Collate to a list."""
    return list(samples)


FUNCTIONS = {
    function.__name__: function
    for function in (
        with_length, without_key, some_fail, some_none, in_place, to_key, even, has_text, doubled, size, text, no_texts,
        in_folder, upper, as_list,
    )
}  # fmt: skip


def made(value):
    """Functions, handlers and generators that a JSON value stands for."""
    if isinstance(value, dict):
        if "$function" in value:
            return FUNCTIONS[value["$function"]]
        if "$handler" in value:
            return getattr(wds, value["$handler"])
        if "$random" in value:
            return random.Random(value["$random"])
        return {name: made(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [made(entry) for entry in value]
    return value


def source(case):
    """The stages up to samples, as a list, or a dataset."""
    kind, urls = case["source"], [given["folder"] + url for url in case["urls"]]
    options = made(case["options"])
    if case["joined"] == "colons":
        urls = "::".join(urls)
    if kind == "dataset":
        return wds.WebDataset(urls, shardshuffle=case["shardshuffle"], **options)
    if kind == "object":
        return wds.WebDataset(wds.SimpleShardList(urls), shardshuffle=case["shardshuffle"], **options)
    seeds = {} if case["list_seed"] is None else {"seed": case["list_seed"]}
    shards: list[Any] = [wds.SimpleShardList(urls, **seeds)]
    if kind == "resampled":
        older = {"seed": None} if OURS and given["like"] == "0.2.86" else {}
        shards = [wds.ResampledShards(urls, 5, deterministic=True, **older)]
    shards += [getattr(wds, name) for name in case["splitters"]]
    if case["shard_shuffle"]:
        size, initial, seed = case["shard_shuffle"]
        shards.append(wds.shuffle(size, initial=initial, rng=random.Random(seed)))
    if kind == "uncalled":
        return [*shards, wds.tarfile_samples]
    if kind == "by_hand":
        return [*shards, tariterators.url_opener, tariterators.tar_file_expander, tariterators.group_by_keys]
    return [*shards, wds.tarfile_to_samples(**options)]


FLUENT = {"Cached": "mcached"}
NOT_FLUENT = ("associate", "detshuffle", "info")


class Chain(wds.DataPipeline, compat.FluidInterface):
    """A pipeline with the chainable methods, as programs make one."""


def maker(name):
    """What makes a stage."""
    return getattr(wds, name, None) or getattr(wds.filters, name)


def pipeline(case):
    """The pipeline of a case."""
    start = source(case)
    if isinstance(start, list):
        start = Chain(*start)
    for name, args, kw in case["stages"]:
        args, kw = made(args), made(kw)
        if case["fluent"] or name in ("listed", "unlisted", "lmdb_cached"):
            start = (
                getattr(start, FLUENT.get(name, name))(*args, **kw)
                if name not in NOT_FLUENT
                else start.compose(maker(name)(*args, **kw))
            )
        else:
            start = start.compose(maker(name)(*args, **kw))
    if case["bound"]:
        name, args = case["bound"]
        start = getattr(start, name)(*args)
    return start


def play(case):
    """What a case gives: a list of passes, each a list of items, the last of which may be an error."""
    os.environ.update(case["environment"])
    random.seed(case["number"])
    passes: list[Any] = []
    # again and again: what is raised while an object is deleted is lost
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 0.1)
    try:
        made_here = pipeline(case)
        for _ in range(case["passes"]):
            items = []
            passes.append(items)
            for item in itertools.islice(made_here, MOST):
                items.append(shown(item))
    except Hangs:
        passes.append(["hangs"])
    except Exception as error:
        passes.append({"raises": [kind.__name__ for kind in type(error).__mro__], "says": str(error)[:300]})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        for name in case["environment"]:
            del os.environ[name]
    return passes


signal.signal(signal.SIGPROF, ring)
out, sys.stdout = sys.stdout, sys.stderr
results = [play(case) for case in given["cases"]]
print(json.dumps({"version": wds.__version__, "results": results}), file=out)
