"""The index files of other tools, and our own.

* ``table``: the formats by name, and what each needs
* ``binary``: our own ``shard.wdsindex``, which is mapped
* ``dali``: DALI's ``shard.idx``; ``energon``: Megatron-Energon's ``shard.tar.idx`` and ``.nv-meta``
* ``files_json``: the JSON sidecar of public tar datasets; ``columns``: values of samples, in Parquet
"""
