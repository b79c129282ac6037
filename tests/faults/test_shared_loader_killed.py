"""Trainers of a shared stream are killed at a message, sent or received: nothing is lost, nothing comes twice."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import webdataset as wds
from support.shared_trainers import BATCH_SIZE, make_dataset, write_shards

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared streams need Linux")

PROGRAM = """
import json, sys, tempfile, shutil
from pathlib import Path
from support import shared_trainers
shards, scenarios = sys.argv[1], json.loads(sys.argv[2])
for scenario in scenarios:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        for shard in Path(shards).glob("*.tar"):
            (Path(folder) / shard.name).symlink_to(shard)
        ends = shared_trainers.run(folder, scenario)
        keys = {path.stem: json.loads(path.read_text()) for path in Path(folder).glob("t*.json")}
        errors = {path.stem: path.read_text() for path in Path(folder).glob("*.error")}
        print(json.dumps([scenario, ends, keys, errors]), flush=True)
"""

EXITS = """
import json, sys, time
from pathlib import Path
import webdataset as wds
from support.shared_trainers import BATCH_SIZE, make_dataset
folder, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def slow(sample):
    time.sleep(0.004)
    return sample

loader = wds.SharedLoader(make_dataset(folder, slow), f"{folder}/s", batch_size=BATCH_SIZE, trainers=2, **options)
keys = []
for batch in loader:
    keys.append(batch["__key__"])
    if name == "owner" and len(keys) == 2:
        # without close: exit handlers end the workers, while the stream's thread makes a batch
        sys.exit()
Path(folder, f"{name}.json").write_text(json.dumps(keys))
loader.close()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Write the shards, and return their folder with the batches of two epochs and the state at their end."""
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    loader = wds.Loader(make_dataset(folder), BATCH_SIZE)
    return folder, [[batch["__key__"] for batch in loader] for _ in range(2)]


def run_scenarios(shards, scenarios):
    """Run scenarios, and compare what each trainer received with a loader of its own."""
    folder, expected = shards
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(scenarios)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(scenarios)
    killed = 0
    for line in lines:
        scenario, ends, saved, errors = json.loads(line)
        assert errors == {}, (scenario, ends, errors, done.stderr[-3000:])
        killed += sum(end == -9 for end in ends.values())
        for name in ("t0", "t1"):
            assert saved[name]["keys"] == expected, (scenario, ends, name)
    return killed


@pytest.mark.once
def test_the_owner_killed_at_each_message(shards):
    """Wherever the owner dies, the others go on with their next batch, and it continues from its checkpoint."""
    assert run_scenarios(shards, [{"trainers": 2, "epochs": 2, "kill": n} for n in range(1, 130, 9)]) >= 10


@pytest.mark.once
def test_a_trainer_killed_at_each_message(shards):
    """Wherever a trainer that attached dies, the others are not held up, and it continues from its checkpoint."""
    scenarios = [{"trainers": 2, "epochs": 2, "kill": n, "owner": False} for n in range(1, 50, 3)]
    assert run_scenarios(shards, scenarios) >= 12


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "mode": "processes"}])
def test_the_owner_exits_without_close(shards, tmp_path, options):
    """Where the owner's program ends in the middle of an epoch, another trainer receives the rest, and no error."""
    folder, expected = shards
    for shard in Path(folder).glob("*.tar"):
        (tmp_path / shard.name).symlink_to(shard)
    for _ in range(3):
        processes = []
        for name in ("owner", "other"):
            command = [sys.executable, "-c", EXITS, str(tmp_path), name, json.dumps(options)]
            processes.append(
                subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True)
            )
            while not (tmp_path / "s").exists():
                assert processes[0].poll() is None
                time.sleep(0.01)
        said = [each.communicate(timeout=100)[1] for each in processes]
        assert [each.returncode for each in processes] == [0, 0], said
        assert json.loads((tmp_path / "other.json").read_text()) == expected[0]
        (tmp_path / "other.json").unlink()
