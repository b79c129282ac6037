"""The table of the kinds of findings: code, severity, what a finding means, and what to do about it.

``docs/check-findings.md`` shows the same table. Severities: an *error* loses samples or fields, or makes a reader
fail; a *warning* is read differently by different programs, or looks like a mistake; a *note* is worth knowing.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, cast

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


class FindingKind(NamedTuple):
    """One kind of finding.

    Args:
        code: its name, which programs compare with.
        severity: ``error``, ``warning`` or ``note``.
        meaning: what is wrong, in one sentence.
        remedy: what to do about it.
    """

    code: str
    severity: Severity
    meaning: str
    remedy: str


_TABLE: Final = """
unreadable: error
    The shard cannot be opened, or reading it fails.
    > Read the message; check url and access.
wrong-file: error
    The file is no tar archive: a zip, an HTML page, a Parquet file, or something else.
    > Fetch the file again, or pack it into a tar archive.
empty-file: error
    The file has no bytes.
    > Write or copy the shard again.
empty-shard: warning
    The shard holds no samples.
    > Remove it from the list of shards.
bad-compression: error
    The compressed stream is damaged or ends early.
    > Copy the shard again from its source.
mixed-compression: warning
    Some shards of the list are compressed and others are not, or in another way.
    > Write all shards in one way.
misleading-name: warning
    The name of the shard says another compression than its bytes.
    > Rename the shard.
bad-header: error
    A header fails its checksum or makes no sense; reading continues at the next header.
    > Copy the shard again, or use the repaired copy.
bad-extension: error
    An extended header (PAX records, a long name, a sparse map) makes no sense.
    > Write the shard again.
limit: error
    A header chain, a name or an extended header is larger than the reader allows.
    > Write the shard again.
cut: error
    The archive ends inside a member, a header or its padding.
    > Copy the shard again, or use the repaired copy.
no-end-mark: error
    The archive ends between two members, without its end mark: it may have been cut there.
    > Write it again, or use the repaired copy.
short-end-mark: note
    The end mark is one block of zeros in place of two.
    > Nothing, or use the repaired copy.
lone-zero-block: error
    Blocks of zeros stand inside the archive where no usual writer leaves them; most readers end there.
    > Use the repaired copy; compare with the source.
joined-archives: warning
    Another archive follows the end mark; GNU tar, Python's tarfile and readers built on them end at the
    first.
    > Use the repaired copy.
trailing-garbage: warning
    Bytes after the end mark or the compressed stream belong to no archive.
    > Use the repaired copy.
interrupted-sample: error
    Damage stands next to the sample: some of its fields may be missing.
    > Write the sample again.
split-sample: error
    A key comes again in the shard, with other fields: its samples are parts of one.
    > Sort the members by name, or use the repaired copy.
repeated-key: warning
    A key comes again in the shard with the same fields.
    > Give each sample a key of its own.
repeated-key-across: warning
    A key stands in several shards of the list.
    > Give each sample a key of its own, or remove the copies.
keys-forgotten: note
    More keys than fit into the memory bound: repetitions among the further ones are not found.
    > Check fewer shards at a time, or raise most_keys.
duplicate-field: error
    A field stands twice in one sample.
    > Use the repaired copy, which keeps the first, or write the shard again.
ragged-sample: warning
    Samples lack a field that most samples have.
    > Write these samples again, or leave them out with select.
ragged-shard: warning
    A shard lacks a field that most shards have.
    > Write the shard again.
own-field: error
    A member is called like metadata of the sample itself (__key__, __url__).
    > Rename the member.
no-extension: warning
    A member's name has no extension: it belongs to no sample and is left out.
    > Rename the member.
upper-case-extension: warning
    An extension has capitals; this library lower-cases it, other readers do not.
    > Rename the member.
bad-name: warning
    A name is not UTF-8.
    > Rename the member.
odd-name: warning
    A name holds control characters, a backslash, or blanks at an end.
    > Rename the member.
absolute-name: warning
    A name starts with a slash or a drive letter: unpacking may write outside the folder.
    > Rename the member.
parent-name: warning
    A name leads out of its folder (..).
    > Rename the member.
