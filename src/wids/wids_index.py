"""Compatibility import path: the program ``wids-index``; ``python -m wids.wids_index`` runs it."""

from functools import partial

from webdataset.cli.wids_index import main, run
from webdataset.index.wids.removed_names import removed_name
from webdataset.shards.wids_lists import load_remote_dsdesc_raw, urldir

__all__ = ["load_remote_dsdesc_raw", "main", "urldir"]

__getattr__ = partial(removed_name, __name__)

if __name__ == "__main__":
    run()
