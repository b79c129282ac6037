"""The package ``webdataset``: light to import, with every public name."""

import importlib
import subprocess
import sys

import pytest

import webdataset as wds

HEAVY = ("torch", "numpy", "PIL", "yaml", "urllib3", "cloudpickle")


def loaded(code):
    """Return which heavy packages a fresh interpreter has loaded after ``code``."""
    probe = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()


def test_import_is_light():
    """Importing loads nothing heavy; neither does making a dataset."""
    assert loaded("import webdataset") == []
    assert loaded("import webdataset as wds; wds.WebDataset, wds.DataPipeline, wds.shuffle, wds.TarWriter") == []
    assert loaded("import webdataset as wds; wds.WebDataset('x.tar').shuffle(10).decode('rgb').to_tuple('a')") == []


@pytest.mark.parametrize("name", wds.__all__)
def test_every_name_resolves(name):
    """All public names are there, documented."""
    value = getattr(wds, name)
    assert name == "pytorch_weights_only" or value.__doc__


def test_modules_are_attributes():
    """Modules are reached as attributes, as with eager imports."""
    for name in ("filters", "tariterators", "shardlists", "cache", "handlers", "pipeline", "writer", "mix", "utils"):
        assert getattr(wds, name) is importlib.import_module(f"webdataset.{name}")


def test_names_that_documentation_promised():
    """They work, or say what to write."""
    assert wds.ShardList is wds.SimpleShardList
    assert list(wds.Processor(wds.map, lambda x: x + 1)([1, 2])) == [2, 3]
    with pytest.raises(AttributeError, match="wds.WebDataset"):
        wds.Dataset  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        wds.nonsense  # noqa: B018


def test_star_import():
    """``from webdataset import *`` brings the public names."""
    names = {}
    exec("from webdataset import *", names)
    assert names["WebDataset"] is wds.WebDataset
    assert "WebDataset" in dir(wds)
