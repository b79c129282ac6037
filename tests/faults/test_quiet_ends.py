"""Workers whose parent is killed say nothing: a reader of the log looks for what killed the parent."""

import subprocess
import sys
import textwrap

import pytest

TRAINING = """
    import os, signal, sys, time
    import webdataset as wds

    def slow_to_close(samples):
        try:
            for sample in samples:
                yield sample
        finally:
            time.sleep(0.7)

    if __name__ == "__main__":
        with wds.TarWriter("shard.tar") as sink:
            for index in range(500):
                sink.write({"__key__": f"{index:04d}", "cls": index})
        dataset = wds.WebDataset("shard.tar", shardshuffle=False).compose(slow_to_close).decode().elastic(streams=2)
        batches = iter(wds.Loader(dataset, 4, workers=2, mode="processes"))
        for _ in range(3):
            next(batches)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL and processes of our own")
def test_workers_close_quietly_when_their_parent_is_killed(tmp_path):
    """A worker that closes its pipeline is not interrupted by being told to end: no exception is lost on stderr."""
    script = tmp_path / "training.py"
    script.write_text(textwrap.dedent(TRAINING))
    done = subprocess.run(  # returns when the workers have closed their stderr, which they share
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode < 0
    assert done.stderr == ""
