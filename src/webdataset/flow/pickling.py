"""Pickles pipelines for another process, with lambdas and local functions by value.

A process that is being started also receives what only such a process may have: shared values, locks, queues, tensors
in shared memory. Functions keep the names of their files, by which errors and stages say where they stand; since 3.1.3
cloudpickle calls all of them ``<dynamic-code>``.
"""

import io
from collections import ChainMap
from collections.abc import Callable
from multiprocessing import context, reduction
from types import CodeType


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
    # the table is read when a pickler is made
    traveller = type("Traveller", (cloudpickle.Pickler,), {"dispatch_table": table})
    buffer = io.BytesIO()
    traveller(buffer).dump(thing)
    return buffer.getvalue()


def _make_code(make: Callable[..., CodeType], arguments: tuple[object, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)
