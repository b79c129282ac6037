"""Pickles pipelines for another process, with lambdas and local functions by value.

A process that is being started also receives what only such a process may have: shared values, locks, queues, tensors
in shared memory.
"""

import io
from collections import ChainMap
from multiprocessing import context, reduction


def pickle_by_value(thing: object) -> bytes:
    """Return a pickle of anything that can travel.

    Raises:
        TypeError: a part that cannot be pickled; so pickle says.
        PicklingError: the same.
    """
    import cloudpickle  # noqa: PLC0415  only travellers pay for it

    if context.get_spawning_popen() is None:
        pickled: bytes = cloudpickle.dumps(thing)
        return pickled
    inherited = reduction.ForkingPickler(io.BytesIO()).dispatch_table
    table = ChainMap(inherited, cloudpickle.Pickler.dispatch_table)
    traveller = type("Traveller", (cloudpickle.Pickler,), {"dispatch_table": table})  # read when a pickler is made
    buffer = io.BytesIO()
    traveller(buffer).dump(thing)
    return buffer.getvalue()
