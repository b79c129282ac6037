"""What is loaded when: little by the first look at a name, the rest by whoever needs it first."""

import ast
import inspect
import pickle
import subprocess
import sys
import threading

import pytest

import webdataset as wds
from webdataset import compat, filters, shardlists, writer
from webdataset.core import distributed, errors
from webdataset.core.logs import log
from webdataset.core.optional_imports import is_instance_by_name
from webdataset.flow.elastic_pipeline import ElasticPipeline
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lists import ResampledShards, SimpleShardList
from webdataset.storage.open_url import load_openers
from webdataset.testing import archives

COMPATIBILITY_MODULES = [filters, shardlists, compat, writer]
BACKENDS = "aistore azure fsspec_store gcs http huggingface memory pipe s3 sftp".split()
FAR = [
    "_ssl", "asyncio", "boto3", "botocore", "bz2", "concurrent.futures", "email", "hashlib", "importlib.metadata",
    "logging", "lzma", "multiprocessing", "pickle", "socket", "ssl", "subprocess", "tarfile", "torch", "urllib.parse",
    "urllib.request", "urllib3",
    "webdataset.caching", "webdataset.flow.elastic", "webdataset.index", "webdataset.loading",
    "webdataset.shards.specs", "webdataset.shards.wids_lists", "webdataset.storage.listing",
    "webdataset.storage.object_store",
    "webdataset.storage.parallel_ranges", "webdataset.storage.resumable_stream", "webdataset.writing",
    *(f"webdataset.storage.backends.{name}" for name in BACKENDS), "webdataset.storage.profile_registry",
]  # fmt: skip


