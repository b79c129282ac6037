"""Door: the published module ``wids.wids_dir``, which holds nothing."""
