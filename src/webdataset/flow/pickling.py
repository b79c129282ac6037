"""Pickles pipelines for another process, with lambdas and local functions by value.

A process that is being started also receives what only such a process may have: shared values, locks, queues, tensors
in shared memory. Functions keep the names of their files, by which errors and stages say where they stand; since 3.1.3
cloudpickle calls all of them ``<dynamic-code>``.

Classes of exceptions that the program's script defines go by their name, where the new process finds them there: as
copies they could not travel back, and the program would not catch them.
"""

import io
import sys
from collections import ChainMap
from collections.abc import Callable
from multiprocessing import context, reduction
from types import CodeType
from typing import cast


def pickle_by_value(thing: object) -> bytes:
    """Return a pickle of anything that can travel.

    Raises:
        TypeError: a part that cannot be pickled; so pickle says.
        PicklingError: the same.
    """
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    usual = cloudpickle.Pickler.dispatch_table

    def reduce_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[object, ...]]:
        make, arguments, *_ = usual[CodeType](code)
        return _make_code, (make, arguments, code.co_filename)

    starting = context.get_spawning_popen() is not None
    inherited = reduction.ForkingPickler(io.BytesIO()).dispatch_table if starting else {}
    table = ChainMap({CodeType: reduce_code}, inherited, usual)

    def reduce_script_error(pickler: object, thing: object) -> object:
        if starting and isinstance(thing, type) and issubclass(thing, BaseException) and thing.__module__ == "__main__":
            return _find_script_error, (thing.__qualname__, cloudpickle.dumps(thing))
        return cloudpickle.Pickler.reducer_override(pickler, thing)

    # the table is read when a pickler is made
    members = {"dispatch_table": table, "reducer_override": reduce_script_error}
    traveller = type("Traveller", (cloudpickle.Pickler,), members)
    buffer = io.BytesIO()
    traveller(buffer).dump(thing)
    return buffer.getvalue()


def _find_script_error(name: str, by_value: bytes) -> type[BaseException]:
    """Return the class of that name in this process's script, as ``multiprocessing`` loads it; else a copy."""
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    found: object = sys.modules.get("__main__")
    for part in name.split("."):
        found = getattr(found, part, None)
    known = isinstance(found, type) and issubclass(found, BaseException) and found.__module__ == "__mp_main__"
    return cast("type[BaseException]", found if known else cloudpickle.loads(by_value))


def _make_code(make: Callable[..., CodeType], arguments: tuple[object, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)