def loaded(code, *argv):
    """Return the modules that a fresh interpreter has loaded by ``code``, besides those it starts with."""
    probe = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-W", "ignore", "-c", probe, *argv]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def ours(modules):
    """Return those of this package."""
    return {name for name in modules if name.partition(".")[0] == "webdataset"}


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard of texts and numbers."""
    path = tmp_path_factory.mktemp("importing") / "a.tar"
    members = [(f"{n}.{end}", b"%d" % n) for n in range(8) for end in ("cls", "json", "txt")]
    path.write_bytes(archives.by_hand(members))
    return str(path)


# -- how much


def test_the_class_of_datasets_is_light():
    """Looking up ``wds.WebDataset`` loads what reading local shards takes, and nothing of what it does not."""
    modules = loaded("import webdataset as wds; wds.WebDataset")
    assert len(modules) <= 150
    assert len(ours(modules)) < 95
    assert not modules.intersection([*FAR, "json", "numpy", "PIL"])


def test_a_local_pipeline_is_light(shard):
    """A shuffled, decoded, batched local dataset loads no client, no cache, no protocol, no other archive reader."""
    code = (
        "import webdataset as wds\n"
        "dataset = wds.WebDataset(sys.argv[1]).shuffle(3).decode().to_tuple('txt', 'json', 'cls')\n"
        "dataset = dataset.map_tuple(str, str, str).batched(4, collation_fn=None).unlisted()\n"
        "assert len(list(dataset)) == 8"
    )
    modules = loaded(code, shard)
    assert len(ours(modules)) < 125
    allowed = {"email", "importlib.metadata", "socket", "bz2", "lzma", "urllib.parse", "logging"}  # of msgspec
    assert not modules.intersection(set(FAR) - allowed)
    assert not modules.intersection(["numpy", "PIL"])


def test_formats_that_are_not_met_are_not_loaded(shard):
    """Text needs neither pickles nor the entry points of installed packages; an image handler that claims ends it."""
    text = "import webdataset as wds; list(wds.WebDataset(sys.argv[1]).decode(only='txt'))"
    assert not loaded(text, shard).intersection(
        ["pickle", "importlib.metadata", "webdataset.codecs.safe_pickle", "numpy"]
    )
    picture = "from webdataset.codecs.decoder import Decoder; Decoder('rgb8')._plan_field('png')"  # numpy brings pickle
    assert not loaded(picture, shard).intersection(["importlib.metadata", "webdataset.codecs.safe_pickle", "PIL"])


def test_writers_are_light(tmp_path):
    """A writer of local shards loads no reader, no document, no compression."""
    code = (
        "import webdataset as wds\n"
        "with wds.TarWriter(sys.argv[1]) as sink:\n"
        "    sink.write({'__key__': 'a', 'txt': 'b'})"
    )
    modules = loaded(code, str(tmp_path / "a.tar"))
    assert len(ours(modules)) < 50
    assert not modules.intersection([*(set(FAR) - {"webdataset.writing"}), "numpy", "webdataset.stages"])


# -- compatibility modules


@pytest.mark.parametrize("compatibility", COMPATIBILITY_MODULES, ids=lambda compatibility: compatibility.__name__)
def test_type_checkers_and_programs_see_the_same_names(compatibility):
    """What a compatibility module serves is what it imports for type checkers, from the same modules."""
    (typed,) = (
        node
        for node in ast.parse(inspect.getsource(compatibility)).body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    seen = {node.module.removeprefix("webdataset."): sorted(alias.name for alias in node.names) for node in typed.body}
    assert seen == {home: sorted(names.split()) for home, names in compatibility._LAZY_NAMES.items()}


@pytest.mark.parametrize("compatibility", COMPATIBILITY_MODULES, ids=lambda compatibility: compatibility.__name__)
def test_every_served_name_is_there(compatibility):
    """Listed, public, and the thing itself."""
    for home, names in compatibility._LAZY_NAMES.items():
        for name in names.split():
            assert name in dir(compatibility)
            assert name in compatibility.__all__
            assert getattr(compatibility, name) is getattr(sys.modules[f"webdataset.{home}"], name)


def test_names_are_listed_before_they_are_used():
    """``dir`` and ``import *`` know all of them in a process that has used none."""
    code = (
        "from webdataset import filters, shardlists, compat, writer\n"
        "assert all(set(module.__all__) <= set(dir(module)) for module in (filters, shardlists, compat, writer))\n"
        "from webdataset.filters import *\n"
        "assert shuffle(3) and LMDBCached"
    )
    loaded(code)


def test_a_name_replaced_before_its_first_use_turns_the_library():
    """What a program puts into a compatibility module stays there, however the name is looked up later."""
    code = (
        "import webdataset as wds\n"
        "from webdataset import filters\n"
        "filters.shuffle = lambda size, **kw: len\n"
        "from webdataset.stages import shuffle\n"
        "assert wds.WebDataset('a.tar').shuffle(3).pipeline[-1] is len\n"
        "assert wds.shuffle is filters.shuffle"
    )
    loaded(code)


def test_unknown_names_are_errors():
    """An AttributeError names the compatibility module."""
    with pytest.raises(AttributeError, match=r"webdataset\.filters.*nonsense"):
        filters.nonsense  # noqa: B018


def test_threads_find_one_thing():
    """Threads that ask at once for names nobody has asked for get the same objects."""
    code = (
        "import threading\n"
        "import webdataset as wds\n"
        "gate, found = threading.Barrier(8), []\n"
        "def ask():\n"
        "    gate.wait()\n"
        "    found.append((wds.WebDataset, wds.shuffle, wds.filters.decode, wds.ShardWriter, wds.DirectoryShardList))\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(found) == 8 and len(set(found)) == 1"
    )
    loaded(code)


# -- what moved keeps its name


def test_errors_are_known_by_their_old_names():
    """Those that are errors of tarfile and pickle are served by ``errors``, and pickle by that name."""
    for name in ("TarError", "BadHeader", "Truncated", "LimitExceeded", "BadCompression", "UnsafeContent"):
        kind = getattr(errors, name)
        assert (kind.__module__, kind.__qualname__) == ("webdataset.core.errors", name)
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert f"webdataset.core.errors\n{name}".encode() in pickle.dumps(kind, 0)
    with pytest.raises(ImportError):
        from webdataset.core.errors import Nonsense  # noqa: F401


def test_damage_is_told_where_nobody_has_loaded_tarfile(tmp_path):
    """The error is made when it is needed, and is one of tarfile, too."""
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand([("a.txt", b"x" * 600)])[:700])
    code = (
        "import webdataset as wds\n"
        "assert 'tarfile' not in sys.modules\n"
        "try:\n"
        "    list(wds.WebDataset(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    import tarfile\n"
        "    assert isinstance(error, tarfile.ReadError) and type(error).__name__ == 'Truncated'\n"
        "else:\n"
        "    sys.exit('no error')"
    )
    loaded(code, str(path))


def test_elastic_pipelines_are_known_by_their_old_name():
    """``webdataset.flow.pipeline.ElasticPipeline``, in pickles too."""
    from webdataset.flow import pipeline

    assert pipeline.ElasticPipeline is ElasticPipeline
    assert b"webdataset.flow.pipeline\nElasticPipeline" in pickle.dumps(ElasticPipeline, 0)


# -- small things that make it so


def test_is_of_asks_without_importing():
    """True for instances of a class that is loaded, false where the module or the class is not."""
    assert is_instance_by_name(threading.current_thread(), "threading", "Thread")
    assert not is_instance_by_name(3, "threading", "Thread")
    assert not is_instance_by_name(3, "no_such_module", "Thing")
    assert not is_instance_by_name(3, "threading", "NoSuchThing")


def test_the_logger_is_made_when_it_is_used(caplog):
    """Messages arrive at the logger ``webdataset``, with the caller's place."""
    log.warning("seen %d", 3)
    (record,) = caplog.records
    assert (record.name, record.getMessage(), record.filename) == ("webdataset", "seen 3", "test_importing.py")


