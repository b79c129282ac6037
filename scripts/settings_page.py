"""Write ``docs/settings.md`` from the variables declared in ``core/settings.py``; with ``--check``, only compare."""

import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every environment variable that the library reads. They are read when they are needed, not when the library is imported.
Arguments of the same meaning come before them.

| variable | default | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    from webdataset.core import settings

    rows = []
    for variable in vars(settings).values():
        if isinstance(variable, settings.EnvironmentVariable):
            default = "" if variable.default in (None, "", ()) else f"`{variable.default}`"
            meaning = variable.meaning.replace("|", "\\|")
            rows.append(f"| `{variable.name}` | {default} | {meaning} |\n")
    tail = "\n`${NAME}` in a shard expression stands for the environment variable `WDS_NAME`.\n"
    tail += "`WDS_S3_NAME_FIELD` sets a field of an S3 profile; see [S3 profiles](config.md), also for those of AWS.\n"
    return HEAD + "".join(sorted(rows)) + tail


def main() -> None:
    """Write the page, or fail where it is not up to date."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/settings.md is not up to date: run scripts/settings_page.py")


if __name__ == "__main__":
    main()
