"""The compatibility modules ``utils`` and ``cache``."""

import subprocess
import sys

import pytest

import webdataset as wds
from webdataset import cache, utils
from webdataset.core import trust


@pytest.fixture(autouse=True)
def _switch():
    yield
    trust.security_override.replaced = None


def test_names():
    """What callers import is there."""
    assert wds.PipelineStage is utils.PipelineStage
    assert wds.repeatedly is utils.repeatedly
    assert utils.pytorch_worker_info() == (0, 1, 0, 1)
    assert utils.pytorch_worker_seed() == 0
    assert utils.make_seed(1, 2) == 33
    assert utils.identity(1) == 1
    assert utils.is_iterable([])
    assert utils.lookup_sym("join", ["os.path"])
    with pytest.raises(ValueError, match="ast.literal_eval"):
        utils.safe_eval("3", "{}+1")
    assert wds.pipe_cleaner is cache.pipe_cleaner
    assert wds.LRUCleanup is cache.LRUCleanup


def test_enforce_security_is_a_switch(tmp_path):
    """Assigning it makes the process strict at once, and assigning False undoes it."""
    assert utils.enforce_security is False
    assert trust.trust_level("full") == "full"
    utils.enforce_security = True
    assert utils.enforce_security is True
    assert trust.trust_level("full") == "strict"
    with pytest.raises(ValueError, match="unsafe_gopen is False"):
        wds.gopen("pipe:true")
    utils.enforce_security = False
    assert trust.trust_level("full") == "full"


def test_the_environment_enforces_it(monkeypatch):
    """WDS_SECURE counts unless something was assigned."""
    monkeypatch.setattr(utils, "enforce_security", True)
    monkeypatch.undo()
    monkeypatch.setenv("WDS_SECURE", "1")
    assert utils.enforce_security is True
    assert trust.trust_level() == "strict"
    utils.enforce_security = False
    assert trust.trust_level() == "safe"


def test_it_can_be_imported():
    """``from webdataset.utils import enforce_security`` gives the present setting."""
    code = "from webdataset.utils import enforce_security as e; print(e)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"WDS_SECURE": "1"}
    )
    assert shown.stdout == "True\n"
