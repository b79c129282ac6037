"""What processes of a pool do in tests; imported by these processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def repeat(factor: int) -> Callable[[object, Callable[[object], object]], object]:
    """Send each item some times, or do what it says."""

    def work(item: Any, send: Callable[[object], object]) -> object:
        match item:
            case ("die", code):
                os._exit(code)
            case ("kill", number):
                send("about to die")
                os.kill(os.getpid(), number)
                time.sleep(60)
            case ("once", path):
                if not Path(path).exists():
                    Path(path).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return "survived"
            case ("raise", text):
                raise ValueError(text)
            case ("large", size):
                for _ in range(factor):
                    send(b"x" * size)
                return size
            case ("sleep", path):
                Path(path).touch()
                time.sleep(600)
        for number in range(factor):
            send((item, number))
        return item

    return work


def fail() -> None:
    """Fail before there is an item."""
    raise LookupError("not here")
