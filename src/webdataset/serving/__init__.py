"""Batches made in one process for trainers in others: data servers (``wds serve``) and their loader."""
