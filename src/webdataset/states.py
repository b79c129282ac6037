"""Import path of what is known of saved states; the code lives in :mod:`webdataset.loading.states`."""

from webdataset.loading.states import (
    Delivery,
    StateDescription,
    TracedBatch,
    advance,
    describe,
    find_state,
    plan_delivery,
    trace,
)

__all__ = [
    "Delivery", "StateDescription", "TracedBatch", "advance", "describe", "find_state", "plan_delivery", "trace",
]  # fmt: skip
