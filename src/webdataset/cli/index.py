"""``wds index``: the program ``wids-index`` under another name, with the exit status of ``wds``."""

import click

from webdataset.cli import exit_status


@click.command(
    "index",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="{create,update,info,sample} ...")
def index_command(arguments: tuple[str, ...]) -> int:
    """Make, change and show shard indexes in wids JSON.

    Examples:
      wds index create train-{000..099}.tar -o train.json
      wds index info train.json
      wds index sample train.json 17 -c jpg > 17.jpg
    """
    from webdataset.cli import wids_index  # noqa: PLC0415  it loads the readers

    try:
        status = wids_index.main(arguments, program="wds index")
    except SystemExit as ended:  # argparse: --help, or a wrong command line
        return int(ended.code or 0)
    own = {
        wids_index.DONE: exit_status.DONE,
        wids_index.FAILED: exit_status.FAILED,
        wids_index.WRONG: exit_status.WRONG_USE,
        wids_index.PARTIAL: exit_status.PARTIAL,
    }
    return own[status]
