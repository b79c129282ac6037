"""The compatibility modules of the codecs: names for existing code, live tables, documented usage."""

import importlib
import subprocess
import sys

import pytest

import webdataset as wds
from webdataset import autodecode, writer

NAMES = """Continue Decoder DecodingError IMAGE_EXTENSIONS ImageHandler basichandlers call_extension_handler cbor_loads
    decoders default_decoder default_post_handlers default_pre_handlers gzfilter handle_extension imagehandler
    imagespecs msgpack_loads npy_loads npz_loads pytorch_weights_only torch_audio torch_loads torch_video
    unpickle_loads add_safe_globals audio video video_clips torch_safetensors CompressionFilter""".split()
TOP = """Continue Decoder DecodingError add_safe_globals gzfilter handle_extension imagehandler pytorch_weights_only
    torch_audio torch_loads torch_video numpy_dumps torch_dumps audio video video_clips torch_safetensors""".split()
WRITER = """add_handlers default_handlers encode_based_on_extension encode_based_on_extension1 imageencoder make_encoder
    make_handlers numpy_dumps numpy_npz_dumps torch_dumps""".split()


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_module(name):
    """Every name that upstream's module has, and add_safe_globals."""
    assert getattr(autodecode, name) is not None
    scope = {}
    exec(f"from webdataset.autodecode import {name}", scope)
    assert name in scope


@pytest.mark.parametrize("name", TOP)
def test_names_of_the_package(name):
    """The names that upstream shows at the top."""
    assert hasattr(wds, name)


@pytest.mark.parametrize("name", WRITER)
def test_names_of_the_writer(name):
    """The encoders are the writer's names, too."""
    assert hasattr(writer, name)


def test_unknown_names_are_attribute_errors():
    """The compatibility module has no other names."""
    with pytest.raises(AttributeError, match="nonsense"):
        _ = autodecode.nonsense
    with pytest.raises(ImportError):
        importlib.import_module("webdataset.autodecode.nonsense")


def test_the_tables_are_the_rooms_tables():
    """What is changed in the compatibility module is changed in the codecs."""
    from webdataset.codecs import encoder, handlers, images
    from webdataset.codecs import handlers as fields

    assert autodecode.decoders is fields.decoders
    assert autodecode.imagespecs is images.imagespecs
    assert autodecode.default_pre_handlers is handlers.default_pre_handlers
    assert writer.default_handlers is encoder.default_handlers


def test_upstreams_decoders_are_all_there():
    """The table has upstream's extensions, but those of tensor files."""
    upstream = "cbor cls cls2 id index inx json jsn mp msg npy npz pickle pkl pth pyd text transcript txt".split()
    assert set(upstream) <= set(autodecode.decoders)


def test_a_decoder_registered_as_upstream_documents_it():
    """``decoders[...] = f`` works through the fluent and the plain way."""
    try:
        wds.autodecode.decoders["srt"] = lambda data: data.decode().splitlines()
        assert wds.Decoder([])({"srt": b"a\nb"})["srt"] == ["a", "b"]
    finally:
        del autodecode.decoders["srt"]


def test_the_readmes_decoder_call():
    """``wds.Decoder(handler, wds.torch_video)(dataset)``, as documented and never working before."""

    def handler(key, data):
        return data.decode()[::-1] if key == ".rev" else None

    dataset = [{"__key__": "a", "rev": b"abc"}, {"__key__": "b", "rev": b"xyz"}]
    decoded = wds.Decoder(handler, wds.torch_video)(dataset)
    assert [sample["rev"] for sample in decoded] == ["cba", "zyx"]


def test_a_decoding_error_is_made_as_upstream_makes_it():
    """DecodingError(url, key, k, sample), with a message this time."""
    error = wds.DecodingError("u.tar", "000", "jpg", {"jpg": b""})
    assert (error.url, error.key, error.k, error.sample) == ("u.tar", "000", "jpg", {"jpg": b""})
    assert "u.tar" in str(error)


def test_the_compatibility_module_loads_no_heavy_library(tmp_path):
    """Decoding text and numbers imports neither numpy nor torch, Pillow or msgspec."""
    program = (
        "import sys\n"
        "import webdataset.autodecode, webdataset.codecs\n"
        "from webdataset import Decoder\n"
        "import gzip\n"
        "import webdataset as wds\n"
        "Decoder('rgb', wds.torch_video, wds.audio, wds.video, wds.video_clips(4), wds.torch_safetensors)(\n"
        "    {'cls': b'1', 'txt': b'a', 'txt.gz': gzip.compress(b'')}\n"
        ")\n"
        "from webdataset.codecs import make_encoder\n"
        "make_encoder(True)({'cls': 1, 'txt': 'a'})\n"
        "heavy = 'numpy torch PIL msgspec msgpack av soundfile yaml safetensors'.split()\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
