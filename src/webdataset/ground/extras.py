"""Optional packages: imported when first needed, and named with their extra when absent."""

import importlib
import sys
from types import ModuleType
from typing import Any

from .errors import MissingExtra


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module or say how to install it.

    Args:
        module: dotted module name.
        extra: the extra of this distribution that brings it.
        purpose: what needs it, for the message ("decoding images").

    Returns:
        The module.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(f"{purpose} needs {package}: pip install 'webdataset[{extra}]'") from error


def available(module: str) -> ModuleType | None:
    """Import an optional module, or return None where it is not installed or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def loaded(module: str) -> ModuleType | None:
    """Return a module only if the process has imported it already (torch is never imported for a question)."""
    return sys.modules.get(module)


def is_of(thing: Any, module: str, kind: str) -> bool:
    """Tell whether something is of a class, without importing the class: where nobody has, nothing can be of it.

    Args:
        thing: anything.
        module: dotted name of the module that defines the class.
        kind: the class's name there.
    """
    made = getattr(sys.modules.get(module), kind, None)
    return made is not None and isinstance(thing, made)
