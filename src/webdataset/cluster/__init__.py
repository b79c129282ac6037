"""Jobs over many shards, on one machine or many.

* ``map_shards``: the function ``wds.map_shards``
* ``shard_jobs``: what a job is; ``job_definition``, ``job_planning``: make one of inputs, outputs and a function
* ``function_digest``, ``receipts``: whether an output is done; ``stored_files``: identities and small files
* ``shard_tasks``: makes one output, with ``mapped_functions``, ``task_files``, ``sample_errors``, ``death_records``
* ``job_engines``, ``process_engine``, ``executor_engines``: where tasks run; ``task_results``: how a task ended
* ``job_manifests``: scripts and manifests of schedulers
* ``job_reports``: how a job ended

What a training over many hosts will do, for ``wds simulate``:

* ``training_forecast``: speed, memory, start, failures, of a ``training_job`` with ``training_rates``
* ``reader_shares``: what each process reads; ``request_bursts``: requests that all hosts send at once
"""
