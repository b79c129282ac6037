"""Layer 4: the shards of a dataset: which there are, in which order, and which of them this rank and worker reads.

* ``source``: decides once what a dataset's ``urls`` is: a list of shards, or a specification.
* ``expand``: ``::``, ``${NAME}``, braces and wildcards to urls.
* ``lists``: lists of shards: in order, resampled, endless. ``directory``: shards that appear and go away.
* ``split``: splitting between ranks, workers and virtual streams.
* ``wids_index``: reads and writes shard indexes. ``wids_lists``: indexes as lists, and as the dicts of ``wids_specs``.
* ``urls``: urls that stand in a document. ``specs``: dataset specifications.
"""
