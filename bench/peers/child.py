"""One library in one process: convert the shards, or give batches, save a state after one of them, and be killed.

Run by the interpreter that has the library. The job is the only argument, as JSON; what was delivered goes to a file,
one JSON line a batch, flushed before the next batch is asked for. The process that is to stop kills itself as
``kill -9`` does, with its state on disk: nothing is closed, nothing is waited for.
"""

import importlib
import itertools
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

SETTLED_SECONDS = 1.0  # so that the workers have read ahead as far as they go; without it the bytes would be chance


def workers():
    """Return the process ids of all that this process has started, and of those they have started."""
    found, ahead = [], [os.getpid()]
    while ahead:
        process = ahead.pop()
        for thread in Path(f"/proc/{process}/task").iterdir():
            born = [int(word) for word in Path(thread, "children").read_text().split()]
            found += born
            ahead += born
    return found


def bytes_mapped(folder):
    """Return the bytes of the files in a folder that are mapped into these processes and were touched there."""
    total, counts = 0, False
    for process in [os.getpid(), *workers()]:
        for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                counts = words[-1].startswith(folder)
            elif counts and words[0] == "Rss:":
                total += 1024 * int(words[1])
    return total


def write_state(state, path):
    """Write a state as its users would: as JSON if it is that, else as a pickle."""
    try:
        payload = json.dumps(state).encode()
        Path(f"{path}.json").write_bytes(payload)
    except TypeError:
        Path(f"{path}.pickle").write_bytes(pickle.dumps(state))


def read_states(paths):
    """Read the states of all ranks."""
    states = []
    for path in paths:
        plain = Path(f"{path}.json")
        if plain.exists():
            states.append(json.loads(plain.read_bytes()))
        else:
            states.append(pickle.loads(Path(f"{path}.pickle").read_bytes()))
    return states


def reason(error):
    """Return the first line of an error; that of the worker's own error where torch reports a worker's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):
        return lines[-1]
    return ": ".join([type(error).__name__, *lines[:1]])


def world(job):
    """Join the other ranks, as a training does, and return what waits for them."""
    if job["ranks"] == 1:
        return lambda: None
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    return torch.distributed.barrier


def deliver(library, job, out):
    """Give batches from where the states are to the end, or to the stop."""
    together = world(job)
    states = read_states(job["states"])
    begun = time.perf_counter()
    batches, save = library.begin(job, states)
    batches = iter(batches)
    for number in itertools.count(1):
        batch = next(batches, None)
        if batch is None:
            break
        line = {"keys": library.keys(batch)}
        if number == 1:
            line["seconds"] = time.perf_counter() - begun
            if job["traced"]:
                time.sleep(SETTLED_SECONDS)
                line["bytes_mapped"] = bytes_mapped(job["workspace"])
        out.write(json.dumps(line) + "\n")
        out.flush()
        if number == job["stop"]:
            write_state(save(number), job["save"])
            together()
            for process in workers() if job["traced"] else ():
                os.kill(process, signal.SIGKILL)  # strace would wait for those that outlive this process
            os.kill(os.getpid(), signal.SIGKILL)
    out.write(json.dumps({"end": True}) + "\n")
    out.flush()
    together()


def main():
    """Do the job."""
    job = json.loads(sys.argv[1])
    library = importlib.import_module(job["library"])
    if job["do"] == "prepare":
        library.prepare(job["shards"], job["folder"])
        return
    with open(job["out"], "w", encoding="utf-8") as out:
        try:
            deliver(library, job, out)
        except Exception as error:
            out.write(json.dumps({"refused": reason(error)}) + "\n")
            raise


if __name__ == "__main__":
    main()
