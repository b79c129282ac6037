"""The keys of the native format: what each means, and which values it takes.

Flows in: nothing. Flows out: tables, by which the parser reads and of which the editors' schema is made.
"""

from .description import VERSION
from .kinds import (
    FLAG,
    MAPPING,
    SPAN,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TRANSFORMS,
    Kind,
    Table,
    choice,
    integer,
    number,
)

MIXES = ("interleave", "exhaust", "roundrobin", "concat", "shards")
ENDS = {"interleave": "restart", "exhaust": "drop", "roundrobin": "drop", "concat": "drop", "shards": "drop"}

ROOT = Table(
    {
        "version": choice(VERSION),
        "include": TEXTS,
        "defaults": MAPPING,
        "splits": MAPPING,
    },
    {
        "version": "of this format: 1",
        "include": "specifications whose splits are taken over; a split here replaces one of the same name",
        "defaults": "keys of sources, for those that do not give them",
        "splits": "name of each split to its mix",
    },
)
MIX = Table(
    {
        "mix": choice(*MIXES),
        "exhausted": choice("restart", "drop", "stop"),
        "weights_are": choice("samples", "shards", "bytes"),
        "temperature": number(0),
        "sources": Kind(
            "a list of sources", list, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/source"}}
        ),
    },
    {
        "mix": "interleave: by weight; exhaust: by weight, until all have ended; roundrobin: in turn; concat: one "
        "behind the other; shards: the shards of all, shuffled together",
        "exhausted": "what a source does at its end: restart, drop (the others go on), stop (all end)",
        "weights_are": "what the weights count",
        "temperature": "shares are raised to this power; 0 makes all alike",
    },
)
_NESTED = {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/mix"}, {"$ref": "#/$defs/root"}]}
OPTIONS = Table(
    {
        "weight": number(0),
        "repeat": number(0, open_end=True),
        "choose": integer(1),
        "resample": integer(1),
        "subset": SPAN,
        "subsample": number(0, open_end=True, high=1),
        "rename": TEXT_MAP,
        "keep": TEXTS,
        "extensions": TEXTS,
        "tags": MAPPING,
        "decode": TEXTS,
        "transforms": TRANSFORMS,
        "preshuffle": integer(0),
        "shuffle": integer(0),
        "shardshuffle": FLAG,
        "cache": TEXT,
        "nsamples": integer(0),
        "nbytes": integer(0),
    },
    {
        "weight": "among its neighbours",
        "repeat": "passes over its shards in one epoch",
        "choose": "so many shards in each epoch, none twice",
        "resample": "so many draws of shards with replacement in each epoch",
        "subset": "the part of the list of shards that belongs to it, such as [10%, 80%]",
        "subsample": "the probability with which each sample is kept",
        "rename": "new field name to old",
        "keep": "the fields to keep",
        "extensions": "the first of these is kept, under its last component",
        "tags": "copied into each sample's __tags__",
        "decode": "arguments of decode",
        "transforms": "names of stages, each with its argument",
        "preshuffle": "samples in the buffer of a shuffle before decoding",
        "shuffle": "samples in the buffer of a shuffle behind everything else",
        "shardshuffle": "whether the shards come in a new order in each epoch",
        "cache": "directory to keep its shards in",
        "nsamples": "how many samples it has",
        "nbytes": "how many bytes its shards have",
    },
)
SOURCE = Table(
    {
        "name": TEXT,
        "shards": TEXTS,
        "wids": TEXT,
        "index": TEXT,
        "energon": TEXT,
        "split_part": TEXT,
        "spec": Kind("the path of a specification, or a mix", lambda value: value, _NESTED),
        "split": TEXT,
        **OPTIONS.kinds,
    },
    {
        "name": "in __source__ and in messages",
        "shards": "urls, with braces and wildcards, relative to this file",
        "wids": "a wids shard index",
        "index": "a wids shard index",
        "energon": "a directory prepared by Energon",
        "split_part": "which part of it",
        "spec": "another specification, or a mix of its own",
        "split": "which split of that specification",
        **OPTIONS.notes,
    },
)
KINDS_OF_SOURCE = ("shards", "wids", "index", "spec", "energon")
OF_SHARDS = ("choose", "resample", "subset", "cache", "shardshuffle", "nsamples", "nbytes")
