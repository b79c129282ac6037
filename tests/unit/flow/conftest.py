"""Shards for the tests of pipelines."""

import pytest

import webdataset as wds


@pytest.fixture(scope="session")
def urls(tmp_path_factory):
    """Four small shards of unequal size: 7, 10, 13 and 16 samples."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(4):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(7 + 3 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": f"text {number}-{index}", "cls": index})
    return str(folder / "s-{0..3}.tar")
