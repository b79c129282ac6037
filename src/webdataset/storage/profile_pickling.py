"""A base class of objects that are pickled together with the profiles that Python has defined in this process.

Nothing about profiles is imported before one is defined.
"""

from typing import TYPE_CHECKING, cast

from webdataset.core.optional_imports import loaded_module

if TYPE_CHECKING:
    from webdataset.storage.profile_registry import PickledProfiles

_KEY = "S3 profiles"


class PicklesProfiles:
    """Something that is pickled together with the profiles that Python has defined."""

    def __getstate__(self) -> dict[str, object]:
        """Pickle the attributes, and the profiles."""
        # then none is defined
        if loaded_module("webdataset.storage.profile_registry") is None:
            return self.__dict__
        from webdataset.storage import profile_registry  # noqa: PLC0415  see above

        pickled = profile_registry.collect_profiles()
        return self.__dict__ if pickled is None else {**self.__dict__, _KEY: pickled}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the attributes back, and the profiles where this is another process."""
        pickled = state.get(_KEY)
        if pickled is not None:
            from webdataset.storage import profile_registry  # noqa: PLC0415  only where there are profiles

            profile_registry.restore_profiles(cast("PickledProfiles", pickled))
        self.__dict__.update((name, value) for name, value in state.items() if name != _KEY)
