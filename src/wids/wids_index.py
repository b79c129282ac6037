"""Door: the program ``wids-index``; ``python -m wids.wids_index`` runs it."""

from functools import partial

from webdataset.cli.wids_index import main, run
from webdataset.index.wids.gone import gone
from webdataset.shards.wids.resolving import load_remote_dsdesc_raw, urldir

__all__ = ["load_remote_dsdesc_raw", "main", "urldir"]

__getattr__ = partial(gone, __name__)

if __name__ == "__main__":
    run()
