"""The page that explains to users what differs from the published versions."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "deviations.md"


@pytest.fixture
def unexplained():
    """A function that returns which of the ids given have no anchor on the page.

    An id may be followed by a colon and the reason in words.
    """
    page = PAGE.read_text(encoding="utf-8")

    def missing(identities):
        found = {identity.partition(":")[0] for identity in identities}
        return sorted(identity for identity in found if f'<a id="{identity}"></a>' not in page)

    return missing
