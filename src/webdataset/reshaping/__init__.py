"""Layer 8: shards made from shards, and from files and tables; the engines of the commands that write.

Samples pass through as they stand (:mod:`webdataset.samples.raw_samples`): names, modes, times and PAX records of their
members stay, byte by byte.

* ``raw_writer``: shards of raw samples, one or numbered ones
* ``external_sort``: sorting and shuffling with bounded memory
* ``selection``: which samples and fields stay, and under which names; ``join``: fields of several datasets by key
* ``tag_lines``: keys and tags in a file, one of each a line
* ``mixing``: the sources of a dataset specification as one stream
* ``creation``: samples of files, tables and recipes; ``processing``: commands and functions, sample by sample
* ``conversion``: samples of other formats; ``field_values``: values of rows to fields
* ``table_reading``: Parquet, Arrow and Hugging Face datasets; ``tfrecord``, ``mds``: those files; ``folders``: files
* ``table_columns``: fields to columns of a table; ``table_writing``: tables of samples
* ``recompression``: another compression, the tar stream unchanged
"""
