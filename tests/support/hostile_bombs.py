"""Short pickles that ask for much memory or time: parts that hold each other, copies of copies, lengths that lie."""

import pickle
import struct

from support.hostile_pickles import call, content, named, number, text


def exhausting() -> dict[str, bytes]:
    """Return short pickles that ask for much memory or time."""
    return {**_doubled(), **_copied(), **_claimed(), **growing()}


def growing() -> dict[str, bytes]:
    """Return pickles that hold little, and make lists or numbers of it that are far larger, or take far longer."""
    start = call(named("builtins", "slice"), number(0), number(0))
    listed = b"]q\x00" + number(1) + b"a"
    nested = b"]q\x00" + b"0](h\x00h\x00eq\x00" * 40
    long = b"\x8b" + struct.pack("<I", 300_000) + b"\x71\x13\x5b" * 100_000
    longer = b"\x8b" + struct.pack("<I", 300_000) + b"\x17\x55\x3d" * 100_000
    decimal = call(named("decimal", "Decimal"), text("1e99999999"))
    return {
        "a list put into itself": b"\x80\x02" + start + b"q\x010" + listed + b"h\x01h\x00s" * 19 + b".",
        "a list put into itself, by new slices": b"\x80\x02" + listed + (start + b"h\x00s") * 39 + b".",
        "a list put into itself, at once": b"\x80\x02" + listed + b"(" + (start + b"h\x00") * 39 + b"u.",
        "a bytearray put into itself": b"\x80\x02"
        + call(named("builtins", "bytearray"), content(b"x"))
        + b"q\x00"
        + (start + b"h\x00s") * 39
        + b".",
        "an int of a Decimal": b"\x80\x02" + call(named("builtins", "int"), decimal) + b".",
        "an int of an array of Decimals": b"\x80\x02" + call(named("numpy", "int64"), b"](" + decimal + b"e") + b".",
        "a Decimal of an int": b"\x80\x02" + call(named("decimal", "Decimal"), long) + b".",
        "a Fraction of ints": b"\x80\x02" + call(named("fractions", "Fraction"), long, longer) + b".",
        "a long int as a key": b"\x80\x02}" + long + b"q\x000(" + b"h\x00N" * 300_000 + b"u.",
        "a long int in a set": b"\x80\x04\x8f" + long + b"q\x000(" + b"h\x00" * 300_000 + b"\x90.",
        "a long int in keys": b"\x80\x02}" + long + b"q\x000(" + b"h\x00\x85N" * 300_000 + b"u.",
        "a text of lists": b"\x80\x02" + call(named("builtins", "str"), nested) + b".",
        "a truth of lists": b"\x80\x02" + call(named("numpy", "bool_"), nested) + b".",
        "a slow encoding": b"\x80\x02"
        + call(named("builtins", "str"), content(b"a" * 1_000_000), text("punycode"))
        + b".",
    }


def _doubled() -> dict[str, bytes]:
    """Return pickles whose parts hold each other again and again."""
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 80
    return {
        "tuples doubled, as a key": b"\x80\x02}" + doubled + b"Ns.",
        "tuples doubled, as a key by DUP": b"\x80\x02})" + b"2\x86" * 80 + b"Ns.",
        "tuples doubled, in a set": b"\x80\x04\x8f(" + doubled + b"\x90.",
        "tuples doubled, in a frozenset": b"\x80\x04(" + doubled + b"\x91.",
        "tuples doubled, as an argument": b"\x80\x02" + call(named("builtins", "set"), doubled + pickle.TUPLE1) + b".",
        "tuples doubled, without use": b"\x80\x02" + doubled + b".",
        "lists doubled": b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 80 + b".",
        "lists doubled, then changed": b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 80 + b"}N\x86b.",
        "tuples in tuples, as a key": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
        "lists in lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "marks": b"(" * 200_000 + b".",
    }


def _copied() -> dict[str, bytes]:
    """Return pickles that copy one part again and again."""
    many, elements = 20_000, 100_000
    listed = b"]q\x01(" + b"N" * elements + b"e0"
    copied = {
        name: b"\x80\x02" + listed + named("builtins", name) + b"q\x00(" + b"h\x00h\x01\x85R" * many + b"l"
        for name in ("list", "tuple", "set", "frozenset")
    }
    octets = content(b"x" * elements) + b"q\x010"
    return {
        **{f"{name} copied": pickled + b"." for name, pickled in copied.items()},
        "bytearray copied": b"\x80\x02"
        + octets
        + named("builtins", "bytearray")
        + b"q\x00("
        + b"h\x00h\x01\x85R" * many
        + b"l.",
        "list of bytes copied": b"\x80\x02"
        + octets
        + named("builtins", "list")
        + b"q\x00("
        + b"h\x00h\x01\x85R" * many
        + b"l.",
        "copies of copies": b"\x80\x02"
        + named("builtins", "list")
        + b"q\x01"
        + b"h\x01" * many
        + b"]("
        + b"N" * elements
        + b"e"
        + b"\x85R" * many
        + b".",
        "array copied": b"\x80\x02"
        + octets
        + b"("
        + (
            call(
                named("numpy.core.multiarray", "_reconstruct"),
                named("numpy", "ndarray"),
                number(0) + pickle.TUPLE1,
                content(b"b"),
            )
            + b"(K\x01"
            + number(elements)
            + pickle.TUPLE1
            + call(named("numpy", "dtype"), text("u1"), pickle.NEWFALSE, pickle.NEWTRUE)
            + pickle.NEWFALSE
            + b"h\x01tb"
        )
        * 3000
        + b"l.",
    }


def _claimed() -> dict[str, bytes]:
    """Return pickles that claim lengths, or call for them."""
    return {
        "memo index": b"\x80\x02]r\xff\xff\xff\x7f.",
        "memo index as text": b"]p2147483647\n.",
        "length of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
        "length of text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
        "length of a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
        "length of an integer": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
        "length of a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "bytes of a number": call(named("builtins", "bytes"), number(1 << 40)) + b".",
        "bytearray of a number": call(named("builtins", "bytearray"), number(1 << 40)) + b".",
        "list of a range": call(named("builtins", "list"), call(named("builtins", "range"), number(1 << 40))) + b".",
        "fraction": call(named("fractions", "Fraction"), text("1e999999999")) + b".",
        "integer in decimal": b"I" + b"9" * 200_000 + b"\n.",
        "integer as text": call(named("builtins", "int"), text("9" * 200_000)) + b".",
        "decimal": call(named("decimal", "Decimal"), text("9" * 200_000)) + b".",
        "huge array": call(
            named("numpy.core.multiarray", "_reconstruct"),
            named("numpy", "ndarray"),
            number(1 << 40) + pickle.TUPLE1,
            content(b"b"),
        )
        + b".",
        "huge dtype": call(named("numpy", "dtype"), text("V2147483647"), pickle.NEWFALSE, pickle.NEWTRUE) + b".",
    }
