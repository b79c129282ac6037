"""The index files of other tools.

* ``table``: the formats by name, and what each needs
* ``dali``: DALI's ``shard.idx``; ``energon``: Megatron-Energon's ``shard.tar.idx`` and ``.nv-meta``
* ``files_json``: the JSON sidecar of public tar datasets
"""
