"""The compatibility module of S3 profiles."""

import subprocess
import sys

import webdataset as wds
from webdataset import config


def test_names():
    """All names are there, documented, and the module is an attribute of the package."""
    assert wds.config is config
    assert all(getattr(config, name).__doc__ for name in config.__all__)


def test_compatibility_module_is_light():
    """Opening it loads neither a parser nor botocore."""
    code = (
        "import sys, webdataset.config\n"
        "print([name for name in ('botocore', 'tomllib', 'configparser', 'numpy') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"
