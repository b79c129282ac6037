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
COMPILED = "src/webdataset/_native.abi3.so" if os.name != "nt" else "src/webdataset/_native.pyd"


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled module to a wheel, or to the source folder of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  the form of all hooks
        """Compile.

        Args:
            version: ``standard`` or ``editable``.
            build_data: of the wheel; it gets the module and the tag.
        """
        wanted = os.environ.get("WDS_NATIVE")
        target = Path(self.root, COMPILED)
        # what an earlier build left would be used, or packed
        target.unlink(missing_ok=True)
        if self.target_name != "wheel" or wanted == "0":
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
        build_data["artifacts"].append(f"/{COMPILED}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"


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
    from setuptools import Distribution, Extension  # noqa: PLC0415  its absence is a reason to go without

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
