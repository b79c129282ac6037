"""Compiles the native core (``native/module.c``) into the wheel, where a C compiler and Python's headers are.

One module serves every CPython since 3.11 by its stable interface; a free-threaded Python has one of its own.

Without them the wheel is pure Python, under the tag of pure wheels, and everything works; small samples are read
several times slower. ``WDS_NATIVE=0`` leaves the core out, ``WDS_NATIVE=1`` fails where it cannot be compiled.
"""

import hashlib
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "native"
# such Pythons have no stable interface: each has a module of its own
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def name_module() -> str:
    """Return the path of the compiled module in the package."""
    if FREE_THREADED:
        return f"webdataset/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    return "webdataset/_native.pyd" if os.name == "nt" else "webdataset/_native.abi3.so"


def name_tag() -> str:
    """Return the tag of a wheel that holds the compiled module."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    version = f"cp3{sys.version_info.minor}"
    return f"{version}-{version}t-{platform}" if FREE_THREADED else f"cp311-abi3-{platform}"


COMPILED = name_module()


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled module to a wheel, or to the source folder of an editable installation."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile.

        Args:
            version: ``standard`` or ``editable``.
            build_data: of the wheel; it gets the module and the tag.
        """
        wanted = os.environ.get("WDS_NATIVE")
        if self.target_name != "wheel":
            return
        if version == "editable":
            target = Path(self.root, "src", COMPILED)
        else:
            self._folder = tempfile.TemporaryDirectory()
            target = Path(self._folder.name, "compiled")
        try:
            content = None if wanted == "0" else compile_module(Path(self.root, SOURCES))
        except BaseException as error:  # setuptools ends the process where there is no compiler
            if wanted == "1" or isinstance(error, KeyboardInterrupt):
                raise
            self.app.display_warning(f"the native core is left out ({type(error).__name__}: {error}): pure Python")
            content = None
        if content is None:
            # what an earlier installation left would be used
            target.unlink(missing_ok=True)
            return
        publish_module(target, content)
        build_data["pure_python"] = False
        if version != "editable":
            build_data["force_include"][str(target)] = COMPILED
        build_data["tag"] = name_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  as above
        """Remove what was compiled for the wheel.

        Args:
            version: as above.
            build_data: as above.
            artifact_path: the wheel.
        """
        if self._folder is not None:
            self._folder.cleanup()


def publish_module(target: Path, content: bytes) -> None:
    """Write the compiled module in one step: processes that run may import it at any time.

    Args:
        target: its path.
        content: its bytes.
    """
    if target.exists() and target.read_bytes() == content:
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        file.write(content)
    new = Path(file.name)
    new.chmod(0o755)
    new.replace(target)


def read_sources(folder: Path) -> dict[str, bytes]:
    """Return the names and contents of the C files, by name.

    Args:
        folder: of the sources.
    """
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in {".c", ".h"}}


def digest_sources(folder: Path) -> str:
    """Return what tells the sources of a compiled module from others.

    Args:
        folder: of the sources.
    """
    return hashlib.sha256(repr(read_sources(folder)).encode()).hexdigest()[:16]


def compile_module(folder: Path) -> bytes:
    """Return the compiled module.

    Args:
        folder: of the sources.

    Raises:
        OSError: this Python is not CPython, or there is no compiler.
        SystemExit: the compiler fails.
    """
    if sys.implementation.name != "cpython":
        raise OSError("this Python does not load modules of CPython")
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]

    usual = [] if os.name == "nt" else ["-O3", "-g0"]
    extension = Extension(
        "webdataset._native",
        ["module.c"],
        define_macros=[("SOURCE", f'"{digest_sources(folder)}"'), *([("FREE_THREADED", "1")] if FREE_THREADED else [])],
        extra_compile_args=usual,
        py_limited_api=not FREE_THREADED,
    )
    with tempfile.TemporaryDirectory() as place:
        # the compiler is given the same words wherever the sources are: builds are the same, byte for byte
        for name, content in read_sources(folder).items():
            Path(place, name).write_bytes(content)
        before = Path.cwd()
        os.chdir(place)
        try:
            command: Any = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
            command.build_lib, command.build_temp = "lib", "temp"
            command.ensure_finalized()
            command.run()
            (built,) = Path("lib").rglob("_native*")
            return built.read_bytes()
        finally:
            os.chdir(before)
