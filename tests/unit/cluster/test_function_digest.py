"""The digest of a function changes with what it computes, and not with how it is written down."""

import functools
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from webdataset.cluster.function_digest import describe_function, format_plain
from webdataset.core.errors import UsageError

PLAIN = '''
import re
K = 3
NAMES = {"cat": 0, "dog": 1}
FORM = re.compile("a+")

def helper(x):
    return x * K

def shrink(sample, size=4):
    """Make it smaller."""
    # by its first bytes
    return {**sample, "txt": helper(sample["txt"][:size]), "n": NAMES.get("cat"), "m": bool(FORM.match("a"))}

class Model:
    scale = 2
    def setup(self):
        self.k = K
    def __call__(self, sample):
        return helper(sample) * self.scale
'''


def load(folder, text, name="mapped_by_digest"):
    """Import a module of this text from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text)
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(function, version=None):
    """Return what counts of a description."""
    found = describe_function(function, version)
    return found.code, found.holds, found.declared


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# by its first bytes", "# by other words"),
        ('"""Make it smaller."""', '"""Make it larger, the document says."""'),
        ("    return x * K", "\n    return (\n        x  *  K  # product\n    )"),
        ("import re\n", "import re\nimport os\nUNUSED = 5\n\n\ndef unused(x):\n    return x\n\n"),
    ],
)
@pytest.mark.parametrize("name", ["shrink", "Model"])
def test_comments_layout_and_neighbours_do_not_count(tmp_path, old, new, name):
    """Neither do the place of the file and its line numbers."""
    one, other = load(tmp_path / "a", PLAIN), load(tmp_path / "b/c", PLAIN.replace(old, new))
    assert old in PLAIN
    assert digest(getattr(one, name)) == digest(getattr(other, name))


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("K = 3", "K = 4", ["shrink", "Model"]),
        ('"dog": 1', '"dog": 2', ["shrink"]),
        ('compile("a+")', 'compile("a*")', ["shrink"]),
        ("return x * K", "return x + K", ["shrink", "Model"]),
        ("size=4", "size=5", ["shrink"]),
        ("[:size]", "[size:]", ["shrink"]),
        ("scale = 2", "scale = 2.5", ["Model"]),
        ("self.k = K", "self.k = -K", ["Model"]),
    ],
)
def test_what_it_computes_counts(tmp_path, old, new, names):
    """Constants, helpers, defaults, attributes of a class, its methods: of the function that names them."""
    one, other = load(tmp_path / "a", PLAIN), load(tmp_path / "b", PLAIN.replace(old, new))
    changed = [name for name in ("shrink", "Model") if digest(getattr(one, name)) != digest(getattr(other, name))]
    assert changed == names


def make_closure(factor, held):
    """Return a function that holds two values."""

    def inner(sample):
        return sample * factor, held

    return inner


def test_what_it_holds_counts():
    """Closures, partials, attributes of an object that is called, arrays."""
    plain = make_closure(2, [1, {"a": {3, 1, 2}}])
    assert digest(plain) == digest(make_closure(2, [1, {"a": {2, 3, 1}}]))
    assert digest(plain) != digest(make_closure(3, [1, {"a": {2, 3, 1}}]))
    assert digest(plain) != digest(make_closure(2, [1, {"a": {2, 3}}]))
    assert digest(make_closure(1, np.arange(5))) == digest(make_closure(1, np.arange(5)))
    assert digest(make_closure(1, np.arange(5))) != digest(make_closure(1, np.arange(5) + 1))
    assert digest(functools.partial(plain, x=1)) != digest(functools.partial(plain, x=2))
    assert digest(plain, "1") != digest(plain, "2")
    assert digest(make_closure(1, [plain, object])) != digest(make_closure(1, [make_closure(3, 1), object]))
    assert digest(make_closure(1, {"a": plain})) == digest(make_closure(1, {"a": plain}))
    assert digest(functools.cache(plain))[0] == digest(plain)[0]


def test_lambdas_of_one_line_differ():
    """Two lambdas in one statement are told apart by their code."""
    first, second = (lambda sample: sample + 1), (lambda sample: sample + 2)
    assert digest(first) != digest(second)
    alone = lambda sample: sample + 1  # noqa: E731
    assert digest(alone) == digest(alone)


def test_what_is_not_seen_is_named():
    """A value that is not plain is named; so its change is the user's to declare."""
    found = describe_function(make_closure(1, object()))
    assert found.unseen == ("function.held (builtins.object)",)
    with pytest.raises(UsageError, match="pass version="):
        describe_function(len)
    assert describe_function(len, "1").declared == "1"


def test_other_processes_and_versions_of_python_agree(tmp_path):
    """The digest of a function with source is the same in another interpreter, whatever its hash seed."""
    (tmp_path / "elsewhere.py").write_text(PLAIN)
    code = "import json, elsewhere as e; from webdataset.cluster.function_digest import describe_function as d; "
    code += "print(json.dumps([d(e.shrink).to_json(), d(e.Model).to_json()]))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3] / 'src'}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(json.loads(runs[0])) == 2


def test_helpers_in_other_modules_count(tmp_path, monkeypatch):
    """A function of another module of the user's counts; one of an installed package counts by its name."""
    text = "import elsewhere_2, textwrap\nfrom elsewhere_2 import add\n"
    text += "def f(x): return add(x)\ndef g(x): return elsewhere_2.add(x)\ndef h(x): return textwrap.dedent(x)\n"
    found = []
    for step in ("1", "2"):
        monkeypatch.setitem(
            sys.modules, "elsewhere_2", load(tmp_path / step, f"def add(x): return x + {step}", "elsewhere_2")
        )
        module = load(tmp_path / step, text, "caller_2")
        found.append([digest(module.f), digest(module.g), digest(module.h)])
    assert [one == other for one, other in zip(*found, strict=True)] == [False, False, True]


def test_functions_without_source(tmp_path):
    """What a prompt defines is told apart by its code."""
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec(textwrap.dedent("def f(x): return x + 1\ndef g(x): return x + 2\ndef h(x): return x + 1"), names)
    assert digest(names["f"]) != digest(names["g"])
    assert digest(names["f"])[0] == digest(names["h"])[0]


def test_plain_values():
    """Only values whose text says all are plain."""
    assert format_plain((1, 1.0, True, "1", b"1", None)) == (
        "tuple [\"int 1\", 'float 1.0', 'bool True', \"str '1'\", \"bytes b'1'\", 'NoneType None']"
    ).replace('"int 1"', "'int 1'")
    assert format_plain({"a": object()}) is None
    assert format_plain(re.compile("x")) != format_plain(re.compile("x", re.IGNORECASE))
    endless: list[Any] = []
    endless.append(endless)
    assert format_plain(endless) is None
