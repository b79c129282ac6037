"""The compatibility module ``gopen``: a module and a function."""

import importlib
import io
import multiprocessing
import pickle

import pytest

import webdataset as wds


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A small file in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tar").write_bytes(b"hello")
    return "x.tar"


@pytest.fixture
def gopen_module(monkeypatch):
    """The module, with its table of schemes restored afterwards."""
    module = importlib.import_module("webdataset.gopen")
    before = dict(module.gopen_schemes)
    yield module
    module.gopen_schemes.clear()
    module.gopen_schemes.update(before)


def content(stream):
    """Read and close."""
    with stream:
        return stream.read()


def test_it_is_a_function(file):
    """``wds.gopen(url)``, positional and keyword arguments."""
    assert callable(wds.gopen)
    assert content(wds.gopen(file)) == b"hello"
    assert content(wds.gopen(url=file, mode="rb", bufsize=10)) == b"hello"
    assert content(wds.gopen(f"pipe:cat {file}")) == b"hello"
    with wds.gopen("y", "wb") as stream:
        stream.write(b"y")
    assert content(wds.gopen("y")) == b"y"


def test_it_is_a_module(file, gopen_module):
    """Every way of importing gives the same thing."""
    import webdataset.gopen as module
    from webdataset.gopen import Pipe, gopen, gopen_pipe, gopen_schemes, info, reader, set_options

    assert module is wds.gopen is gopen_module
    assert wds.gopen.gopen_schemes is gopen_schemes is wds.gopen_schemes
    assert content(wds.gopen.gopen(file)) == content(gopen(file)) == content(reader(file)) == b"hello"
    with gopen_pipe(f"pipe:cat {file}") as pipe:
        assert isinstance(pipe, Pipe)
        assert set_options(pipe, timeout=3)
        assert pipe.read() == b"hello"
    info["mine"] = 1
    assert gopen_module.info.pop("mine") == 1
    assert {"__default__", "pipe", "http", "https", "sftp", "ftps", "scp", "gs", "ais"} <= set(gopen_schemes)


def test_openers_have_upstreams_names(file, gopen_module):
    """gopen_file, gopen_curl and the others exist."""
    assert content(gopen_module.gopen_file(f"file:{file}")) == content(gopen_module.gopen_file(file)) == b"hello"
    assert all(
        map(
            callable,
            (gopen_module.gopen_curl, gopen_module.gopen_gsutil, gopen_module.gopen_ais, gopen_module.gopen_error),
        )
    )
    assert gopen_module.rewrite_url(file) == file
    with pytest.raises(AttributeError, match="nothing"):
        _ = gopen_module.nothing


def test_a_replaced_scheme_is_honoured(gopen_module):
    """An entry of the table serves function, module and reader."""
    gopen_module.gopen_schemes["mine"] = lambda url, mode, bufsize, **kw: io.BytesIO(url.encode())
    assert content(wds.gopen("mine:x")) == b"mine:x"
    assert content(gopen_module.open_stream("mine://y")) == b"mine://y"


def test_a_replaced_table_is_honoured(gopen_module, monkeypatch):
    """Even a new table."""
    monkeypatch.setattr(gopen_module, "gopen_schemes", {"mine": lambda *_, **__: io.BytesIO(b"new")})
    assert content(wds.gopen("mine:x")) == b"new"


def test_a_replaced_gopen_is_honoured(file, gopen_module, monkeypatch):
    """Assigning ``gopen`` turns calls of the module, ``reader`` and the shard reader's opener."""
    assert content(gopen_module.open_stream(file)) == b"hello"
    monkeypatch.setattr(gopen_module, "gopen", lambda url, *_, **__: io.BytesIO(b"patched"))
    assert content(wds.gopen(file)) == b"patched"
    assert content(gopen_module.reader(file)) == b"patched"
    assert content(gopen_module.open_stream(file)) == b"patched"


def test_it_pickles():
    """A pipeline may hold it and travel, also to a spawned process."""
    cloudpickle = pytest.importorskip("cloudpickle")
    for library in (pickle, cloudpickle):
        assert library.loads(library.dumps(wds.gopen)) is wds.gopen


def test_it_travels_to_a_spawned_process():
    """A spawned process gets the same callable."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(callable, (wds.gopen,))


def test_trust(file, gopen_module):
    """The reader's opener takes a dataset's trust."""
    with pytest.raises(ValueError, match="pipe URLs"):
        gopen_module.open_stream("pipe:cat x", trust="strict")
