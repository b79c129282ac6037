"""One library in a process of its own: converts shards, or opens them and reads them as often as it is told.

Run by the interpreter that has the library, with the name of its module here. Takes jobs as JSON lines and answers with
JSON lines. What is read is told by the checksum of each field, so that it can be compared with what was written; a
timed job counts the samples alone. CPU seconds are those of this process, of its children, and of theirs.
"""

import contextlib
import gc
import importlib
import itertools
import json
import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")


def cpu():
    """Return the CPU seconds of this process, of its reaped children, and of all that still run below it."""
    times = os.times()
    total, ahead = time.process_time() + times.children_user + times.children_system, [os.getpid()]
    while ahead:
        for thread in Path(f"/proc/{ahead.pop()}/task").glob("*"):
            with contextlib.suppress(OSError):  # a thread or a process that has ended meanwhile
                for process in (thread / "children").read_text().split():
                    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    total += sum(map(int, words[11:15])) / TICK
                    ahead.append(int(process))
    return total


def checksums(fields):
    """Return the checksum of each field of a sample; of a value that was decoded, None."""
    return {
        name: zlib.crc32(value) if isinstance(value, (bytes, bytearray, memoryview)) else None
        for name, value in fields.items()
    }


class Reading:
    """One library's way of reading some shards.

    Args:
        module: its module in this folder.
        reader: the name of one of the module's readers.
    """

    def __init__(self, module, reader):
        self.module, self.reader = module, module.READERS[reader]
        self.opened: Any = None

    def open(self, shards, folder):
        """Open the shards, or what they were converted to; nothing is timed."""
        self.opened = self.reader.open(shards, folder)

    def count(self):
        """Read everything once and return CPU and wall seconds and how many samples there were."""
        counts = self.reader.count
        gc.collect()
        begun, used = time.perf_counter(), cpu()
        if counts is None:
            number = 0
            for _ in self.opened:  # as cheap as a consumer can be
                number += 1  # noqa: SIM113
        else:
            number = sum(map(counts, self.opened))
        return {"cpu": cpu() - used, "wall": time.perf_counter() - begun, "samples": number}

    def check(self, out=None):
        """Read everything once; write each sample's key and checksums to a file, as they come."""
        with open(out, "w", encoding="utf-8") as sink:
            for item in self.opened:
                for key, fields in self.reader.samples(item):
                    sink.write(json.dumps([key, checksums(fields)]) + "\n")
                    sink.flush()

    def convert(self, shards, folder):
        """Convert the shards into the library's own format, where it has one."""
        if hasattr(self.module, "convert"):
            os.makedirs(folder, exist_ok=True)
            self.module.convert(shards, folder)
        return hasattr(self.module, "convert")


def reason(error):
    """Return an error's name and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def main():
    """Answer jobs until the input ends."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        reading = Reading(importlib.import_module(sys.argv[1]), sys.argv[2])
    except Exception as error:
        replies.write(json.dumps({"error": reason(error)}) + "\n")
        raise
    for line in itertools.takewhile(bool, iter(sys.stdin.readline, "")):
        job = json.loads(line)
        try:
            answer = {"result": getattr(reading, job.pop("job"))(**job)}
        except BaseException as error:
            answer = {"error": reason(error)}
        replies.write(json.dumps(answer) + "\n")
    replies.close()
    # threads of some libraries never end
    os._exit(0)


if __name__ == "__main__":
    main()