def test_nothing_is_spawned_while_multiprocessing_is_not_loaded(monkeypatch):
    """Only what ``multiprocessing`` pickles for a new process counts as a journey there."""
    from multiprocessing import context

    assert not distributed.is_spawning()
    context.set_spawning_popen(object())  # type: ignore[arg-type]
    try:
        assert distributed.is_spawning()
    finally:
        context.set_spawning_popen(None)
    monkeypatch.delitem(sys.modules, "multiprocessing.context")
    assert not distributed.is_spawning()


def test_readings_travel_without_profiles(shard):
    """Pickling a local dataset's rules loads nothing about credentials."""
    code = (
        "import pickle\n"
        "from webdataset.samples.sample_reader import Reading\n"
        "assert pickle.loads(pickle.dumps(Reading(lcase=False))).lcase is False"
    )
    assert "webdataset.storage.profile_registry" not in loaded(code, shard)
    assert pickle.loads(pickle.dumps(Reading(lcase=False))) == Reading(lcase=False)


# -- before workers start


@pytest.mark.parametrize(
    ("url", "backend"),
    [("https://host/a.tar", "http"), ("s3://bucket/a.tar", "s3"), ("pipe:cat a.tar", "pipe"), ("memory://a", "memory")],
)
def test_backends_are_loaded_by_whoever_holds_their_urls(url, backend):
    """A list of shards loads what opens them, in the process that makes it; workers are forked from that."""
    code = "import webdataset as wds\nwds.WebDataset(['a.tar', sys.argv[1]])"
    modules = loaded(code, url)
    assert f"webdataset.storage.backends.{backend}" in modules
    assert ("webdataset.storage.resumable_stream" in modules) == (backend != "pipe")
    assert not modules.intersection(["urllib3", "botocore"])
    assert not ours(loaded(code, "b.tar")).intersection(f"webdataset.storage.backends.{name}" for name in BACKENDS)


def test_each_list_prepares(monkeypatch):
    """Both kinds of lists say which urls they hold."""
    seen = []
    monkeypatch.setattr("webdataset.shards.lists.load_openers", seen.append)
    SimpleShardList(["a", "b"])
    ResampledShards(["c"])
    assert seen == [["a", "b"], ["c"]]


def test_preparing_is_quiet(monkeypatch):
    """What cannot be loaded, or read, is said when it is opened; objects that are open need nothing."""
    load_openers([sys.stdin, "no-such-scheme://x", "a.tar", "c:x", "", "-"])
    monkeypatch.setenv("WDS_REWRITE", "(=s3://x")
    load_openers(["a.tar"])
    with pytest.raises(errors.UsageError, match="WDS_REWRITE"):
        wds.gopen("a.tar")
