"""The published ``wids``: a list of shards as one sequence of samples, and the orders to read it in.

* ``dataset``: ShardListDataset; ``transforms``: decoding; ``samplers``: orders
* ``samples``: one tar file, by sample and by member
* ``local_copies``: downloads, temporary files, names of copies, the LRU table
* ``removed_names``: published names without an equivalent, and what to write instead
"""
