"""Layer 6: the pipeline as a value, and its interpreters: run, snapshot, restore.

* ``pipeline``: DataPipeline, a list of stages and how long it runs
* ``run``: a running pipeline, pass after pass, and its snapshot
* ``stage_runner``: one stage of a run: its state, its generator, its replay
* ``epochs``: seeds, and epoch numbers in worker processes
* ``elastic``, ``virtual_stream``, ``stream_stages``: reading in virtual streams; ``elastic_pipeline``: its pipeline
* ``elastic_state``: the JSON state of an elastic dataset, and its checks; ``fingerprint``: does a state fit a dataset
* ``key_tracing``: the keys that a pipeline gives, without decoding; ``state_description``: what a saved state says
* ``equal_epochs``: equally many items on every rank
* ``outcomes``, ``pass_checks``: checks at the end of a pass
* ``explain``, ``timing``, ``shuffle_quality``: what a pipeline does, how long it takes, how well it shuffles
* ``pickling``: pipelines on their way to another process
"""
