"""Trials of data servers and trainers with faults at random times, each compared with a run without faults.

Run as a program: ``python serving_trials.py FOLDER FIRST_SEED COUNT``. One trial has two servers, each with a proxy in
front that can hold back bytes in either direction or cut all connections, and two trainers that save their state and
what they received after each batch in one file. Servers and trainers are killed, stopped and cut off, and begun anew;
servers become slow, so that trainers race them by the other one.
At the end both trainers must have received, batch by batch, what local loaders give.
"""

import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import webdataset as wds
from webdataset.serving import lane_progress
from webdataset.serving.data_server import DataServer
from webdataset.serving.server_lane import LaneSettings
from webdataset.serving.zmq_transport import ZmqListener

SHARDS, SAMPLES, BATCH, EPOCHS, RANKS, STREAMS = 6, 40, 7, 2, 2, 12
SILENCE_SECONDS = 0.6
LONGEST_SECONDS = 90
FORK = multiprocessing.get_context("fork")


def write_shards(folder: Path) -> None:
    """Write the shards of the trials."""
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"part-{shard:03d}.tar")) as writer:
            # shards of different lengths: streams end at different times
            for number in range(SAMPLES - 5 * shard):
                writer.write({"__key__": f"{shard}-{number:03d}", "txt": f"{shard * 1000 + number}"})


class Brake:
    """A function of samples that waits while a value of shared memory says so."""

    def __init__(self, slow: Any = None) -> None:
        self._slow = slow

    def __call__(self, sample: Any) -> Any:
        """Return the sample."""
        while self._slow is not None and self._slow.value:
            time.sleep(0.01)
        return sample


def make_dataset(folder: Path, slow: Any = None) -> Any:
    """Return the dataset that is served."""
    urls = str(folder / f"part-{{000..{SHARDS - 1:03d}}}.tar")
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=5).shuffle(20).map(Brake(slow)).decode()
    return dataset.to_tuple("__key__", "txt").elastic(STREAMS)


def train_locally(folder: Path, rank: int, epochs: int = EPOCHS) -> list[list[str]]:
    """Return the keys of each batch of a run without servers."""
    os.environ.update(WDS_RANK=str(rank), WDS_WORLD_SIZE=str(RANKS))
    loader = wds.Loader(make_dataset(folder), BATCH)
    found = [list(batch[0]) for _ in range(epochs) for batch in loader]
    del os.environ["WDS_RANK"], os.environ["WDS_WORLD_SIZE"]
    return found


def serve(folder: Path, port: int, slow: Any) -> None:
    """Serve until killed."""
    server = DataServer(make_dataset(folder, slow), ZmqListener(f"tcp://127.0.0.1:{port}"), LaneSettings(workers=0))
    server.serve()


def train(urls: list[str], rank: int, saved: Path, batches: int, seed: int) -> None:
    """Receive batches from the last save on, and save after each."""
    os.environ.update(WDS_RANK=str(rank), WDS_WORLD_SIZE=str(RANKS))
    draw = random.Random(seed)
    # trainers are killed before they know how long a batch usually takes
    lane_progress._FEWEST_PARTS = 2
    loader = wds.RemoteLoader(
        urls, BATCH, plain=True, silence_seconds=SILENCE_SECONDS, timeout=60, prefetch=1, hedge_seconds=0.1
    )
    history: list[list[str]] = []
    hedged = [0, 0]
    if saved.exists():
        before = json.loads(saved.read_text())
        history, hedged = before["history"], before["hedged"]
        loader.load_state_dict(before["state"])
    while len(history) < batches:
        for batch in loader:
            history.append(list(batch[0]))
            time.sleep(draw.random() * 0.16)
            part = saved.with_suffix(".part")
            rule = loader._remote.lane.hedges
            found = {"history": history, "hedged": [hedged[0] + rule.opened, hedged[1] + rule.won]}
            part.write_text(json.dumps({**found, "state": loader.state_dict()}))
            part.replace(saved)
    loader.close()


PASS, HOLD_UP, HOLD_DOWN, HOLD, CUT = range(5)


class Proxy:
    """A line in front of a server, whose ``mode`` says what becomes of bytes; runs in a process of its own."""

    def __init__(self, target: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.mode = FORK.Value("i", PASS)
        self._target = target
        self.process = FORK.Process(target=self._run, daemon=True)
        self.process.start()

    def _run(self) -> None:
        while True:
            client, _ = self.listening.accept()
            if self.mode.value == CUT:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one, other, held in ((client, server, HOLD_UP), (server, client, HOLD_DOWN)):
                threading.Thread(target=self._pass, args=(one, other, held), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, held: int) -> None:
        try:
            one.settimeout(0.02)
            while self.mode.value != CUT:
                if self.mode.value in (held, HOLD):
                    time.sleep(0.01)
                    continue
                try:
                    content = one.recv(1 << 16)
                except TimeoutError:
                    continue
                if not content:
                    break
                while self.mode.value in (held, HOLD):
                    time.sleep(0.01)
                other.sendall(content)
        except OSError:
            pass
        for each in (one, other):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def resume(process: BaseProcess) -> None:
    """Let a process that was stopped go on."""
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGCONT)


