"""Receipts: beside each output a small JSON file that says what it was made of, and so whether it is done.

Theory. The receipt is written after its output is complete. Its key is a digest of all that decides the output's bytes:
the function, parameters and options, and name, size and ETag of each input. An output is done if the key is equal and
the output is still the one that the receipt describes. Local files have no ETag: their digest is recorded, and where
the time of change or the folder is another one, the bytes decide, and the receipt is renewed. Anything else, a receipt
that cannot be read included, means that the output is made again; a receipt is never trusted further than that.
"""

from typing import Final, NamedTuple

from webdataset.cluster.shard_jobs import InputPart, InputShard, ShardJob
from webdataset.cluster.stored_files import (
    Record,
    StoredIdentity,
    digest_record,
    file_name,
    format_record,
    hash_object,
    identify_object,
    read_record,
    write_small_file,
)
from webdataset.core.errors import NotFound
from webdataset.core.redaction import redact

KIND: Final = "wds-map-receipt"
VERSION: Final = 1
WRITER: Final = 1
"""Raised when the same samples are written as other bytes than before."""
SUFFIX: Final = ".receipt.json"


class Decision(NamedTuple):
    """Whether an output is done.

    Args:
        done: it is, and nothing has to be made.
        reason: why it is made: ``output missing``, ``function`` ...; empty where it is done.
        receipt: what was found, where it could be read.
    """

    done: bool
    reason: str
    receipt: Record | None = None


def receipt_url(output: str) -> str:
    """Return where the receipt of an output stands; a query of the url stays at its end."""
    path, mark, query = output.partition("?") if "://" in output else (output, "", "")
    return f"{path}{SUFFIX}{mark}{query}"


def describe_work(job: ShardJob, number: int) -> Record:
    """Return all that decides the bytes of an output.

    Args:
        job: with this output.
        number: of the output.
    """
    parts = job.outputs[number].parts
    return {
        "writer": WRITER,
        "inputs": [_describe_input(job.inputs[part.number], part) for part in parts],
        "fn": {name: job.function.get(name) for name in ("code", "holds", "declared")},
        "params": dict(job.params),
        "options": {
            "compress": job.compress,
            "level": job.level,
            "on_sample_error": job.on_sample_error,
        },
        "assignment": job.assignment,
    }


def _describe_input(shard: InputShard, part: InputPart) -> Record:
    found = shard.identity
    known = {name: getattr(found, name) for name in ("size", "etag", "version") if getattr(found, name) is not None}
    if found.etag is None and found.version is None and found.modified is not None:
        known["modified"] = found.modified
    return {"name": redact(file_name(shard.url)), **known, "range": [part.start, part.stop]}


def make_receipt(
    job: ShardJob,
    number: int,
    *,
    output: Record,
    counts: dict[str, int],
    digests: dict[int, str],
    quarantine: Record | None,
    run: Record,
) -> Record:
    """Return a receipt.

    Args:
        job: with this output.
        number: of the output.
        output: size, digest and identity of it.
        counts: samples in, out, dropped and failed.
        digests: number of a local input to the digest of its bytes.
        quarantine: where failed samples are.
        run: who made it, and when; never compared.
    """
    what = describe_work(job, number)
    seen = []
    for part in job.outputs[number].parts:
        shard = job.inputs[part.number]
        digest = digests.get(part.number, shard.blake2b)
        seen.append({"url": redact(shard.url), "mtime_ns": shard.identity.mtime_ns, "blake2b": digest})
    return {
        "kind": KIND,
        "version": VERSION,
        "key": digest_record(what),
        "what": what,
        "fn": job.function.get("name"),
        "seen": seen,
        "output": output,
        "counts": counts,
        "quarantine": quarantine,
        "run": run,
    }


def write_receipt(output: str, receipt: Record) -> None:
    """Write the receipt of an output, whole or not at all.

    Args:
        output: url of the output.
        receipt: of it.

    Raises:
        SourceError: it cannot be written.
    """
    write_small_file(receipt_url(output), format_record(receipt) + b"\n")


