"""Layer 6: the pipeline as a value, and its interpreters: run, save, restore, explain, measure.

* ``pipeline``: DataPipeline, a list of stages and how long it runs
* ``run``: a running pipeline, pass after pass, and its snapshot
* ``snapshot_checks``: refuses the snapshot of a run whose parts no run has
* ``stage_runner``: one stage of a run: its state, its generator, its replay
* ``epochs``: seeds, and epoch numbers in worker processes
* ``elastic``: the run of an elastic dataset in one worker
* ``elastic_pipeline``: the pipeline that ``elastic()`` returns
* ``virtual_stream``: one virtual stream, and whether its epoch is over
* ``stream_stages``: the stages of one virtual stream
* ``whole_shards``: stages that join neighbouring samples, and what would keep these apart
* ``elastic_state``: the JSON state of an elastic dataset: build, merge, refuse damage and the state of another dataset
* ``fingerprint``: what identifies a dataset, by which states are compared
* ``key_tracing``: the keys that a pipeline gives, without decoding; ``index_tracing``: by indexes, without reading
* ``state_description``: what a saved state says
* ``equal_epochs``: equally many items on every rank
* ``outcomes``: a stage that dropped every sample of a pass
* ``pass_checks``: a pass of another length than the declared one
* ``explain``: a pipeline in words
* ``timing``: the time that each stage takes
* ``shuffle_quality``: how well a pipeline mixes
* ``pickling``: pipelines on their way to another process
"""
