"""Jobs over many shards, on one machine or many.

* ``map_shards``: the function ``wds.map_shards``
* ``shard_jobs``: what a job is; ``job_planning``: inputs, outputs, and which samples each output is made of
* ``function_digest``, ``receipts``: whether an output is done
* ``shard_tasks``: makes one output; ``mapped_functions``, ``sample_errors``, ``death_records``: its parts
* ``job_engines``, ``process_engine``: where tasks run
* ``job_reports``: how a job ended
"""
