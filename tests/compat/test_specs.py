"""The compatibility module ``specs``: names, there and at the top."""

import subprocess
import sys

import webdataset as wds
from webdataset import specs


def test_names():
    """What callers import is there, at the top too."""
    for name in ("DatasetSpec", "from_open_clip", "from_spec", "load_spec"):
        assert getattr(wds, name) is getattr(specs, name)
    assert {"Mix", "Source"} <= set(dir(specs))


def test_nothing_heavy_is_imported():
    """Reading a specification imports neither torch nor numpy nor Pillow, and a dictionary not even yaml."""
    code = (
        "import sys, webdataset as wds\n"
        "wds.WebDataset({'version': 1, 'sources': [{'shards': 'a.tar', 'transforms': ['gray']}]})\n"
        "print([name for name in ('torch', 'numpy', 'PIL', 'yaml') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
