"""Settings, seeds, policies, redaction, trust, places and optional packages."""

import importlib
import random
import subprocess
import sys
import threading
import time

import pytest

import webdataset as wds
from webdataset.core import distributed, error_handlers, optional_imports, redaction, seeds, settings, trust
from webdataset.core.errors import MissingExtra, Truncated, UsageError


def test_settings_are_read_when_asked(monkeypatch):
    """The environment counts at the moment of asking; empty counts as unset."""
    monkeypatch.delenv("WDS_SEED", raising=False)
    assert settings.SEED.get() is None
    monkeypatch.setenv("WDS_SEED", "12")
    assert settings.SEED.get() == 12
    monkeypatch.setenv("WDS_SEED", "")
    assert settings.SEED.get() is None
    monkeypatch.setenv("WDS_SEED", "twelve")
    with pytest.raises(UsageError, match="WDS_SEED='twelve'"):
        settings.SEED.get()


@pytest.mark.parametrize(("text", "on"), [("1", True), ("yes", True), ("0", False), ("false", False), ("off", False)])
def test_switches(monkeypatch, text, on):
    """Switches take the usual words."""
    monkeypatch.setenv("WDS_SECURE", text)
    assert settings.SECURE.get() is on


def test_sizes_and_words(monkeypatch):
    """Sizes may be written as floats, schemes between colons."""
    monkeypatch.setenv("WDS_CACHE_SIZE", "1e9")
    monkeypatch.setenv("USE_AIS_FOR", "gs:s3")
    assert settings.CACHE_SIZE.get() == 1_000_000_000
    assert settings.USE_AIS_FOR.get() == ("gs", "s3")


CHOICES = {
    "WDS_CHANGED_SHARDS": (settings.CHANGED_SHARDS, "not error or warn"),
    "WDS_MISSING_END": (settings.MISSING_END, "not warn, error or ignore"),
    "WDS_GOPEN_BACKEND": (settings.GOPEN_BACKEND, "not native or cli"),
    "WDS_CACHE_REVALIDATE": (settings.CACHE_REVALIDATE, "not never, once or always"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_settings_that_choose_refuse_other_words(monkeypatch, name):
    """A misspelt choice is an error that lists the choices, not the default."""
    variable, choices = CHOICES[name]
    monkeypatch.setenv(name, "wran")
    with pytest.raises(UsageError, match=f"{name}='wran' cannot be read: {choices}"):
        variable.get()


def test_substitutions(monkeypatch):
    """``${NAME}`` is ``WDS_NAME``; a missing one is named."""
    monkeypatch.setenv("WDS_BUCKET", "b")
    assert settings.substitution_text("BUCKET") == "b"
    with pytest.raises(UsageError, match="WDS_NOWHERE"):
        settings.substitution_text("NOWHERE")
    assert settings.expand_environment("$WDS_BUCKET/x") == "b/x"
    assert settings.child_environment(WDS_X="1")["WDS_X"] == "1"


def test_seeds_do_not_depend_on_the_process():
    """``fold`` is the same in every process and distinguishes types and places."""
    code = "from webdataset.core.seeds import hash_seed; print(hash_seed('a', 1, None))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{seeds.hash_seed('a', 1, None)}\n"}
    assert len({seeds.hash_seed(1), seeds.hash_seed("1"), seeds.hash_seed(1, 1), seeds.hash_seed()}) == 4
    assert seeds.make_rng("x").random() == seeds.make_rng("x").random()
    assert seeds.random_seed() != seeds.random_seed()


def test_handlers():
    """The five handlers: raise, go on, stop, with and without a warning."""
    error = Truncated("cut", url="u")
    with pytest.raises(Truncated):
        error_handlers.reraise_exception(error)
    assert error_handlers.ignore_and_continue(error) is True
    assert error_handlers.ignore_and_stop(error) is False
    with pytest.warns(UserWarning, match="cut"):
        assert error_handlers.warn_and_continue(error) is True
    with pytest.warns(UserWarning, match="Truncated"):
        assert error_handlers.warn_and_stop(error) is False


def test_warnings_do_not_sleep(monkeypatch):
    """Upstream sleeps half a second for each warning."""
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("slept"))
    with pytest.warns(UserWarning, match="ValueError"):
        error_handlers.warn_and_continue(ValueError("x"))


def test_located():
    """Places become attributes of our errors and notes on others."""
    assert error_handlers.with_location(Truncated("x"), url="u").url == "u"
    error = error_handlers.with_location(ValueError("x"), url="http://me:pw@h/", key=None)
    assert error.__notes__ == ["in url='http://***@h/'"]
    assert not hasattr(error_handlers.with_location(ValueError("x")), "__notes__")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("https://h/x?sig=abc&token=def&n=1", "https://h/x?sig=***&token=***&n=1"),
        ("pipe:curl -H 'Authorization: Bearer abc' http://h/x", "pipe:curl -H 'Authorization: ***' http://h/x"),
        ("/plain/path?x=1.tar", "/plain/path?x=1.tar"),
    ],
)
def test_redaction(url, shown):
    """Credentials are replaced, everything else is left."""
    assert redaction.redact(url) == shown


