"""Fail where a page uses a word that the word list replaces: ``word_list.py [--count]``.

The pages are the documentation, README.md, CONTRIBUTING.md, AGENTS.md and the help of the command. The list is short;
it holds what this project wrote in the past and an engineer would not search for. Code in fences and backquotes may
say anything. The source under ``src`` has a budget that only falls, since its docstrings are changed file by file.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
HELP: Final = sorted((ROOT / "src" / "webdataset" / "cli").glob("*.py"))
# pattern: what to write
WORDS: Final = {
    r"\b(?:goes|go|going|went|gone) on\b": "continue, resume",
    r"\bfor ever\b": "forever, without end",
    # a trainer may be some batches behind another
    r"(?<!batches )(?<!samples )(?<!far )\bbehind\b(?! the| it| by)": "after",
    r"\bfrom afar\b|\bafar\b": "remote",
    r"\bwhoever\b|\bsomebody\b": "the one who matters: the user, the server",
    r"\btrainings\b": "training runs",
    r"\bof one's own\b": "of its own, custom",
    r"\bwhere it lies\b": "where it is",
    r"\bluggage\b|\bcrews?\b|\bparcels?\b": "a standard term",
}
# matches in src outside the command's help, which may only fall
BUDGET: Final = 194
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def find_words(text: str) -> list[tuple[int, str, str]]:
    """Return line, word and advice for each match outside code.

    Args:
        text: of a page.
    """
    plain = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    return [
        (plain.count("\n", 0, match.start()) + 1, match[0], advice)
        for pattern, advice in WORDS.items()
        for match in re.finditer(pattern, plain, re.IGNORECASE)
    ]


def main() -> None:
    """Print each match; exit with an error where there is one, or the source has more than its budget."""
    failed = False
    for page in [*PAGES, *HELP]:
        for line, word, advice in find_words(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}:{line}: {word!r}: write {advice}")
            failed = True
    counts: Counter[str] = Counter()
    for source in sorted((ROOT / "src").rglob("*.py")):
        if source not in HELP:
            counts.update(word.lower() for _, word, _ in find_words(source.read_text(encoding="utf-8")))
    total = sum(counts.values())
    if total > BUDGET or "--count" in sys.argv[1:]:
        print(f"src: {total} matches, {BUDGET} allowed: {dict(counts.most_common())}")
    sys.exit(failed or total > BUDGET)


if __name__ == "__main__":
    main()
