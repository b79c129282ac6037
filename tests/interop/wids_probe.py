"""Say as JSON what the published wids reads of shards by an index, in each case that standard input names."""

import json
import sys
from typing import Any

import wids

found: dict[str, Any] = {}
for name, index in json.load(sys.stdin).items():
    try:
        dataset = wids.ShardListDataset(index, transformations=[], keep=True)
        found[name] = [
            [
                sample["__key__"],
                {field[1:]: value.read().hex() for field, value in sample.items() if not field.startswith("__")},
            ]
            for sample in (dataset[ordinal] for ordinal in range(len(dataset)))
        ]
    except Exception as error:
        found[name] = repr(error)
json.dump(found, sys.stdout)
