"""Layer 8: the chainable dataset and loader.

* ``dataset``: ``WebDataset``. ``elastic_dataset``: the same in virtual streams.
* ``interface``: one method for each stage; splitters, shuffles and the cache of a dataset.
* ``loader``: ``WebLoader``, ``FluidWrapper``, ``Processor``.
* ``mixes``: ``RandomMix`` and ``RoundRobin``. ``specs``: dataset specifications to pipelines.
"""
