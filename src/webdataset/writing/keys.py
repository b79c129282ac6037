"""What a key and a field must be, so that the sample reads back as it was written.

Flows in: keys and field names as the user gives them. Flows out: errors and warnings; the order and file endings of a
sample's members. Never changes a key. The rules are those of reading: a key ends at the first dot of its last
component.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from webdataset.ground.errors import SampleError, UsageError
from webdataset.ground.tracebacks import warn_user
from webdataset.samples.names import base_plus_ext, is_meta

Policy = Literal["warn", "error", "ignore"]
Plan = tuple[tuple[str, str], ...]


class KeyRules:
    """The rules for keys under one policy.

    Args:
        policy: what to do about keys that read back differently: ``warn`` (once), ``error``, ``ignore``. A key that
            repeats the one before it is an error unless ignored.

    Raises:
        UsageError: an unknown policy.
    """

    def __init__(self, policy: str = "warn") -> None:
        if policy not in get_args(Policy):
            raise UsageError(f"check_keys={policy!r} is none of {', '.join(map(repr, get_args(Policy)))}")
        self.policy: Final = policy
        self._warned = False

    def check(self, key: Any, before: str | None) -> None:
        """Check a key that is out of the ordinary.

        Args:
            key: the key.
            before: the key of the sample before it in the same shard.

        Raises:
            SampleError: it cannot be written, or (by policy) it would not read back.
        """
        if not isinstance(key, str):
            raise SampleError(f"__key__ must be text, not {type(key).__name__}: {key!r:.100}")
        if not key or key.endswith("/") or "\0" in key:
            raise SampleError("__key__ is empty, ends in a slash or holds a NUL", key=key)
        if is_meta(f"{key}.x"):
            raise SampleError(
                "a __key__ that is, or starts with, a folder like __this__/ names metadata of the shard: every reader "
                "skips it, and the sample would be lost; choose another key",
                key=key,
            )
        if self.policy == "ignore":
            return
        if key == before:
            raise SampleError(
                "__key__ is the same as in the sample before: the two would read back as one; make keys distinct, "
                "or pass check_keys='ignore' to write one sample in parts",
                key=key,
            )
        flaw = self._flaw(key)
        if flaw is None:
            return
        if self.policy == "error":
            raise SampleError(flaw, key=key)
        if not self._warned:
            self._warned = True
            warn_user(f"{flaw} (key={key!r}; further keys are not reported)")

    @staticmethod
    def _flaw(key: str) -> str | None:
        if key.startswith("/"):
            return "an absolute __key__ is a path outside of the folder into which a shard is unpacked"
        if ".." in key.split("/"):
            return "a __key__ with '..' leads out of the folder into which a shard is unpacked"
        found, field = base_plus_ext(f"{key}.x")
        if found == key:
            return None
        if found is None:
            return "a name that starts with a dot belongs to no sample and is skipped on reading"
        return f"a dot in the last part of __key__ ends it on reading: this one reads back as {found!r}, .{field}"


def planned(fields: Iterable[Any], *, keep_meta: bool) -> Plan:
    """Return the members of samples that have these fields: (field, ending of the member's name), in writing order.

    Args:
        fields: the sample's keys, ``__key__`` among them.
        keep_meta: write fields that start with an underscore, too (never ``__key__``).

    Raises:
        SampleError: a field that cannot be part of a member's name, or two that would read back as one.
    """
    chosen: list[str] = []
    for field in fields:
        if not isinstance(field, str):
            raise SampleError(f"a field's name must be text, not {type(field).__name__}", field=repr(field))
        if not field or "/" in field or "\0" in field:
            raise SampleError("a field's name is empty, or holds a slash or a NUL", field=field)
        if not field.startswith("_") or (keep_meta and field != "__key__"):
            chosen.append(field)
    if len({field.lower() for field in chosen}) < len(chosen):
        raise SampleError(
            f"fields that differ only in case read back as one: {', '.join(sorted(chosen, key=str.lower))}"
        )
    return tuple((field, f".{field}") for field in sorted(chosen))
