"""What the user's function makes of one sample: it is called in a process of its own, with a fixed seed.

A function that hangs or ends the process cannot be stopped from within: so it runs in a process, which is killed when
its time is over, and started again for the next sample. The module is imported there once, not in the server. What it
prints goes to standard error.

Values come back described, never as objects: texts, numbers, JSON, shapes and statistics of arrays, images as PNG. The
images are kept by the server under a random name until newer ones need their place.
"""

import inspect
import io
import json
import math
import multiprocessing
import os
import random
import secrets
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from webdataset.core.errors import FlowError, NoSuchSample
from webdataset.core.optional_imports import loaded_module
from webdataset.core.redaction import redact

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TIMEOUT_SECONDS: Final = 30.0
START_SECONDS: Final = 120.0
MOST_SAMPLES: Final = 16
MOST_FIELDS: Final = 64
MOST_IMAGES: Final = 24
STORE_BYTES: Final = 64 << 20
_STORED: Final = 512
_IMAGE_SIDE: Final = 512
_MOST_PIXELS: Final = 64 << 20
_TEXT: Final = 10_000
_JSON_PARTS: Final = 2_000
_FRAMES: Final = 20
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  file names of frames


def takes_iterator(function: Any) -> bool:
    """Tell whether a function takes an iterator of samples and not a sample.

    That is a generator function, a stage of this library, and a function whose first parameter is annotated so.

    Args:
        function: the user's function.
    """
    base = loaded_module("webdataset.stages.base")
    if base is not None and isinstance(function, base.Stage | base.FilterFunction):
        return True
    own_call = vars(type(function)).get("__call__")
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(own_call):
        return True
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    text = "" if first is None or first.annotation is first.empty else str(first.annotation)
    return any(word in text for word in ("Iterator", "Iterable", "Generator"))


