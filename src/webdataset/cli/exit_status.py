"""The exit status of ``wds``: one table for all commands.

``wds --help`` prints the table, and ``docs/command-line.md`` repeats it.
"""

from typing import Final

DONE: Final = 0
NONE_FOUND: Final = 1
WRONG_USE: Final = 2
FAILED: Final = 3
PARTIAL: Final = 4
TRY_AGAIN: Final = 75
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

TABLE: Final[dict[int, str]] = {
    DONE: "done; for grep: something was found; for diff: no difference; for check and doctor: no findings",
    NONE_FOUND: "grep found nothing, diff found differences, cat or show found none of the keys, fields or files that "
    "it was asked for, check, doctor or cache verify has findings; for jobs of map: outputs failed or are not done",
    WRONG_USE: "the command line is wrong",
    FAILED: "an input is missing or damaged, or an output cannot be written; the output in progress was not completed",
    PARTIAL: "done, but some inputs or samples failed and were left out, as an option allows; or some of the keys that "
    "were asked for are nowhere",
    TRY_AGAIN: "a job of map was ended by SIGTERM; what it had done stays: run it again",
    INTERRUPTED: "stopped by Ctrl-C (129: by SIGHUP, 143: by SIGTERM); the output in progress was not completed",
    PIPE_CLOSED: "the program that reads the output has ended (SIGPIPE)",
}
"""Exit status to what it says."""
