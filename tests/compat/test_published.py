"""Every name of every published module: there, in the same place, and taking the same calls.

``published/*.json`` lists what 0.2.86, 0.2.111 and 1.0.2 have; ``scripts/published_names.py`` writes it by asking them.
What is left out stands in the tables below, each with its reason; what is in no table has to be here.
"""

import functools
import importlib
import inspect
import json
import os
import subprocess
import warnings
from pathlib import Path

import pytest

from webdataset import filters
from webdataset.filters import RestCurried

PUBLISHED = [json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("published/*.json"))]
Kind = inspect.Parameter
BY_PLACE = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")

# Modules that are gone: asking them for a name says what to use (test_gone_modules).
GONE = ("webdataset.bench", "webdataset.downloader", "webdataset.multi", "webdataset.typecheck")

# What a module imported for its own use from elsewhere. Programs import these from where they are.
FOREIGN = {
    "the standard library's": """Counter OrderedDict Popen PIPE SimpleNamespace argparse base64 collections copy
        dataclass datetime deque errno fcntl field fnmatch functools glob gzip hashlib importlib io islice itertools itt
        json math mmap mp multiprocessing os partial pickle quote random re reduce shutil sqlite3 struct subprocess sys
        tarfile tempfile time url2pathname urllib urlparse urlunparse uuid warnings weakref""",
    "typing's": "Any BinaryIO Callable Dict Iterable Iterator List Optional Set T T_co Tuple TypeVar Union",
    "another package's": "app braceexpand dist np typer yaml zmq Dataset Sampler",
}

LEFT_OUT = {
    ("webdataset.shardlists", "default_rng"): "the one generator of all MultiShardSample objects: pass seed= instead",
    ("webdataset.tariterators", "trace"): "prints what its own grouper does; logging and explain serve here",
    ("webdataset.cborsiterators", "filters"): "imported for its own use",
    ("webdataset.cborsiterators", "url_opener"): "imported for its own use; it is in tariterators",
    ("wids.wids", "ConcurrentDownloader"): "a part of its download, which wids_dl names with what to use",
    ("wids.wids", "open_itfs"): "a table of open files inside its dataset",
    ("wids.wids_bench", "WebDataset"): "imported for its own use",
    ("wids.wids_bench", "wids"): "imported for its own use",
    ("wids.wids_dl", "download_file_no_log"): "a step of download_file",
    ("wids.wids_index", "wids"): "imported for its own use",
    ("wids.wids_index", "wids_dl"): "imported for its own use",
}

# Parts inside wids that have no counterpart here: each says what to use instead (test_parts_that_say_what_to_use).
SAID = {
    "wids.wids_bench": "main_wds main_wids",
    "wids.wids_cleanup": "ExclusiveLock create_cleanup_background_process keep_most_recent_files",
    "wids.wids_dl": """ConcurrentDownloader ULockFile cleanup_downloads default_cmds
        max_open_objects mkresult open_objects recent_downloads splitresult vcmd verbose_cmd""",
    "wids.wids_index": """AtomicJsonUpdate format_with_suffix main_create main_info main_sample main_update maybe_decode
        maybe_read print_long_info shorten_name urldirbase urlfile""",
    "wids.wids_mmtar": "TarHeader keep_while_reading next_header parse_tar_header",
}

METHODS_LEFT_OUT = {
    ("webdataset.compat.WebDataset", "create_url_iterator"): "a step of its constructor",
    ("webdataset.compat.WebDataset", "update_cache_info"): "a step of its constructor",
    ("webdataset.writer.TarWriter", "tarmode"): "a step of its constructor, in the words of tarfile",
    ("webdataset.filters.LMDBCached", "add_samples"): "a step of its run",
    **{("wids.wids.LRUShards", name): "a part of the dataset" for name in ("items", "keys", "values", "release")},
    ("webdataset.extradatasets.repeatedly", "invoke"): "nothing called it, so theirs gave nothing; ours is iterated",
    ("webdataset.extradatasets.with_epoch", "invoke"): "nothing called it, so theirs gave nothing; ours is iterated",
    ("webdataset.extradatasets.with_length", "invoke"): "nothing called it, so theirs gave nothing; ours is iterated",
}