class Trial:
    """Two servers, two trainers, and faults by a seed."""

    def __init__(self, folder: Path, seed: int, expected: list[list[list[str]]]) -> None:
        self.folder, self.seed, self.expected = folder, seed, expected
        self.draw = random.Random(seed)
        self.ports = [free_port() for _ in range(2)]
        self.proxies = [Proxy(port) for port in self.ports]
        self.urls = [f"tcp://127.0.0.1:{proxy.port}" for proxy in self.proxies]
        self.saved = [folder / f"saved-{seed}-{rank}.json" for rank in range(RANKS)]
        self.slow = [FORK.Value("i", 0) for _ in range(2)]
        self.servers: list[BaseProcess] = [self._start_server(which) for which in range(2)]
        self.trainers: list[BaseProcess] = [self._start_trainer(rank) for rank in range(RANKS)]
        self.healing: list[tuple[float, Callable[[], Any]]] = []
        self.faults: list[str] = []
        # second lanes that trainers opened, and how many of these were faster
        self.hedged = [0, 0]

    def _start_server(self, which: int) -> BaseProcess:
        return self._start(serve, self.folder, self.ports[which], self.slow[which])

    def _start(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = FORK.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _start_trainer(self, rank: int) -> BaseProcess:
        arguments = self.urls, rank, self.saved[rank], len(self.expected[rank]), self.draw.getrandbits(30)
        return self._start(train, *arguments)

    def _later(self, seconds: float, action: Callable[[], Any]) -> None:
        self.healing.append((time.monotonic() + seconds, action))

    def _break_something(self) -> None:
        which = self.draw.randrange(2)
        kinds = ["kill server", "stop server", "kill trainer", "hold up", "hold down", "hold", "cut", "slow", "slow"]
        kind = self.draw.choice(kinds)
        seconds = self.draw.random() * 1.2
        if kind == "kill server":
            self.servers[which].kill()
            self.servers[which].join()

            def restart() -> None:
                if not self.servers[which].is_alive():
                    self.servers[which] = self._start_server(which)

            self._later(seconds, restart)
        elif kind == "stop server":
            process = self.servers[which]
            if not process.is_alive() or process.pid is None:
                return
            os.kill(process.pid, signal.SIGSTOP)
            self._later(seconds, lambda: resume(process))
        elif kind == "slow":
            self.slow[which].value = 1
            self._later(2 * seconds, lambda: setattr(self.slow[which], "value", 0))
        elif kind == "kill trainer":
            if not self.trainers[which].is_alive():
                return
            self.trainers[which].kill()
            self.trainers[which].join()
            self.trainers[which] = self._start_trainer(which)
        else:
            mode = {"hold up": HOLD_UP, "hold down": HOLD_DOWN, "hold": HOLD, "cut": CUT}[kind]
            proxy = self.proxies[which]
            proxy.mode.value = mode
            self._later(seconds, lambda: setattr(proxy.mode, "value", PASS))
        self.faults.append(f"{kind} {which}")

    def run(self) -> list[str]:
        """Run the trial; return its faults.

        Raises:
            AssertionError: a trainer received something else than a run without faults.
        """
        until = time.monotonic() + LONGEST_SECONDS
        following = time.monotonic() + self.draw.random()
        try:
            while any(trainer.is_alive() for trainer in self.trainers):
                now = time.monotonic()
                if now > until:
                    raise AssertionError(f"seed {self.seed}: not done after {LONGEST_SECONDS} s: {self.faults}")
                due = [action for when, action in self.healing if when <= now]
                self.healing = [each for each in self.healing if each[0] > now]
                for action in due:
                    action()
                if now > following:
                    self._break_something()
                    following = now + self.draw.random() * 0.6
                time.sleep(0.02)
        finally:
            for process in (*self.trainers, *self.servers, *(proxy.process for proxy in self.proxies)):
                process.kill()
                process.join()
            for proxy in self.proxies:
                proxy.listening.close()
        for rank, saved in enumerate(self.saved):
            if [trainer.exitcode for trainer in self.trainers] != [0] * RANKS:
                raise AssertionError(f"seed {self.seed}: a trainer failed: {self.faults}")
            record = json.loads(saved.read_text())
            self.hedged = [one + other for one, other in zip(self.hedged, record["hedged"], strict=True)]
            found = record["history"]
            if found != self.expected[rank]:
                raise AssertionError(f"seed {self.seed}: rank {rank} received something else: {self.faults}")
        return self.faults


def main(folder: Path, first: int, count: int) -> None:
    """Run trials, and print what was done."""
    write_shards(folder)
    expected = [train_locally(folder, rank) for rank in range(RANKS)]
    # each rank ends with the end of an epoch, and all samples came
    keys = sorted(key for history in expected for batch in history for key in batch)
    assert len(keys) == EPOCHS * sum(SAMPLES - 5 * shard for shard in range(SHARDS))
    fired = opened = won = 0
    for seed in range(first, first + count):
        trial = Trial(folder, seed, expected)
        faults = trial.run()
        fired, opened, won = fired + len(faults), opened + trial.hedged[0], won + trial.hedged[1]
        print(f"seed {seed}: {len(faults)} faults: {', '.join(faults)}", flush=True)
    print(f"{count} trials exact, {opened} second lanes, {won} of them faster, {fired} faults")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
