"""Compatibility import path: the published module ``wids.wids_dir``, which holds nothing."""
