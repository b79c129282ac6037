"""Compiles the native core (``native/take_samples.c``) into the wheel, where a C compiler and Python's headers are.

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

SOURCE = "native/take_samples.c"
COMPILED = "webdataset/_native.abi3.so" if os.name != "nt" else "webdataset/_native.pyd"


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
            # what an earlier installation left would be used
            target.unlink(missing_ok=True)
        else:
            self._folder = tempfile.TemporaryDirectory()
            target = Path(self._folder.name, "compiled")
        if wanted == "0":
            return
        try:
            content = compile_module(Path(self.root, SOURCE))
        except BaseException as error:  # setuptools ends the process where there is no compiler
            if wanted == "1" or isinstance(error, KeyboardInterrupt):
                raise
            self.app.display_warning(f"the native core is left out ({type(error).__name__}: {error}): pure Python")
            return
        target.write_bytes(content)
        target.chmod(0o755)
        build_data["pure_python"] = False
        if version != "editable":
            build_data["force_include"][str(target)] = COMPILED
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  as above
        """Remove what was compiled for the wheel.

        Args:
            version: as above.
            build_data: as above.
            artifact_path: the wheel.
        """
        if self._folder is not None:
            self._folder.cleanup()


def compile_module(source: Path) -> bytes:
    """Return the compiled module.

    Args:
        source: the C file.

    Raises:
        OSError: this Python cannot load such a module, or there is no compiler.
        SystemExit: the compiler fails.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.implementation.name != "cpython":
        raise OSError("this Python does not load modules of the stable interface of CPython 3.11")
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]

    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    usual = [] if os.name == "nt" else ["-O3", "-g0"]
    extension = Extension(
        "webdataset._native",
        [source.name],
        define_macros=[("SOURCE", f'"{digest}"')],
        extra_compile_args=usual,
        py_limited_api=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        # the compiler is given the same words wherever the source is: builds are the same, byte for byte
        Path(folder, source.name).write_bytes(source.read_bytes())
        before = Path.cwd()
        os.chdir(folder)
        try:
            command: Any = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
            command.build_lib, command.build_temp = "lib", "temp"
            command.ensure_finalized()
            command.run()
            (built,) = Path("lib").rglob("_native*")
            return built.read_bytes()
        finally:
            os.chdir(before)
