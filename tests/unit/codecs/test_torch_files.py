""".pth fields and image tensors."""

import io
import os
import pickle
import re
import subprocess
import sys
import traceback

import pytest

from webdataset import autodecode
from webdataset.autodecode import Decoder, torch_loads
from webdataset.codecs import torch_files
from webdataset.codecs.encoder import torch_dumps
from webdataset.codecs.handlers import weights_only_switch
from webdataset.codecs.safe_pickle import add_safe_globals
from webdataset.core.errors import DecodingError, MissingExtra, UnsafeContent

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Model:
    """A class of a user's own."""


@pytest.fixture(autouse=True)
def _no_switches(monkeypatch):
    """Leave no switch behind."""
    monkeypatch.setattr(weights_only_switch, "weights_only", None)


def test_tensors_and_plain_containers_come_back():
    """What torch.save wrote loads with weights only, on the CPU."""
    value = {"a": torch.arange(6).reshape(2, 3), "b": [1, "x", None], "c": (1.5, torch.ones(2, dtype=torch.bfloat16))}
    loaded = Decoder([])({"pth": torch_dumps(value)})["pth"]
    assert torch.equal(loaded["a"], value["a"])
    assert loaded["b"] == value["b"]
    assert torch.equal(loaded["c"][1], value["c"][1])


def test_legacy_files_load():
    """Torch's format before version 1.6 loads, too."""
    stream = io.BytesIO()
    torch.save({"a": torch.ones(2)}, stream, _use_new_zipfile_serialization=False)
    assert torch.equal(torch_loads(stream.getvalue())["a"], torch.ones(2))


def test_own_classes_need_permission():
    """The error tells the ways out; add_safe_globals, trust and the switch work."""
    data = torch_dumps(Model())
    sample = {"__key__": "k", "__url__": "u", "pth": data}
    with pytest.raises(UnsafeContent, match=r"weights_only=True.*add_safe_globals.*trust='full'") as failure:
        Decoder([])(sample)
    assert (failure.value.key, failure.value.field) == ("k", "pth")
    with add_safe_globals([Model]):
        assert isinstance(torch_loads(data), Model)
    assert isinstance(Decoder([], trust="full")(sample)["pth"], Model)


class Harmful:
    """Runs a command when unpickled."""

    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        """Call the function."""
        return self.call


@pytest.mark.parametrize(("function", "name"), [(os.system, "system"), (eval, "eval")])
def test_commands_are_not_offered_for_permission(function, name):
    """A field that would run a command is called that; torch's advice to load it anyway is not passed on."""
    data = torch_dumps(Harmful(function, "0"))
    with pytest.raises(UnsafeContent, match=f"{name}: decoding it would run a command") as failure:
        torch_loads(data)
    assert "add_safe_globals" not in str(failure.value)


def test_torchs_advice_is_not_quoted():
    """The class is named and nothing else is taken from torch's message, in the traceback neither."""
    for data, part in ((torch_dumps(Model()), f"needs {__name__}.Model"), (b"nonsense", "damaged")):
        with pytest.raises(UnsafeContent, match=re.escape(part)) as failure:
            torch_loads(data)
        shown = "".join(traceback.format_exception(failure.value))
        assert "Re-running" not in shown
        assert "to `False`" not in shown


def test_the_switch_of_the_compatibility_module_is_read_at_every_field(monkeypatch):
    """Assigning pytorch_weights_only takes effect at once, and back; an explicit trust level wins."""
    data = torch_dumps(Model())
    decoder = Decoder([])
    assert autodecode.pytorch_weights_only is True
    autodecode.pytorch_weights_only = False
    assert autodecode.pytorch_weights_only is False
    assert isinstance(decoder({"pth": data})["pth"], Model)
    with pytest.raises(UnsafeContent):
        Decoder([], trust="safe")({"pth": data})
    autodecode.pytorch_weights_only = True
    with pytest.raises(UnsafeContent):
        decoder({"pth": data})
    monkeypatch.setenv("WDS_PYTORCH_WEIGHTS_ONLY", "0")
    assert autodecode.pytorch_weights_only is False
    assert isinstance(decoder({"pth": data})["pth"], Model)
    autodecode.pytorch_weights_only = True
    with pytest.raises(UnsafeContent):
        decoder({"pth": data})


def test_strict_refuses_every_pth(monkeypatch):
    """At the strict level not even a tensor loads."""
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(ValueError, match="strict"):
        Decoder([])({"pth": torch_dumps(torch.ones(1))})
    with pytest.raises(ValueError, match="strict"):
        torch_loads(b"")


def test_old_torch_loads_nothing_unless_trusted(monkeypatch):
    """Before 2.6 weights_only could be made to run code: refused, with the reason."""
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    data = torch_dumps(torch.ones(1))
    with pytest.raises(UnsafeContent, match=r"torch 2\.5\.1 cannot load safely"):
        torch_loads(data)
    assert torch.equal(torch_loads(data, trust="full"), torch.ones(1))
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git")
    assert torch_files._parse_release(torch.__version__) == (2, 10)
    assert torch.equal(torch_loads(data), torch.ones(1))


@pytest.mark.limited
def test_damaged_files_are_errors():
    """What torch cannot read is an error, whatever torch raises."""
    whole = torch_dumps(torch.ones(100))
    for data in (b"", b"nonsense", whole[:-40], pickle.dumps(1)[:-1]):
        with pytest.raises((DecodingError, UnsafeContent)):
            Decoder([])({"pth": data})


def test_without_torch_the_error_names_the_extra(tmp_path):
    """Where torch is not installed, .pth and torch images say what to install; the module imports."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.core.errors import MissingExtra\n"
        "wds.torch_loads\n"
        "grey = {'pgm': b'P5 1 1 255 x'}\n"
        "for decoder, sample in [(wds.Decoder([]), {'pth': b'x'}), (wds.Decoder('torchrgb'), grey)]:\n"
        "    try:\n"
        "        decoder(sample)\n"
        "    except MissingExtra as error:\n"
        "        assert '[torch]' in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert issubclass(MissingExtra, ImportError)
