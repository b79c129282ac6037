r"""Read from one private S3 account and write to another, each with its own keys; no key in a url or a program.

    export SOURCE_KEY=... SOURCE_SECRET=... TARGET_KEY=... TARGET_SECRET=...
    python examples/private_s3.py --source-endpoint https://s3.one.example --target-endpoint https://s3.two.example \
        's3://photos/train-{000..009}.tar' s3://copies/small-%03d.tar

Profiles say which keys and which service; routes say which urls they are for. The same can stand in a file (see
docs/config.md). Needs `pip install 'webdataset[s3]'`.
"""

import argparse
from typing import Any

import webdataset as wds


def name_accounts(source_endpoint: str, target_endpoint: str, target_bucket: str) -> None:
    """Say which keys are for which urls; the keys are read from the environment when a url is opened.

    Args:
        source_endpoint: url of the service that is read from.
        target_endpoint: url of the service that is written to.
        target_bucket: name of the bucket there; every other bucket is read with the keys of the source.
    """
    for name, endpoint in (("source", source_endpoint), ("target", target_endpoint)):
        wds.config.profile(
            name,
            endpoint_url=endpoint,
            addressing_style="path",
            region="us-east-1",
            access_key_id=f"env:{name.upper()}_KEY",
            secret_access_key=f"env:{name.upper()}_SECRET",
        )
    wds.config.route(f"s3://{target_bucket}/*", "target")
    wds.config.route("s3://*", "source")


def shorten(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the copy keeps, as bytes; nothing is decoded or encoded again."""
    return {name: value for name, value in sample.items() if name in {"__key__", "jpg", "txt", "cls"}}


def main() -> None:
    """Copy the samples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", help="urls of the shards that are read")
    parser.add_argument("target", help="pattern of the shards that are written, with %%03d")
    parser.add_argument("--source-endpoint", required=True)
    parser.add_argument("--target-endpoint", required=True)
    parser.add_argument("--samples", type=int, default=1000, help="of one shard that is written")
    options = parser.parse_args()
    bucket = options.target.removeprefix("s3://").partition("/")[0]
    name_accounts(options.source_endpoint, options.target_endpoint, bucket)
    count = 0
    dataset = wds.WebDataset(options.source, shardshuffle=False).map(shorten)
    # encoder=False: the fields are bytes, and stay as they are
    with wds.ShardWriter(options.target, maxcount=options.samples, encoder=False, verbose=0) as sink:
        for sample in dataset:
            sink.write(sample)
            count += 1
    print(f"{count} samples copied")


if __name__ == "__main__":
    main()
