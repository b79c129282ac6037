"""A program of trainers that share a stream: forks, kills at a message, continues at a checkpoint.

Trainers write ``NAME.json`` after each batch: the keys received, and the state.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import webdataset as wds
from webdataset.serving import unix_channel

BATCH_SIZE = 4


def make_dataset(folder: str | Path, function: Callable[[Any], Any] | None = None) -> Any:
    """Return a dataset whose keys say which samples came; a function of each sample, where one is given."""
    shards = sorted(str(each) for each in Path(folder).glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=True, seed=5).shuffle(6).decode()
    return (dataset if function is None else dataset.map(function)).elastic()


def write_shards(folder: str | Path, shards: int = 3, samples: int = 8) -> None:
    """Write small shards with an array in each sample."""
    import numpy as np

    for shard in range(shards):
        with wds.TarWriter(f"{folder}/{shard}.tar") as writer:
            for n in range(samples):
                value = np.full((40, 40), shard * samples + n, np.float32)
                writer.write({"__key__": f"{shard}-{n}", "x.npy": value, "txt": f"text {n}"})


def die_at(number: int) -> None:
    """Kill this process at a message, sent or received, counted from 1; 0: never."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    unix_channel.UnixChannel.send = counted(unix_channel.UnixChannel.send)  # type: ignore[method-assign]  # to be counted
    unix_channel.UnixChannel.receive = counted(unix_channel.UnixChannel.receive)  # type: ignore[method-assign]  # to be counted


def train(folder: str, name: str, scenario: dict[str, Any], kill: int) -> None:
    """Train to the end of the epochs, from the checkpoint where there is one."""
    file = Path(folder) / f"{name}.json"
    saved = json.loads(file.read_text()) if file.exists() else {"keys": [[] for _ in range(scenario["epochs"])]}
    if kill:
        die_at(kill)
    loader = wds.SharedLoader(
        make_dataset(folder),
        f"{folder}/s",
        batch_size=BATCH_SIZE,
        trainers=1 if "alone" in scenario else scenario["trainers"],
    )
    if "state" in saved:
        loader.load_state_dict(saved["state"])
    while loader.epoch < scenario["epochs"]:
        batches = iter(loader)
        for batch in batches:
            values = batch["x.npy"][:, 0, 0].tolist()
            expected = [8 * int(key[0]) + int(key[2:]) for key in batch["__key__"]]
            if values != expected:
                raise ValueError(f"{values} are not the values of {batch['__key__']}")
            state = loader.state_dict()
            saved["keys"][state["epoch"]].append(batch["__key__"])
            saved["state"] = state
            (Path(folder) / f"{name}.new").write_text(json.dumps(saved))
            (Path(folder) / f"{name}.new").rename(file)
            del batch
    if "alone" in scenario:
        await_others(folder, scenario["trainers"])
    if not scenario.get("stays"):
        loader.close()


def await_others(folder: str, trainers: int) -> None:
    """Wait until each trainer has received something: one that comes to an empty place would wait for others to come.

    Where a machine is busy, a killed trainer may be through with all epochs before another has begun.
    """
    until = time.monotonic() + 40
    while time.monotonic() < until and not all(Path(folder, f"t{n}.json").exists() for n in range(trainers)):
        time.sleep(0.01)


def start(folder: str, name: str, scenario: dict[str, Any], kill: int = 0) -> int:
    """Fork a trainer."""
    process = os.fork()
    if not process:
        status = 1
        try:
            signal.alarm(60)
            train(folder, name, scenario, kill)
            status = 0
        except BaseException as error:  # the test reads it
            Path(folder, f"{name}.error").write_text(repr(error))
            raise
        finally:
            os._exit(status)
    return process


def run(folder: str, scenario: dict[str, Any]) -> dict[str, int]:
    """Run one scenario in a folder of its own; return how its processes ended."""
    names = [f"t{n}" for n in range(scenario["trainers"])]
    processes = {}
    for name in names:
        processes[start(folder, name, scenario, scenario["kill"] if name == "t0" else 0)] = name
        if name == "t0":
            # the first one is the owner, unless the scenario says that it attaches
            wait = scenario.get("owner", True)
            while wait and not Path(folder, "s").exists() and os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
    ends = {}
    for _ in names:
        process, status = os.wait()
        ends[processes[process]] = os.waitstatus_to_exitcode(status)
        if ends[processes[process]] == -signal.SIGKILL:
            again = start(folder, processes[process], {**scenario, "alone": True})
            processes[again] = f"{processes[process]} again"
            names.append("again")
    return ends
