"""The compatibility module ``handlers``."""

import pytest

import webdataset as wds
from webdataset import handlers


def test_the_five():
    """Two go on, two stop, one raises; two of them warn."""
    error = ValueError("bad")
    assert handlers.ignore_and_continue(error) is True
    assert handlers.ignore_and_stop(error) is False
    with pytest.warns(UserWarning, match="bad"):
        assert handlers.warn_and_continue(error) is True
    with pytest.warns(UserWarning, match="bad"):
        assert handlers.warn_and_stop(error) is False
    with pytest.raises(ValueError, match="bad"):
        handlers.reraise_exception(error)


def test_names_at_the_top():
    """The same functions stand at the top."""
    for name in ("ignore_and_continue", "ignore_and_stop", "reraise_exception", "warn_and_continue", "warn_and_stop"):
        assert getattr(wds, name) is getattr(handlers, name)
