"""Fail where a page uses a word that the word list replaces: ``word_list.py [--count]``.

The pages are the documentation, README.md, CONTRIBUTING.md, AGENTS.md and the help of the command. The list is short;
it holds what this project wrote in the past and an engineer would not search for. Code in fences and backquotes may
say anything. In the source under ``src``, comments, docstrings and messages are looked at.
"""

import io
import re
import sys
import tokenize
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
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


def keep_words(source: str) -> str:
    """Return the comments and texts of a module, the rest blanked out.

    Args:
        source: of the module.
    """
    kept = [re.sub(r"[^\n]", " ", line) for line in source.splitlines(keepends=True)]
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.STRING) and "STRING" not in tokenize.tok_name[token.type]:
            continue
        (first, start), (last, stop) = token.start, token.end
        for number in range(first - 1, last):
            line = lines[number]
            left, right = (start if number == first - 1 else 0), (stop if number == last - 1 else len(line))
            kept[number] = kept[number][:left] + line[left:right] + kept[number][right:]
    return "".join(kept)


def main() -> None:
    """Print each match; exit with an error where there is one."""
    failed = False
    modules = sorted((ROOT / "src").rglob("*.py"))
    for page in [*PAGES, *modules]:
        text = page.read_text(encoding="utf-8")
        for line, word, advice in find_words(keep_words(text) if page in modules else text):
            print(f"{page.relative_to(ROOT)}:{line}: {word!r}: write {advice}")
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