# (place, parameter): why its default is another one here.
OTHER_DEFAULTS = {
    ("webdataset.pipeline.DataPipeline.repeat", "nepochs"): "None and any negative number both mean: no end",
    ("webdataset.pipeline.DataPipeline.repeat", "nbatches"): "None and any negative number both mean: no bound",
    ("webdataset.shardlists.DirectoryShardList", "pattern"): "theirs matches nothing; ours also has tar.gz",
    ("webdataset.utils.repeatedly0", "nepochs"): "None: no end",
    ("webdataset.utils.repeatedly0", "nbatches"): "None: no bound",
    ("webdataset.shardlists.MSSource", "resample"): "the same: not resampled",
    ("wids.wids.ShardListDataset", "cache_size"): "the versions disagree: bytes, or shards, and neither was kept to",
    ("wids.wids.ShardListSampler", "seed"): "None is 0, as published",
    ("wids.wids.ShardedSampler", "seed"): "None is 0 in the newer form; the older one has no seed",
    ("wids.wids.ShardedSampler", "batch_size"): "the versions disagree on what it takes",
    ("wids.wids.ShardedSampler", "shuffle"): "the versions disagree on what it takes",
    ("wids.wids.DefaultLocalname", "dldir"): "not a folder that other users may write to",
    ("wids.wids.default_localname", "dldir"): "not a folder that other users may write to",
    ("wids.wids.hash_localname", "dldir"): "not a folder that other users may write to",
}

# place: why its signature is not compared.
OTHER_SIGNATURES = {
    "webdataset.extradatasets.repeatedly": "their class cannot be iterated; here it is the function of the same name",
    "wids.wids.LRUShards": "a part of the dataset, different in each version",
    "wids.wids_mmtar.MMIndexedTar": "its first argument is given by place",
}

# place: what * and ** of the published one take, spelled out here; anything else is an error that says so.
SPELLED_OUT = {
    "webdataset.filters.decode": "pre post only partial, the arguments of Decoder",
    "webdataset.filters._decode": "pre post only partial, the arguments of Decoder",
    "webdataset.gopen.Pipe.read": "a size",
    "webdataset.gopen.Pipe.readLine": "a size",
    "webdataset.gopen.Pipe.write": "bytes",
}

# Where two versions disagree on the order; test_both_orders shows that both are understood.
ORDERS = {
    ("0.2.86", "webdataset.compat.WebDataset"),
    ("0.2.86", "webdataset.shardlists.ResampledShards"),
    ("0.2.86", "webdataset.filters.shuffle"),
    ("0.2.86", "webdataset.filters._shuffle"),
}


def modules():
    """Return module name to {version: names}."""
    found = {}
    for record in PUBLISHED:
        for module, names in record["modules"].items():
            if not isinstance(names.get("error"), str):
                found.setdefault(module, {})[record["version"]] = names
    return found


def left_out(module, name):
    """Tell whether a table above says why a name is not here."""
    return (
        (module, name) in LEFT_OUT
        or name in SAID.get(module, "").split()
        or any(name in names.split() for names in FOREIGN.values())
    )


CASES = sorted(
    {
        (module, name)
        for module, versions in modules().items()
        for names in versions.values()
        for name in names
        if module not in GONE and not left_out(module, name)
    }
)


@functools.cache
def signature(thing):
    """Return a signature, of stage makers and classes too."""
    return inspect.signature(thing)


def takes(ours, place, published, *, version, bound=False):
    """Yield what is wrong with the signature of ours.

    Args:
        ours: the function, class or method.
        place: its full name.
        published: the parameters of the published one.
        version: of the published one.
        bound: leave out ``self``.
    """
    parameters = list(signature(ours).parameters.values())
    if isinstance(ours, RestCurried) or place.rpartition(".")[2].startswith("_"):
        # a maker shows the function that it curries; plain functions get their source by place, whatever it is called
        parameters = parameters[1:]
        published = published if isinstance(ours, RestCurried) else published[1:]
    if bound and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    entries = published[1:] if bound and published and published[0][0] == "self" else published
    by_place = [entry for entry in parameters if entry.kind.name in BY_PLACE]
    by_name = {entry.name: entry for entry in parameters if entry.kind.name in (*BY_PLACE[1:], "KEYWORD_ONLY")}
    kinds = {entry.kind.name for entry in parameters}
    free = "VAR_KEYWORD" in kinds
    required = {entry[0] for entry in entries if len(entry) == 2}
    for number, (name, kind, *default) in enumerate(entries):
        if kind in ("VAR_POSITIONAL", "VAR_KEYWORD"):
            if kind not in kinds and place not in SPELLED_OUT:
                yield f"{place}: takes no {'*' if kind == 'VAR_POSITIONAL' else '**'}{name}"
            continue
        if name not in by_name and not free:
            yield f"{place}: has no parameter {name}"
            continue
        if kind in BY_PLACE and (version, place) not in ORDERS and "VAR_POSITIONAL" not in kinds:
            here = by_place[number].name if number < len(by_place) else None
            if here != name:
                yield f"{place}: place {number} is {here}, not {name}"
        if default and name in by_name:
            yield from other_default(place, by_name[name], default[0])
    for name, entry in by_name.items():
        if entry.default is Kind.empty and name not in required:
            yield f"{place}: requires {name}, which the published one does not"


