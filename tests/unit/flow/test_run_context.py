"""What a run knows of its process: asked once, when it begins."""

import os
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

import webdataset as wds
from webdataset.core import distributed, settings
from webdataset.core.distributed import RunContext, worker_context
from webdataset.stages.base import Run, Stage


@pytest.fixture
def counts(monkeypatch):
    """Count the reads of each environment variable, and the detections of the rank."""
    counted = Counter()
    detect = distributed._rank_claims

    class Environment(dict):
        """Counts what is asked for."""

        def get(self, name, default=None):
            counted[name] += 1
            return os.environ.get(name, default)

    def counting_detect(group):
        counted["rank"] += 1
        return detect(group)

    monkeypatch.setattr(settings, "os", SimpleNamespace(environ=Environment(), path=os.path))
    monkeypatch.setattr(distributed, "_rank_claims", counting_detect)
    return counted


@pytest.fixture
def shard(tmp_path):
    """The path of a shard of three samples."""
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path) as sink:
        for number in range(3):
            sink.write({"__key__": str(number), "txt": "a", "cls": number})
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: wds.WebDataset(path, shardshuffle=False).decode().to_tuple("txt", "cls"),
        lambda path: wds.WebDataset(path, shardshuffle=100).shuffle(10).decode(),
        lambda path: wds.WebDataset(path, shardshuffle=False).rsample(1.0).with_epoch(2),
        lambda path: wds.WebDataset(path, shardshuffle=False, nodesplitter=wds.split_by_node).repeat(2),
    ],
)
def test_up_to_the_first_sample_all_is_asked_once(counts, shard, make):
    """The rank is detected once, and no variable is read twice; later samples ask for nothing of the kind."""
    dataset = make(shard)
    counts.clear()
    run = iter(dataset)
    next(run)
    assert counts["rank"] == 1
    assert counts["WDS_RANK"] == counts["WORKER"] == 1
    assert max(counts.values()) == 1
    assert sum(counts.values()) <= 26
    counts.clear()
    next(run)
    assert not counts


def test_the_next_run_asks_anew(shard, monkeypatch):
    """What is set between two runs holds for the second."""
    dataset = wds.WebDataset([shard, shard], shardshuffle=False, nodesplitter=wds.split_by_node)
    assert len(list(dataset)) == 6
    monkeypatch.setenv("WDS_RANK", "1")
    monkeypatch.setenv("WDS_WORLD_SIZE", "2")
    assert len(list(dataset)) == 3


def test_outside_of_a_run_settings_are_read_when_they_are_asked_for(monkeypatch):
    """Nothing is kept before a run, after it, or while it waits for its consumer."""
    run = iter(wds.DataPipeline([[1, 2, 3]], wds.map(lambda item: (item, settings.SEED.get()))))
    assert next(run) == (1, None)
    monkeypatch.setenv("WDS_SEED", "7")
    assert settings.SEED.get() == 7
    assert next(run) == (2, 7)


def test_blocks_nest_and_end():
    """The outermost block holds: what is within it, and within another of the same run, ends with it."""
    outer, inner = RunContext(), RunContext()
    with outer:
        with inner, outer:
            assert distributed.thread_context.run is outer
        assert distributed.thread_context.run is outer
        worker_context()
    assert distributed.thread_context.run is None
    assert settings.snapshot.values is None
    assert outer.claim is not None
    assert inner.claim is None


def test_another_thread_asks_for_itself(monkeypatch):
    """What one thread knows of its run is not known to another."""
    found = []
    with RunContext():
        assert settings.SEED.get() is None
        monkeypatch.setenv("WDS_SEED", "7")
        thread = threading.Thread(target=lambda: found.append(settings.SEED.get()))
        thread.start()
        thread.join()
        assert settings.SEED.get() is None
    assert found == [7]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_asks_for_itself():
    """A child that is forked while a run begins is outside of it: it may be another worker."""
    ours, theirs = os.pipe()
    with RunContext():
        worker_context()
        child = os.fork()
        if not child:
            os.write(theirs, b"1" if distributed.thread_context.run is None else b"0")
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 1) == b"1"
    os.close(ours)
    os.close(theirs)


def test_stages_are_told_the_context_of_their_run():
    """``Run.context`` is filled when a run begins, and one run's stages and passes share it."""
    found = []

    class Asking(Stage):
        """Passes everything on."""

        def begin(self, run):
            found.append(run)

        def flow(self, upstream, state):  # noqa: ARG002
            return upstream

    assert list(wds.DataPipeline([[1]], Asking(), Asking()).repeat(2)) == [1, 1]
    contexts = {id(run.context) for run in found}
    assert len(found) == 4
    assert len(contexts) == 1
    assert found[0].worker() == worker_context() == Run().worker()
