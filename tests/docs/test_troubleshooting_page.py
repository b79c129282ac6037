"""The page lists every class of the error tree, with words that its messages really have."""

import inspect
import json
import re
from pathlib import Path

from webdataset.core import errors

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| `(\w+)` \| `([^`]+)` \| (.+?) \| (.*?) ?\|$",
    (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_every_class_is_listed_once():
    """All public errors but the root, and none that is gone."""
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    listed = [name for name, *_ in ROWS]
    assert sorted(listed) == sorted(set(listed))
    elsewhere = {"BadHeader", "Truncated", "BadCompression", "LimitExceeded", "UnsafeContent"}
    # a base is no message; that of the tar errors is added when the first of them is imported
    bases = {"WebDatasetError", "TarError"}
    own = {name for name in classes if getattr(errors, name).__module__ == errors.__name__} - bases
    assert set(listed) == own | elsewhere


def test_messages_are_those_that_users_see():
    """The words in the page stand in the recorded message of that class."""
    recorded = json.loads((ROOT / "tests" / "e2e" / "error_messages.json").read_text(encoding="utf-8"))
    checked = 0
    for name, words, *_ in ROWS:
        if name in recorded and words != "…":
            for part in filter(None, words.split("…")):
                assert part.strip() in str(recorded[name]), name
                checked += 1
    assert checked >= 25


def test_each_row_says_what_to_do():
    """Except for a base class, which the message itself explains."""
    assert [name for name, _, _, advice in ROWS if not advice.strip()] == ["CodecError"]