def read_receipt(output: str) -> Record | None:
    """Return the receipt of an output; None where there is none that this version can read.

    Args:
        output: url of the output.

    Raises:
        SourceError: the store refuses, or does not answer.
    """
    found = read_record(receipt_url(output))
    if found is None or found.get("kind") != KIND or found.get("version") != VERSION:
        return None
    shapes = {"what": dict, "output": dict, "counts": dict, "seen": list}
    if not all(isinstance(found.get(name), shape) for name, shape in shapes.items()):
        return None
    return found if all(isinstance(each, dict) for each in found["seen"]) else None


def decide(job: ShardJob, number: int) -> Decision:
    """Tell whether an output is done, and if not, why.

    Args:
        job: with this output.
        number: of the output.

    Raises:
        SourceError: a store refuses, or does not answer.
    """
    output = job.outputs[number].url
    receipt = read_receipt(output)
    if receipt is None:
        return Decision(False, "no receipt")
    what = describe_work(job, number)
    reason = _compare_work(what, receipt)
    if reason:
        return Decision(False, reason, receipt)
    if has_too_many_errors(job, receipt["counts"]):
        return Decision(False, "too many errors", receipt)
    return _compare_files(job, number, receipt)


def _compare_files(job: ShardJob, number: int, receipt: Record) -> Decision:
    """Compare the output and the inputs with those that a receipt describes; renew the receipt where they moved."""
    output = job.outputs[number].url
    try:
        found = identify_object(output)
    except NotFound:
        return Decision(False, "output missing", receipt)
    moved = _compare_output(output, found, receipt["output"], verify=job.verify)
    if moved is None:
        return Decision(False, "output changed", receipt)
    renewed = _compare_inputs(job, number, receipt["seen"])
    if renewed is None:
        return Decision(False, "input", receipt)
    seen, touched = renewed
    if touched or moved:
        receipt = {**receipt, "seen": seen, "output": {**receipt["output"], **found.to_json()}}
        write_receipt(output, receipt)
    return Decision(True, "", receipt)


def has_too_many_errors(job: ShardJob, counts: dict[str, int]) -> bool:
    """Tell whether more samples failed than a job allows.

    Args:
        job: with ``max_errors``: a count, or a share below 1.
        counts: ``in`` and ``errors`` of an output.
    """
    most = job.max_errors
    if most is None:
        return False
    return counts.get("errors", 0) > (most * counts.get("in", 0) if isinstance(most, float) and most < 1 else most)


def _compare_work(what: Record, receipt: Record) -> str:
    """Return what differs from a receipt, in a word; nothing where nothing does."""
    before = receipt["what"]
    if receipt.get("key") == digest_record(what) and format_record(before) == format_record(what):
        return ""
    words = {"fn": "function", "params": "params", "inputs": "input", "options": "options", "writer": "writer version"}
    changed = [word for name, word in words.items() if before.get(name) != what[name]]
    return ", ".join(changed) or "receipt of another job"


def _compare_output(url: str, found: StoredIdentity, recorded: Record, *, verify: bool) -> bool | None:
    """Return whether the receipt has to be renewed; None where the output is another one."""
    if recorded.get("name") != redact(file_name(url)) or found.size is None or found.size != recorded.get("size"):
        return None
    before = StoredIdentity.from_json(recorded)
    same = found.is_known and all(
        now is None or then is None or now == then for now, then in zip(found[1:], before[1:], strict=True)
    )
    comparable = any(now is not None and now == then for now, then in zip(found[1:], before[1:], strict=True))
    if same and comparable and not verify:
        return False
    if not same and found.mtime_ns is None:
        return None
    return not (same and comparable) if hash_object(url) == recorded.get("blake2b") else None


def _compare_inputs(job: ShardJob, number: int, seen: list[Record]) -> tuple[list[Record], bool] | None:
    """Return what the receipt should say of the inputs, and whether that is new; None where an input is another."""
    parts = job.outputs[number].parts
    if len(seen) != len(parts):
        return None
    now, touched = [], False
    for part, before in zip(parts, seen, strict=True):
        shard = job.inputs[part.number]
        if not shard.identity.is_known and job.trust != "name":
            return None
        if shard.identity.mtime_ns is None:
            now.append(before)
            continue
        place = {"url": redact(shard.url), "mtime_ns": shard.identity.mtime_ns}
        if any(before.get(name) != there for name, there in place.items()):
            if before.get("blake2b") is None or hash_object(shard.url, job.storage_options) != before["blake2b"]:
                return None
            touched = True
        now.append({**before, **place})
    return now, touched
