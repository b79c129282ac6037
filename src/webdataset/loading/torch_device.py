"""Copies batches to a device, one ahead of the consumer; arrays become tensors, all else stays.

Theory. A copy to a GPU runs beside the GPU's work if it comes from page-locked memory and goes through a stream of its
own. So the next batch is taken and its copy started before the present one is handed out; the consumer's stream waits
for the copy, not the program. A batch's block is free as soon as its copy was started: from pageable memory a copy
returns when it has read everything, and page-locked memory is a copy that torch keeps.
"""

from collections import deque
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import torch

from webdataset.codecs.torch_codecs import array_to_tensor
from webdataset.core.errors import UsageError
from webdataset.loading.batching import END, BatchMark


class DevicePrefetcher:
    """Moves batches.

    Args:
        device: what ``torch.device`` takes.
        pin_memory: copy through page-locked memory, so that the copy runs beside the device's work.
        ahead: batches whose copy is started before they are asked for (on devices with streams).

    Raises:
        UsageError: no such device here.
    """

    def __init__(self, device: object, *, pin_memory: bool, ahead: int = 1) -> None:
        try:
            self.device = torch.device(device)  # type: ignore[call-overload]  # torch says what it takes
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise UsageError(f"device={device!r} cannot be used here: {error}") from error
        except TypeError as error:
            raise UsageError(f"device={device!r} is none: write device='cpu', 'cuda' or 'cuda:0'") from error
        self.pin_memory = pin_memory and self.device.type == "cuda"
        self.ahead = ahead if self.device.type == "cuda" else 0

    def move_batches(self, batches: Generator[tuple[object, BatchMark]]) -> Generator[tuple[object, BatchMark]]:
        """Yield the batches, their arrays as tensors on the device."""
        stream = torch.cuda.Stream(self.device) if self.ahead else None
        waiting: deque[tuple[object, torch.cuda.Event | None, BatchMark]] = deque()
        try:
            while True:
                try:
                    batch, mark = next(batches, (None, None))
                except Exception:  # of a batch after those that wait: raised again in its turn
                    while waiting:
                        yield self._hand_out(*waiting.popleft())
                    raise
                if mark is None:
                    break
                waiting.append((*self._start_copy(batch, stream), mark))
                del batch
                if len(waiting) > self.ahead:
                    yield self._hand_out(*waiting.popleft())
            while waiting:
                yield self._hand_out(*waiting.popleft())
        finally:
            batches.close()

    def _start_copy(self, batch: object, stream: torch.cuda.Stream | None) -> tuple[object, torch.cuda.Event | None]:
        """Start to copy a batch; return what it will be, and the event of its completion."""
        if batch is END:
            return END, None
        if stream is None:
            return self._each(batch), None
        with torch.cuda.stream(stream):
            copied = self._each(batch)
            done = torch.cuda.Event()
            done.record(stream)
        return copied, done

    def _hand_out(self, batch: object, done: torch.cuda.Event | None, mark: BatchMark) -> tuple[object, BatchMark]:
        """Let the consumer's stream wait for the copy."""
        if done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)
            _record_stream(batch, current)
        return batch, mark

    def _each(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: self._each(each) for key, each in value.items()}
        if isinstance(value, tuple):
            return tuple(self._each(each) for each in value)
        if isinstance(value, list):
            return [self._each(each) for each in value]
        if isinstance(value, np.ndarray):
            tensor = _to_tensor(value)
            if tensor is None:
                return value
            value = tensor
        if not isinstance(value, torch.Tensor):
            return value
        if self.pin_memory:
            value = value.pin_memory()
        return value.to(self.device, non_blocking=self.pin_memory)


def _to_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor | None:
    """Return an array as a tensor, over its memory where torch can have that; None where it has no such numbers."""
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        return None
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        # arrays of different shapes come as the dataset gave them
        array = array.copy()
    try:
        return array_to_tensor(array)
    except TypeError:  # longer numbers than torch has
        return None


def _record_stream(value: object, stream: torch.cuda.Stream) -> None:
    """Keep the memory of tensors until the consumer's stream is done with them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for each in value:
            _record_stream(each, stream)
    elif isinstance(value, torch.Tensor) and value.is_cuda:
        value.record_stream(stream)