def test_trust(monkeypatch):
    """Enforced security wins; then the asked level; then the environment; then safe."""
    monkeypatch.delenv("WDS_SECURE", raising=False)
    monkeypatch.delenv("WDS_TRUST", raising=False)
    assert trust.trust_level() == "safe"
    assert trust.trust_level("full") == "full"
    monkeypatch.setenv("WDS_TRUST", "full")
    assert trust.trust_level() == "full"
    assert trust.trust_level("safe") == "safe"
    assert trust.trust_level("full", enforced=True) == "strict"
    monkeypatch.setenv("WDS_SECURE", "1")
    assert trust.trust_level("full") == "strict"
    monkeypatch.setenv("WDS_SECURE", "0")
    with pytest.raises(UsageError, match="blind"):
        trust.trust_level("blind")


def test_places(monkeypatch):
    """The environment says rank and worker; both variables are needed."""
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.worker_context() == (0, 1, 0, 1)
    monkeypatch.setenv("RANK", "3")
    assert distributed.worker_context().rank == 0
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert distributed.worker_context() == (3, 8, 1, 2)


def test_extras():
    """A missing package is named with its extra; nothing is imported for a question."""
    assert optional_imports.require("json", extra="x", purpose="this").dumps(1) == "1"
    with pytest.raises(MissingExtra, match=r"reading minds needs no_such_package: pip install -e '?/.+\[minds\]'"):
        optional_imports.require("no_such_package.part", extra="minds", purpose="reading minds")
    with pytest.raises(ImportError):
        optional_imports.require("no_such_package", extra="minds", purpose="reading minds")
    assert optional_imports.import_if_available("no_such_package") is None
    assert optional_imports.import_if_available("json") is not None
    assert optional_imports.loaded_module("no_such_package") is None


def test_a_package_that_fails_to_load(tmp_path, monkeypatch):
    """One that is installed, and lacks a library of its own, is named together with what it lacks."""
    (tmp_path / "broken_package.py").write_text('raise ImportError("libbroken.so.12: cannot open shared object file")')
    (tmp_path / "lacking_package.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in (
        ("broken_package", "libbroken.so.12"),
        ("lacking_package", "No module named 'no_such_package'"),
    ):
        with pytest.raises(MissingExtra, match=f"minds'?\\]' .importing it fails: {words}"):
            optional_imports.require(name, extra="minds", purpose="reading minds")


def test_seeded_generators_are_pythons():
    """Generators are ordinary ``random.Random``."""
    assert isinstance(seeds.make_rng(1), random.Random)


SLOW_PACKAGE = """
import time
open({started!r}, "w").close()
while not __import__("os").path.exists({go!r}):
    time.sleep(0.01)
value = 7
"""


@pytest.fixture
def slow_package(tmp_path, monkeypatch):
    """Return a function that lets another thread import a package of some name, and says when it may go on."""
    started, go = tmp_path / "started", tmp_path / "go"
    threads, names = [], []

    def begin(name):
        (tmp_path / f"{name}.py").write_text(SLOW_PACKAGE.format(started=str(started), go=str(go)))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        names.append(name)
        thread = threading.Thread(target=importlib.import_module, args=(name,))
        thread.start()
        threads.append(thread)
        while not started.exists():
            time.sleep(0.01)
        threading.Timer(1.0, go.touch).start()

    yield begin
    go.touch()
    for thread in threads:
        thread.join()
    for name in names:
        sys.modules.pop(name, None)


def test_a_module_that_another_thread_is_importing_is_waited_for(slow_package):
    """It is whole when it is given."""
    slow_package("slow_library")
    assert optional_imports.loaded_module("slow_library").value == 7
    assert optional_imports.loaded_module("no_library") is None


def test_a_fork_waits_for_imports_of_other_threads(slow_package, monkeypatch):
    """A worker that wants such a module would wait for a thread that it does not have."""
    monkeypatch.setattr(optional_imports, "_PACKAGES", frozenset(["slow_for_workers"]))
    # what this imports takes longer than the package
    with wds.Loader([1], 1, workers=1, mode="processes", start_method="fork") as loader:
        assert len(list(loader)) == 1
    slow_package("slow_for_workers")

    def use(number):
        import slow_for_workers  # type: ignore[import-not-found]

        return number * slow_for_workers.value

    dataset = wds.DataPipeline([list(range(8))], wds.map(use))
    with wds.Loader(dataset, 4, workers=1, mode="processes", start_method="fork", timeout=60) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 7, 14, 21], [28, 35, 42, 49]]
