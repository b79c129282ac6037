"""Layer 8: the chainable dataset and loader.

* ``dataset``: WebDataset; ``elastic_dataset``: the same in virtual streams
* ``interface``: one method for each stage, and the order in which shards are read
* ``loader``: WebLoader, FluidWrapper, Processor
* ``mixes``: RandomMix and RoundRobin; ``specs``: dataset specifications to pipelines
"""
