"""Environment variables are read when they are asked for, whatever holds the environment."""

import os

import pytest

from webdataset.core import settings
from webdataset.core.errors import UsageError


def test_changes_are_seen(monkeypatch):
    """Set, changed, emptied and removed."""
    monkeypatch.delenv("WDS_SEED", raising=False)
    assert settings.SEED.get() is None
    monkeypatch.setenv("WDS_SEED", "7")
    assert settings.SEED.get() == 7
    os.environb[b"WDS_SEED"] = b"8"
    assert settings.SEED.get() == 8
    monkeypatch.setenv("WDS_SEED", "")
    assert settings.SEED.get() is None
    monkeypatch.setenv("WDS_SEED", "x")
    with pytest.raises(UsageError, match="WDS_SEED='x'"):
        settings.SEED.get()
    monkeypatch.delenv("WDS_SEED")
    assert settings.SEED.get() is None


def test_another_mapping_as_environment(monkeypatch):
    """A program may put a mapping of its own in its place."""
    monkeypatch.setattr(os, "environ", {"WDS_SEED": "9"})
    assert settings.SEED.get() == 9
    monkeypatch.setattr(os, "environ", {})
    assert settings.SEED.get() is None
