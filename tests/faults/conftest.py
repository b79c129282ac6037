"""What the fault tests share."""

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def memory_folder(tmp_path):
    """A folder that costs no disk where the system has a memory file system; removed afterwards."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=shared))
    yield folder
    shutil.rmtree(folder)