def set_seeds(seed: int) -> None:
    """Set the generators of Python, and of numpy and torch where they are loaded.

    Args:
        seed: any number.
    """
    random.seed(seed)
    numpy = loaded_module("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = loaded_module("torch")
    if torch is not None:
        torch.manual_seed(seed % 2**63)


def call_with_sample(function: Callable[..., Any], sample: dict[str, Any]) -> list[Any]:
    """Return what a function makes of a sample: no item, one or several.

    Args:
        function: the user's function.
        sample: fields as bytes, with ``__key__`` and ``__url__``.
    """
    if takes_iterator(function):
        return list(islice(function(iter([sample])), MOST_SAMPLES))
    found = function(sample)
    if found is None:
        return []
    if isinstance(found, list | Iterator):
        return [item for item in islice(found, MOST_SAMPLES) if item is not None]
    return [found]


class ValueDescriber:
    """Describes the values of one answer; images are made small, and their number is bounded.

    Attributes:
        images: the PNG files, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.images: list[bytes] = []

    def describe_item(self, item: Any, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an item.

        Args:
            item: a sample, a tuple or list of values, or a single value.
            before: the sample that went in.
        """
        if isinstance(item, Mapping):
            pairs = [(str(name), value) for name, value in item.items()]
        elif isinstance(item, tuple):
            names = getattr(item, "_fields", range(len(item)))
            pairs = [(str(name), value) for name, value in zip(names, item, strict=True)]
        else:
            pairs = [("value", item)]
        fields = []
        for name, value in pairs[:MOST_FIELDS]:
            found: dict[str, Any] = {"name": name, "type": type(value).__name__, "preview": None}
            try:
                found |= self.describe_value(value)
            except Exception as error:  # noqa: BLE001  a value may be of any class of the user's
                found |= {"kind": "binary", "text": f"it cannot be shown: {type(error).__name__}: {error}"[:300]}
            found["unchanged"] = isinstance(value, bytes) and before.get(name) == value
            fields.append(found)
        return {"fields": fields, "left_out": max(0, len(pairs) - MOST_FIELDS)}

    def describe_value(self, value: Any) -> dict[str, Any]:  # noqa: PLR0911  one for each kind
        """Return kind and content of a value.

        Args:
            value: anything.
        """
        if value is None or isinstance(value, bool | int | float):
            odd = isinstance(value, float) and not math.isfinite(value)
            large = isinstance(value, int) and abs(value) >= 2**53
            return {"kind": "number", "value": str(value) if odd or large else value}
        if isinstance(value, str):
            return {"kind": "text", "text": value[:_TEXT], "truncated": len(value) > _TEXT, "size_bytes": len(value)}
        if isinstance(value, bytes | bytearray | memoryview):
            return self._describe_bytes(bytes(value))
        image = loaded_module("PIL.Image")
        if image is not None and isinstance(value, image.Image):
            found = {"kind": "image", "media": {"width": value.width, "height": value.height}, "text": value.mode}
            return {**found, "preview": self._keep_image(value)}
        torch = loaded_module("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            plain = value.detach().cpu()
            array = plain.float().numpy() if plain.dtype == torch.bfloat16 else plain.numpy()
            return self._describe_array(array, str(value.dtype).removeprefix("torch."))
        numpy = loaded_module("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            array = numpy.asarray(value)
            return self._describe_array(array, str(array.dtype))
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return {"kind": "json", "json": self._outline(value)}
        return {"kind": "binary", "text": repr(value)[:1000]}

    def _describe_bytes(self, content: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "binary", "size_bytes": len(content)}
        try:
            text = content[:_TEXT].decode("utf-8")
        except UnicodeDecodeError as error:
            text = content[: error.start].decode("utf-8") if error.start > min(len(content), _TEXT) - 4 else ""
        is_text = text.isprintable() or not any(ord(sign) < 9 for sign in text)
        if is_text and (text or not content):
            return {**found, "kind": "text", "text": text, "truncated": len(content) > _TEXT}
        preview = self._open_image(content)
        return {**found, "text": content[:64].hex(" "), "preview": preview, "kind": "image" if preview else "binary"}

    def _open_image(self, content: bytes) -> int | None:
        from webdataset.inspection.image_header import read_image_size  # noqa: PLC0415  in the process alone

        size = read_image_size(content)
        if size is None or size[0] * size[1] > _MOST_PIXELS:
            return None
        try:
            from PIL import Image  # noqa: PLC0415  an extra

            return self._keep_image(Image.open(io.BytesIO(content)))
        except (ImportError, OSError, ValueError, SyntaxError):
            return None

    def _keep_image(self, picture: Any) -> int | None:
        if len(self.images) >= MOST_IMAGES or not 0 < picture.width * picture.height <= _MOST_PIXELS:
            return None
        small = picture.convert("RGBA" if "A" in picture.getbands() or "transparency" in picture.info else "RGB")
        small.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE))
        out = io.BytesIO()
        small.save(out, "PNG")
        self.images.append(out.getvalue())
        return len(self.images)

    def _describe_array(self, array: Any, dtype: str) -> dict[str, Any]:
        import numpy as np  # noqa: PLC0415  loaded by now

        found: dict[str, Any] = {"name": "", "shape": list(array.shape), "dtype": dtype}
        if array.size and array.dtype.kind in "biuf":
            numbers = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            if numbers.size:
                wide = numbers.astype(np.float64)
                found |= {
                    "minimum": numbers.min().item(), "maximum": numbers.max().item(),
                    "mean": wide.mean().item(), "std": wide.std().item(),
                }  # fmt: skip
            found["nan"] = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
            corner = array[tuple(slice(0, 8) for _ in range(array.ndim))]
            while corner.ndim > 2:
                corner = corner[0]
            found["preview"] = _plain_numbers(corner.tolist())
        picture = _find_picture(array)
        return {
            "kind": "array",
            "array": found,
            "size_bytes": int(array.nbytes),
            "preview": None if picture is None else self._keep_image(picture),
        }

    def _outline(self, value: Any) -> Any:
        """Return a value as JSON, with at most so many parts; what JSON has no words for becomes text."""
        left = [_JSON_PARTS]

        def outline(each: Any, depth: int) -> Any:  # noqa: PLR0911  one for each kind
            left[0] -= 1
            if left[0] < 0:
                return "..."
            if each is None or isinstance(each, bool | int):
                return each if each is None or abs(each) < 2**53 else str(each)
            if isinstance(each, float):
                return each if math.isfinite(each) else str(each)
            if isinstance(each, str):
                return each[:1000]
            if depth < 20 and isinstance(each, Mapping):
                return {str(name)[:200]: outline(part, depth + 1) for name, part in islice(each.items(), left[0] + 1)}
            if depth < 20 and isinstance(each, list | tuple | set | frozenset):
                return [outline(part, depth + 1) for part in islice(each, left[0] + 1)]
            shape = getattr(each, "shape", None)
            return repr(each)[:200] if shape is None else f"{type(each).__name__} {list(shape)} {each.dtype}"

        return outline(value, 0)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_numbers(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _find_picture(array: Any) -> Any:
    """Return an array as a picture where it looks like one: H x W, H x W x C or C x H x W, of bytes or of floats."""
    import numpy as np  # noqa: PLC0415  loaded by now

    if array.ndim not in (2, 3) or array.dtype.kind not in "buf" or min(array.shape) < 1:
        return None
    if array.ndim == 3:
        if array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = np.moveaxis(array, 0, 2)
        if array.shape[2] not in (1, 3, 4):
            return None
        array = array[:, :, 0] if array.shape[2] == 1 else array
    if min(array.shape[:2]) < 4 or array.shape[0] * array.shape[1] > _MOST_PIXELS:
        return None
    if array.dtype != np.uint8:
        numbers = np.nan_to_num(array.astype(np.float32), posinf=0, neginf=0)
        low, high = float(numbers.min()), float(numbers.max())
        # normalised images are stretched; those in 0..1 are shown as they are
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        array = ((numbers - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    from PIL import Image  # noqa: PLC0415  an extra

    return Image.fromarray(np.ascontiguousarray(array))


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return an exception with the frames of the user's own code.

    Args:
        error: that it raised.
    """
    import sysconfig  # noqa: PLC0415  only where something fails

    hidden = (_PACKAGE, sysconfig.get_paths()["stdlib"], "<frozen", multiprocessing.__path__[0])
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name, "code": (frame.line or "")[:200]}
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(hidden) or "site-packages" in frame.filename
    ]
    cause = error.__cause__ if isinstance(error, FlowError) and error.__cause__ is not None else error
    if cause is not error:
        return describe_failure(cause)
    return {"type": type(error).__name__, "message": str(error)[:2000], "frames": frames[-_FRAMES:]}


def run_function(name: str, pipe: "Connection") -> None:
    """Import a function and call it with samples that come through a pipe.

    Args:
        name: ``module:function``.
        pipe: gives pairs of sample and seed; takes ``ready``, then answers and their images.
    """
    # what it prints must not mix with the one line that the server prints
    os.dup2(2, 1)
    function: Any = None
    failure: dict[str, Any] | None = None
    try:
        from webdataset.cli.datasets import import_function  # noqa: PLC0415  in the process alone

        function = import_function(name)
    except BaseException as error:  # noqa: BLE001  code of the user's may raise anything
        failure = describe_failure(error)
    pipe.send("ready")
    while True:
        try:
            sample, seed = pipe.recv()
        except EOFError:
            return
        answer: dict[str, Any] = {"after": [], "error": failure, "dropped": False}
        describer = ValueDescriber()
        if failure is None:
            try:
                set_seeds(seed)
                items = call_with_sample(function, dict(sample))
                answer["after"] = [describer.describe_item(item, sample) for item in items]
                answer["dropped"] = not items
            except BaseException as error:  # noqa: BLE001  as above; also SystemExit
                answer["error"] = describe_failure(error)
        sys.stdout.flush()
        # as text: no object of the user's reaches the server
        pipe.send((json.dumps(answer, allow_nan=False, default=str), describer.images))


class PipelineRunner:
    """The user's function, and the pictures of what it made.

    Args:
        name: ``module:function``.
        timeout_seconds: after which a call is ended.
    """

    def __init__(self, name: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.name = name
        self._timeout = timeout_seconds
        self._turn = threading.Lock()
        self._process: Any = None
        self._pipe: Any = None
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._closed = False

    def call(self, sample: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return what the function makes of a sample: ``after``, ``error`` and ``dropped``.

        Args:
            sample: fields as bytes, with ``__key__`` and ``__url__``.
            seed: of all generators.
        """
        with self._turn:
            try:
                self._start()
                self._pipe.send((dict(sample), seed))
                text, images = self._receive(self._timeout, "the function")
            except _Ended as error:
                self._stop()
                failure: dict[str, Any] = {
                    "type": "Timeout" if error.late else "ProcessEnded",
                    "message": str(error),
                    "frames": [],
                }
                return {"after": [], "error": failure, "dropped": False}
        names = [self._keep(image) for image in images]
        answer: dict[str, Any] = json.loads(text)
        for item in answer["after"]:
            for field in item["fields"]:
                field["preview"] = None if field["preview"] is None else names[field["preview"] - 1]
        if answer["error"] is not None:
            for part, name in ((answer["error"], "message"), *((frame, "code") for frame in answer["error"]["frames"])):
                part[name] = redact(part[name])
        return answer

    def image(self, name: str) -> bytes:
        """Return a picture.

        Args:
            name: that an answer named.

        Raises:
            NoSuchSample: it is not kept any more, or never was.
        """
        found = self._images.get(name)
        if found is None:
            raise NoSuchSample("this picture is not kept any more: run the function again")
        return found

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._stop()

    def _keep(self, image: bytes) -> str:
        name = secrets.token_urlsafe(12)
        self._images[name] = image
        while len(self._images) > _STORED or sum(map(len, self._images.values())) > STORE_BYTES:
            self._images.popitem(last=False)
        return name

    def _start(self) -> None:
        if self._closed:
            raise _Ended("the viewer ends")
        if self._process is not None and self._process.is_alive():
            return
        self._stop()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=run_function, args=(self.name, theirs), daemon=True, name="wds-view-pipeline"
        )
        self._process.start()
        theirs.close()
        self._receive(START_SECONDS, f"the import of {self.name}")

    def _receive(self, seconds: float, what: str) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise _Ended(f"{what} took more than {seconds:g} s and was ended", late=True)
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            status = self._process.exitcode
            raise _Ended(f"the process of {self.name} ended with status {status} during the call") from error

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join(5)
            self._pipe.close()


class _Ended(Exception):
    """The process gives no answer.

    Args:
        message: why.
        late: its time was over.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late
