"""Commands as the help shows them: which of their options stand in an example."""

import re

from support.command import run_wds


def examples(command: str) -> list[str]:
    """Return the lines of examples in ``wds --help`` and ``wds COMMAND --help`` that call a command."""
    pages = [run_wds("--help").stdout, run_wds(command, "--help").stdout]
    lines = [line.strip() for page in pages for line in page.decode().splitlines()]
    return [line for line in lines if re.search(rf"(^|\| )wds {command} ", line)]


def is_shown(arguments: list[str]) -> bool:
    """Tell whether a call is that of an example, with other names of files and other numbers.

    Args:
        arguments: after ``wds``.
    """
    wanted = {each for each in arguments if each.startswith("-") and each != "-"}
    return any(wanted <= set(line.split()) for line in examples(arguments[0]))
