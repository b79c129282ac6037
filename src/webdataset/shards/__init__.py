"""Layer 4: the shards of a dataset: which there are, in which order, and which of them this rank and worker reads.

* ``source``: decides once what a dataset's ``urls`` is: a list of shards, or a specification.
* ``expand``: ``::``, ``${NAME}``, braces and wildcards to urls.
* ``lazy_urls``: very many urls of braces, made when they are asked for.
* ``shared_listing``: one listing of a folder or wildcard for all processes of a job on one host.
* ``lists``: lists of shards: in order, resampled, endless. ``directory``: shards that appear and go away.
* ``split``: ``split_by_node``, ``split_by_worker``, ``split_by_sample``; the shares of virtual streams.
* ``shard_walk``: goes through a list once for all streams of a worker.
* ``wids_index``: reads and writes shard indexes. ``wids_lists``: indexes as lists, and as the dicts of ``wids_specs``.
* ``urls``: urls that stand in a document. ``specs``: dataset specifications.
"""
