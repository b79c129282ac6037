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


@pytest.fixture(scope="session")
def write_shards(tmp_path_factory):
    """Return a function that writes shards of equal size, and returns their urls; samples are numbered through."""

    def write(shards, samples):
        folder = tmp_path_factory.mktemp("numbered")
        urls = [str(folder / f"{shard}.tar") for shard in range(shards)]
        for shard, url in enumerate(urls):
            with wds.TarWriter(url) as sink:
                for number in range(samples * shard, samples * (shard + 1)):
                    sink.write({"__key__": f"{number:03d}", "cls": number})
        return urls

    return write
