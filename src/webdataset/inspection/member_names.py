"""Names of members that programs read differently, or that harm where a shard is unpacked."""

import re
from collections.abc import Container, Iterator
from typing import Final

from webdataset.tar.walker import MemberPosition

# what any of the patterns below finds, as one
ODD_NAME: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
    r"|^[/ ]|^[A-Za-z]:[/\\]|(?:^|/)\.\.(?:/|$)|[ ](?:/|$)|/[ ]"
)
# between names, "|/" stands: a name that starts with a slash or a dot gives "|//" or "|/."
_RARE: Final = re.compile(r"[\\ :]|\.\.|//|/\.")
_PARENT: Final = re.compile(r"(?:^|/)\.\.(?:/|$)")
_ABSOLUTE: Final = re.compile(r"^/|^[A-Za-z]:[/\\]")
_STRANGE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069]|^ |[ ](?:/|$)|/[ ]")


def judge_name(name: str) -> Iterator[tuple[str, str]]:
    """Yield code and message of what is odd about a name.

    Args:
        name: of a member.
    """
    if _ABSOLUTE.search(name):
        yield "absolute-name", "its name is absolute"
    if _PARENT.search(name):
        yield "parent-name", "its name leads out of its folder"
    if any("\udc80" <= each <= "\udcff" for each in name):
        yield "bad-name", "its name is not UTF-8"
    if _STRANGE.search(name):
        yield "odd-name", f"its name is {name!r}"


def are_plain(places: list[MemberPosition], extensions: Container[str]) -> bool:
    """Tell whether names and sizes of members are surely such that nothing is to be said about them.

    Args:
        places: of the members; not empty.
        extensions: those about which nothing is to be said.
    """
    names = [place[0] for place in places]
    joined = "|/".join(("", *names))
    if not joined.isascii() or not joined.isprintable() or _RARE.search(joined) is not None:
        return False
    dots = {name[name.find(".", name.rfind("/") + 1) :] for name in names}
    return all(dot[0] == "." and dot[1:] in extensions for dot in dots) and all(place[3] for place in places)
