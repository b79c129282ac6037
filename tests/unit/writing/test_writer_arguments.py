"""What writers refuse before they write, and what they say."""

from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import UsageError

WRONG = [
    ({"post": "upload"}, "post='upload': it is a function of a shard's name, or None"),
    ({"opener": 5}, "opener=5: it is a function of a shard's name, or None"),
    ({"start_shard": None}, "start_shard=None: it is the number of the first shard"),
    ({"user": None}, "user=None is no name: pass a text, such as user='bigdata'"),
    ({"group": 5}, "group=5 is no name"),
    ({"mode": "rb"}, "mode='rb' is no file mode: pass permission bits such as 0o444"),
    ({"mtime": "now"}, "mtime='now' is no time: pass seconds since 1970"),
    ({"mtime": float("nan")}, "mtime=nan is no time"),
    ({"format": 2.5}, "there is no tar format 2.5: pass 'ustar', 'gnu', 'pax'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_argument_fails_before_anything_is_written(options, message, tmp_path):
    """A function that is called after the first shard, too: no hour of work is lost to it."""

    def write():
        with wds.ShardWriter(str(tmp_path / "s-%d.tar"), verbose=0, **options) as sink:
            sink.write({"__key__": "a", "txt": "x"})

    with pytest.raises(UsageError, match=message):
        write()
    assert list(tmp_path.glob("*.tar")) == []


@pytest.mark.parametrize("pattern", [None, 5, ["s-%d.tar"]])
def test_a_pattern_is_text(pattern):
    """Or a path, or a function."""
    with pytest.raises(UsageError, match="a pattern is text with %06d"):
        wds.ShardWriter(pattern, verbose=0)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Times, modes and numbers of shards that a program computed."""
    options: dict[str, Any] = {
        "mtime": np.float64(7),
        "mode": np.int64(0o600),
        "start_shard": np.int64(3),
        "maxcount": np.int64(2),
    }
    with wds.ShardWriter(str(tmp_path / "s-%d.tar"), verbose=0, **options) as sink:
        sink.write({"__key__": "a", "txt": "x"})
    assert (tmp_path / "s-3.tar").exists()


def test_decoders_of_extensions():
    """They are checked where they are made, not where the first field is decoded."""
    for wrong in (("jpg", None), (None, len), ("jpg", "pil")):
        with pytest.raises(UsageError, match=r"as in handle_extension\('jpg png', function\)"):
            wds.handle_extension(*wrong)