empty-member: note
    A member has no bytes, and is a text or has no decoder.
    > Nothing, if that is its content.
hard-link: warning
    A member is a hard link; readers of streams often leave it out.
    > Use the repaired copy, or pack with --hard-dereference.
symbolic-link: error
    A member is a symbolic link: it has no bytes, and readers leave it out.
    > Pack with --dereference.
special-member: warning
    A member is a device or a FIFO: readers leave it out.
    > Leave it out of the shard.
unknown-type: error
    A member has a type that readers do not know: they leave it out.
    > Write the shard again.
sparse-member: warning
    A member is sparse: its bytes do not lie in the shard as they are, and many readers fail.
    > Use the repaired copy, or pack without --sparse.
size-conflict: error
    The extended header and the header state different sizes: programs read different members.
    > Do not trust the shard; write it again.
name-conflict: error
    The extended headers and the header state different names: programs read different members.
    > Do not trust the shard; write it again.
global-override: error
    A global PAX header gives all members after it a name, a size or a link; programs differ.
    > Do not trust the shard; write it again.
bad-text: error
    A text field is not UTF-8.
    > Encode it again.
bad-number: warning
    A field of numbers (cls, index, id) is no number: decode() fails.
    > Write a number, or use another extension.
bad-json: error
    A JSON field does not parse.
    > Write the sample again.
bad-structure: error
    A YAML, msgpack or CBOR field does not parse.
    > Write the sample again.
bad-array: error
    An npy, npz, tenbin or safetensors field does not parse.
    > Write the sample again.
bad-pickle: error
    A pickle or .pth field does not load.
    > Write the sample again.
unsafe-pickle: error
    A pickle asks for a class or function that is not on the allow-list. It was not run.
    > Do not load it elsewhere; use JSON, npy or safetensors.
bad-image: error
    An image does not decode.
    > Write the sample again.
bad-audio: error
    A sound does not decode.
    > Write the sample again.
bad-video: error
    A video does not decode.
    > Write the sample again.
bad-compressed-field: error
    A compressed field does not decompress.
    > Write the sample again.
wrong-content: warning
    The bytes of a field are of another kind than its extension says.
    > Rename the member.
too-large: warning
    A field would take more memory than the limit, and was not decoded.
    > Raise the limit that the message names.
not-checked: note
    Fields of this extension were not decoded: a package is missing.
    > Install the extra that the message names.
wrong-digest: error
    The shard's digest is not the one that its index file records.
    > Copy the shard again, or write the index again.
wrong-size: error
    The shard's size is not the one that its index file records.
    > Copy the shard again, or write the index again.
refused-hf: error
    Hugging Face datasets refuses the shard.
    > Read the message.
differs-hf: warning
    Hugging Face datasets reads other samples or fields.
    > Read the message.
refused-dali: error
    DALI's webdataset reader refuses the shard.
    > Read the message.
differs-dali: warning
    DALI's webdataset reader reads other samples or fields.
    > Read the message.
refused-energon: error
    Energon refuses the shard.
    > Read the message.
differs-energon: warning
    Energon reads other samples or fields.
    > Read the message.
refused-ray: error
    Ray Data refuses the shard.
    > Read the message.
differs-ray: warning
    Ray Data reads other samples or fields.
    > Read the message.
refused-grain: error
    Grain, over wds.IndexedDataset, refuses the shard.
    > Read the message.
differs-grain: warning
    Grain, over wds.IndexedDataset, reads other samples or fields.
    > Read the message.
"""


def _parse_table(text: str) -> Iterator[FindingKind]:
    """Yield the rows: a line with code and severity, the meaning, and after ``>`` the remedy."""
    for row in re.split(r"\n(?=\S)", text.strip()):
        head, *rest = row.split("\n")
        code, _, severity = head.partition(": ")
        meaning, _, remedy = " ".join(line.strip() for line in rest).partition(" > ")
        yield FindingKind(code, cast("Severity", severity), meaning, remedy)


KINDS: Final[dict[str, FindingKind]] = {kind.code: kind for kind in _parse_table(_TABLE)}
"""Code to kind."""