def other_default(place, parameter, published):
    """Yield what is wrong with one default; only simple values are compared."""
    if parameter.default is Kind.empty:
        yield f"{place}: {parameter.name} has no default"
    elif isinstance(published, list) and parameter.default != published[0]:
        method = place.rpartition(".")[2]
        if not any(there == place or there.endswith(f".{method}")
                   for there, name in OTHER_DEFAULTS if name == parameter.name):  # fmt: skip
            yield f"{place}: {parameter.name}={parameter.default!r}, published {published[0]!r}"


def wrong(module, name, version, entry):
    """Yield what is wrong with one name of one version; what it re-exports is compared where it is defined."""
    ours = getattr(importlib.import_module(module), name)
    place = f"{module}.{name}"
    if entry["kind"] == "stage maker" and module != entry.get("home") and hasattr(filters, name):
        place = f"webdataset.filters.{name}"
    if "parameters" in entry:
        assert callable(ours), f"{place} is not callable"
        if (
            entry["parameters"] is not None
            and place not in OTHER_SIGNATURES
            and not (inspect.isclass(ours) and issubclass(ours, Exception))
        ):
            yield from takes(ours, place, entry["parameters"], version=version)
    for method, parameters in entry.get("methods", {}).items():
        if (place, method) in METHODS_LEFT_OUT:
            continue
        if not hasattr(ours, method):
            yield f"{place} has no method {method}"
        elif isinstance(parameters, list) and not method.startswith("__"):
            yield from takes(getattr(ours, method), f"{place}.{method}", parameters, version=version, bound=True)


@pytest.mark.parametrize(("module", "name"), CASES, ids=[".".join(case) for case in CASES])
def test_published_name(module, name):
    """It can be imported from the same place, and takes every call that each published version takes."""
    if module.startswith("wids") or name in ("DataLoader", "TorchTensor"):
        pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            f"{version}: {fault}"
            for version, names in modules()[module].items()
            if name in names
            for fault in wrong(module, name, version, names[name])
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", sorted(set(modules()) - set(GONE)))
def test_published_module(module):
    """Every module can be imported by its own name."""
    if module.startswith("wids"):
        pytest.importorskip("torch")
    assert importlib.import_module(module).__doc__


def test_tables_hold_nothing_else():
    """Every entry of the tables above is a name that some published version has."""
    there = {(module, name) for module, versions in modules().items() for names in versions.values() for name in names}
    names = {name for _, name in there}
    assert {name for words in FOREIGN.values() for name in words.split()} <= names
    assert set(LEFT_OUT) <= there
    assert set(GONE) <= set(modules())
    for place in [place for place, _ in METHODS_LEFT_OUT] + [place for _, place in ORDERS] + [*OTHER_SIGNATURES]:
        assert tuple(place.rsplit(".", 1)) in there
    for place, method in METHODS_LEFT_OUT:
        module, _, name = place.rpartition(".")
        assert not hasattr(getattr(importlib.import_module(module), name), method), f"{method} is here: off the table"
    assert {(module, name) for module, names in SAID.items() for name in names.split()} <= there
    for module, name in LEFT_OUT:
        assert not hasattr(importlib.import_module(module), name), f"{name} is here: take it off the table"


GONE_CASES = [
    (module, name)
    for module, versions in sorted(modules().items())
    if module in GONE
    for name in sorted({name for names in versions.values() for name in names})
    if not left_out(module, name)
]


@pytest.mark.parametrize(("module", "name"), GONE_CASES, ids=[".".join(case) for case in GONE_CASES])
def test_gone_modules(module, name):
    """They can be imported, and say what to use, also to ``from … import``."""
    home = importlib.import_module(module)
    with pytest.raises(AttributeError, match="use|time"):
        getattr(home, name)
    with pytest.raises(ImportError, match="use|time"):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize("module", SAID)
def test_parts_that_say_what_to_use(module):
    """A part that has no counterpart says what to use instead."""
    home = importlib.import_module(module)
    for name in SAID[module].split():
        with pytest.raises(AttributeError, match=rf"{name}.*: \w+"):
            getattr(home, name)


@pytest.mark.once
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("variable", "version"), [("WDS_ORACLE_086", "0.2.86"), ("WDS_ORACLE_111", "0.2.111"), ("WDS_ORACLE_102", "1.0.2")]
)
def test_tables_are_what_the_published_versions_say(variable, version, tmp_path):
    """The script, run again, finds the same names."""
    python = os.environ.get(variable)
    if python is None or not Path(python).exists():
        pytest.skip(f"{variable} names no environment with webdataset {version}")
    script = Path(__file__).parents[2] / "scripts/published_names.py"
    subprocess.run([python, str(script), str(tmp_path)], check=True, capture_output=True, cwd=tmp_path)
    found = json.loads((tmp_path / f"{version}.json").read_text())["modules"]
    recorded = next(record for record in PUBLISHED if record["version"] == version)["modules"]
    compared = [name for name, names in found.items() if not isinstance(names.get("error"), str)]
    assert len(compared) > 10
    for module in compared:
        assert set(found[module]) == set(recorded[module]), module
