"""The compiled core keeps its references, whichever Python's headers it was compiled with."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from supported import found  # noqa: E402  a script

# what returns None in each function, called many times: the references to None that are gone
PROGRAM = """
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.ExtensionFileLoader("webdataset._native", sys.argv[1])
core = importlib.util.module_from_spec(importlib.util.spec_from_loader("webdataset._native", loader))
loader.exec_module(core)
calls = {
    "sum_streams": lambda: core.sum_streams({"0": object()}, {}),
    "write_steps": lambda: core.write_steps(["text"], 0, 1, 0),
    "write_steps, too many": lambda: core.write_steps([], 0, 100, 0),
    "gather": lambda: core.gather([], None),
    "pack_values": lambda: core.pack_values([1]),
    "pack_values, others": lambda: core.pack_values(1),
    "unpack_values": lambda: core.unpack_values(core.pack_values([b"a"]), 1, False, [None], 0, 1),
    "is_unchanged": lambda: core.is_unchanged(0, -1, -1),
}
gone = {}
for name, call in calls.items():
    call()
    before = sys.getrefcount(None)
    for _ in range(1000):
        call()
    gone[name] = before - sys.getrefcount(None)
print(json.dumps([core.PROTOCOL, gone]))
"""


@pytest.mark.once
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="None is immortal on this Python")
@pytest.mark.skipif(sys.platform == "win32", reason="a compiler of this system is called")
def test_none_keeps_its_references(tmp_path: Path) -> None:
    """A core that was compiled on a newer Python, in whose headers None counts no references, takes none from ours."""
    headers = {}
    for version, python in found().items():
        code = "import sysconfig as s; print(s.get_paths()['include'], bool(s.get_config_var('Py_GIL_DISABLED')))"
        words = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        include, _, free_threaded = words.strip().rpartition(" ")
        # free-threaded Pythons have no limited interface; some systems have no headers of theirs
        if free_threaded == "False" and Path(include, "Python.h").exists():
            headers[version] = include
    if not headers:
        pytest.skip("the headers of Python are not installed")
    for version, include in headers.items():
        core = tmp_path / f"core-{version[0]}.{version[1]}.so"
        words = [*(sysconfig.get_config_var("CC") or "cc").split(), "-O1", "-shared", "-fPIC", f"-I{include}"]
        subprocess.run([*words, str(ROOT / "native" / "module.c"), "-o", str(core)], check=True)
        ran = subprocess.run([sys.executable, "-c", PROGRAM, str(core)], capture_output=True, text=True, check=True)
        protocol, gone = json.loads(ran.stdout)
        assert protocol > 0
        # the interpreter's own few references come and go
        assert {name: count for name, count in gone.items() if abs(count) > 50} == {}, version


def test_the_core_uses_its_own_macro_to_return_none() -> None:
    """Those of newer headers take no reference."""
    for path in sorted((ROOT / "native").glob("*.[ch]")):
        assert "Py_RETURN_" not in path.read_text(encoding="utf-8").replace("place of Py_RETURN_NONE", ""), path.name
