"""What the pipelines of this folder are written with. Runs under each version; imports nothing but what it compares."""

import hashlib
import itertools
import json
import os
import random
import sys
import tarfile
import time
from pathlib import Path

sys.path += filter(None, os.environ.get("KIT_MORE_PATHS", "").split(os.pathsep))  # torch, for who has none

import numpy as np  # noqa: E402

import webdataset as wds  # noqa: E402

TABLE = {}
FOLDER = OUT = ""
OURS = hasattr(wds, "WebDatasetError") or not wds.__version__.startswith(("0.", "1."))
V086 = wds.__version__.startswith("0.2.")
MOST = 400

time.sleep = lambda seconds: None  # published warning handlers sleep half a second


def pipeline(function):
    """Enter a pipeline into the table under its name."""
    assert function.__name__ not in TABLE
    TABLE[function.__name__] = function
    return function


def shards(*names):
    """Paths of shards."""
    return [f"{FOLDER}/{name}.tar" for name in names]


def train():
    """The url expression of the four good shards."""
    return FOLDER + "/train-{000..003}.tar"


def dataset(*names, **kw):
    """The shards of these names, or the four good ones, in order, the fluent way."""
    return wds.WebDataset(shards(*names) if names else train(), shardshuffle=False, **kw)


def out(name):
    """A path for a shard that the other versions read back."""
    return f"{OUT}/written/{name}"


def scratch(name):
    """A path for anything else."""
    return f"{OUT}/scratch/{name}"


def keys(samples):
    """Keys of samples."""
    return [sample["__key__"] for sample in samples]


def taken(count, samples):
    """The first so many."""
    return list(itertools.islice(iter(samples), count))


def drawn(seed):
    """Seed the draws of mixes: by a keyword here, by the global generator there."""
    random.seed(seed)
    return {"seed": seed} if OURS else {}


def placed(rank=0, world=1, worker=0, workers=1):
    """Say by the environment which process of how many this is."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), WORKER=str(worker), NUM_WORKERS=str(workers))


def attempt(function):
    """What a function gives, or how it fails."""
    try:
        return shown(function())
    except Exception as error:
        return raised(error)


def raised(error):
    """The classes of an error; those that wrap another show both."""
    cause = error.__cause__
    wrapped = [kind.__name__ for kind in type(cause).__mro__] if cause is not None else []
    return {"raises": [kind.__name__ for kind in type(error).__mro__], "from": wrapped}


def listing(path):
    """The members of an archive by the standard library: name, payload, mode, owner."""
    with tarfile.open(path) as archive:
        return [
            [entry.name, digest(archive.extractfile(entry).read()), entry.mode, entry.uname, entry.gname, entry.uid]
            for entry in archive
        ]


def digest(content):
    """A short name for bytes; short ones show themselves."""
    content = bytes(content)
    return content.decode("latin-1") if len(content) < 24 else hashlib.sha256(content).hexdigest()[:24]


def shown(value):
    """JSON for a value: its type where JSON has none like it, arrays and pictures by content."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": digest(value)}
    if isinstance(value, np.ndarray):
        content = [shown(entry) for entry in value.tolist()] if value.dtype.hasobject else digest(value.tobytes())
        return {"array": [str(value.dtype), list(value.shape), content]}
    if isinstance(value, np.generic):
        return {"scalar": [str(value.dtype), repr(value.item())]}
    if type(value).__module__ == "torch":
        return {"tensor": [str(value.dtype), list(value.shape), digest(value.contiguous().numpy().tobytes())]}
    if type(value).__module__.startswith("PIL"):
        return {"picture": [value.mode, list(value.size), digest(value.tobytes())]}
    if hasattr(value, "files") and not isinstance(value, dict):
        value = dict(value)
    if isinstance(value, dict):
        return {str(name): shown(entry) for name, entry in value.items() if name != "__local_path__"}
    if isinstance(value, tuple):
        return {"tuple": [shown(entry) for entry in value]}
    if isinstance(value, list):
        return [shown(entry) for entry in value]
    if isinstance(value, str):
        return value.replace(OUT, "OUT").replace(FOLDER, "FOLDER")
    if isinstance(value, float):
        return {"float": repr(value)}
    return value if value is None or isinstance(value, (int, bool)) else repr(value)


def outcome(function):
    """All that a pipeline gives, in order, or what it gives before an error, and the error."""
    placed()
    random.seed(0)
    items = []
    try:
        found = function()
        if isinstance(found, dict):
            return shown(found)
        for entry in found:
            items.append(shown(entry))
            if len(items) >= MOST:
                break
    except Exception as error:
        items.append(raised(error))
    return items


def read_back(place):
    """What this version reads from every shard below a folder."""
    found = {}
    for path in sorted(Path(place, "written").rglob("*.tar*")):
        source = wds.WebDataset(str(path), shardshuffle=False).decode("rgb8")
        samples = attempt(lambda: [{k: v for k, v in sample.items() if k != "__url__"} for sample in source])
        found[path.name] = samples
    return found


def main():
    """Run the table over a folder, and read what other versions wrote, as standard input says; print what comes."""
    global FOLDER, OUT
    given = json.loads(sys.stdin.buffer.read())
    FOLDER, OUT = given["folder"], given["out"]
    for place in (out(""), scratch("")):
        os.makedirs(place, exist_ok=True)
    here = Path(__file__).parent
    sys.path.insert(0, str(here))
    sys.modules["kit"] = sys.modules[__name__]
    for module in given["modules"]:
        __import__(module)
    seen = {name: outcome(function) for name, function in TABLE.items()}
    read = {name: read_back(place) for name, place in given["read"].items()}
    sys.stdout.write(json.dumps({"version": wds.__version__, "seen": seen, "read": read}))


if __name__ == "__main__":
    main()
