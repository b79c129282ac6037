"""Things that take the profiles of credentials along when they are pickled.

Flows in: an object's attributes. Flows out: the same, and what Python has defined in this process. Nothing about
profiles is imported before somebody has defined one.
"""

from typing import Any

from webdataset.ground.extras import loaded

_KEY = "S3 profiles"


class CarriesProfiles:
    """Something that is pickled together with the profiles that Python has defined."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the attributes, and the profiles."""
        if loaded(f"{__package__}.profiles.registry") is None:  # then nobody has defined any
            return self.__dict__
        from .profiles import travel  # noqa: PLC0415  see above

        luggage = travel.packed()
        return self.__dict__ if luggage is None else {**self.__dict__, _KEY: luggage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes back, and the profiles where this is another process."""
        luggage = state.get(_KEY)
        if luggage is not None:
            from .profiles import travel  # noqa: PLC0415  only where there are profiles

            travel.arrive(luggage)
        self.__dict__.update((name, value) for name, value in state.items() if name != _KEY)
