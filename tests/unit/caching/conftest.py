"""What tests of the cache share."""

import pytest


@pytest.fixture
def near(tmp_path):
    """An empty cache directory."""
    folder = tmp_path / "near"
    folder.mkdir()
    return folder
