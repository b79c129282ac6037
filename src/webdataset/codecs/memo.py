"""Pickles of a few bytes that would fill the memory: the C unpickler's memo is as long as its largest index.

Theory. PUT and LONG_BINPUT name the index to store under, and the C unpickler makes room for all before it: nine bytes
can ask for 34 GB. No honest pickle uses an index beyond its own length in bytes. A search for bytes that could be such
an opcode settles most pickles; the rest are cut into opcodes, nearly all by one regular expression in C, to see whether
it is one or lies inside of a string.
"""

import functools
import pickletools
import re

_COULD_BE = re.compile(rb"r[\s\S]{3}[^\0]|p[^\n]{8,}\n")
_STOP, _PUT, _LONG_BINPUT = b".pr"


def is_modest(data: bytes) -> bool:
    """Tell whether a pickle surely stores under no index beyond its length.

    Args:
        data: one pickle.

    Returns:
        False for pickles that do, and for those that cannot be cut into opcodes.
    """
    if _COULD_BE.search(data) is None:
        return True
    run, prefixes = _opcodes()
    end = len(data)
    at = 0
    while at < end:
        match = run.match(data, at)
        at = at if match is None else match.end()
        opcode = data[at] if at < end else _STOP
        if opcode == _STOP:
            return at < end
        length = prefixes.get(opcode)
        if length is not None:
            at += 1 + length + int.from_bytes(data[at + 1 : at + 1 + length], "little")
        elif opcode == _LONG_BINPUT:
            if int.from_bytes(data[at + 1 : at + 5], "little") > end:
                return False
            at += 5
        else:
            line = data.find(b"\n", at)
            if opcode != _PUT or not data[at + 1 : line].isdigit() or line - at > 19 or int(data[at + 1 : line]) > end:
                return False
            at = line + 1
    return False


@functools.cache
def _opcodes() -> tuple[re.Pattern[bytes], dict[int, int]]:
    """Return a pattern for runs of opcodes of simple form, and the sizes of the lengths that the others start with."""
    kinds: dict[int, bytes] = {}
    for opcode in pickletools.opcodes:
        kind = 0 if opcode.arg is None else opcode.arg.n
        code = opcode.code.encode("latin-1")
        if code not in b".prci":
            kinds[kind] = kinds.get(kind, b"") + code
    short = {1: kinds.pop(pickletools.TAKEN_FROM_ARGUMENT1), 4: kinds.pop(pickletools.TAKEN_FROM_ARGUMENT4U)}
    signed, long = kinds.pop(pickletools.TAKEN_FROM_ARGUMENT4), kinds.pop(pickletools.TAKEN_FROM_ARGUMENT8U)
    lines = re.escape(kinds.pop(pickletools.UP_TO_NEWLINE))
    forms = [b"[%b]%b" % (re.escape(codes), rb"[\s\S]{%d}" % size) for size, codes in sorted(kinds.items())]
    for size, codes in short.items():
        bodies = (re.escape(n.to_bytes(size, "little")) + rb"[\s\S]{%d}" % n for n in range(256))
        forms.append(b"[%b](?:%b)" % (re.escape(codes), b"|".join(bodies)))
    forms += [rb"[%b][^\n]*\n" % lines, rb"[ci][^\n]*\n[^\n]*\n"]
    prefixes = dict.fromkeys(short[4] + signed, 4) | dict.fromkeys(long, 8)
    return re.compile(b"(?:%b)*+" % b"|".join(forms)), prefixes
