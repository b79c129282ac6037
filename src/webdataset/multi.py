"""Door to nothing: the loader of the published versions that sent samples between processes over ZeroMQ."""

from .ground.doorways import absent

__getattr__ = absent(__name__, "use wds.WebLoader(dataset, num_workers=n, batch_size=None)")
