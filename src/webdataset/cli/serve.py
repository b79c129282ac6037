"""``wds serve``: a data server, and keys for it."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from webdataset.cli import console
from webdataset.cli.datasets import dataset_options
from webdataset.core.errors import UsageError

if TYPE_CHECKING:
    from webdataset.flow.elastic_pipeline import ElasticPipeline

_COUNT = click.IntRange(min=0)


class _ServeGroup(click.Group):
    """A group whose command is ``run`` where the first word is no other one's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``run`` in front of the name of a dataset."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("serve", cls=_ServeGroup)
def serve_command() -> None:
    """Make batches for trainers on other machines (wds.RemoteLoader).

    'wds serve DATASET...' serves, and 'wds serve run --help' shows its options; 'wds serve keygen' makes keys.

    Examples:
      wds serve keygen --folder keys server
      wds serve train:make_dataset --bind tcp://0.0.0.0:5600 --key keys/server.secret --allow trainers
      wds serve train-{000..099}.tar --streams 96 --seed 1 --plain
    """


@serve_command.command("keygen")
@click.argument("name")
@click.option("--folder", default=".", show_default=True, help="Where the two files are written.")
def keygen_command(name: str, *, folder: str) -> None:
    """Make a key pair: NAME.public, to be given to others, and NAME.secret.

    Examples:
      wds serve keygen --folder keys server
      wds serve keygen --folder keys trainer
    """
    from webdataset.serving.curve_keys import make_key_files  # noqa: PLC0415  after --help

    for path in make_key_files(folder, name):
        console.write_line(str(path))


@serve_command.command("run")
@dataset_options
@click.option("--bind", default="tcp://127.0.0.1:5600", show_default=True, help="Address; port 0 is any free one.")
@click.option("--workers", default=1, show_default=True, type=_COUNT, help="Worker processes of each trainer.")
@click.option("--threads", is_flag=True, help="Workers are threads, and one failure may end all trainers' batches.")
@click.option("--key", metavar="FILE", help="The server's .secret file: lines are encrypted.")
@click.option(
    "--allow", metavar="FOLDER", help="The .public files of trainers that may connect; read when they change."
)
@click.option("--plain", is_flag=True, help="Do not encrypt; on this machine only, or with --bind-any.")
@click.option("--bind-any", is_flag=True, help="With --plain: listen in the open; for private networks.")
@click.option("--most-trainers", default=64, show_default=True, type=click.IntRange(min=1), help="Trainers at once.")
@click.option("--metrics", type=click.IntRange(0, 65535), help="A port for /metrics and /healthz; 0 is any free one.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Where that port listens.")
@click.option("--drain", default=30.0, show_default=True, help="Seconds that trainers have to leave after SIGTERM.")
def run_command(
    dataset: Callable[..., object],
    *,
    seed: int | None,  # noqa: ARG001  dataset knows it
    bind: str,
    workers: int,
    threads: bool,
    key: str | None,
    allow: str | None,
    plain: bool,
    bind_any: bool,
    most_trainers: int,
    metrics: int | None,
    metrics_host: str,
    drain: float,
) -> None:
    """Serve the batches of a dataset until SIGTERM or Ctrl-C.

    DATASET is shards (with --streams and --seed), or module:function, which returns an elastic dataset with a seed.
    All servers of a run serve the same dataset. Trainers say how large their batches are.

    Examples:
      wds serve run train:make_dataset --key keys/server.secret --allow trainers --bind tcp://0.0.0.0:5600
      wds serve run train-{000..099}.tar --streams 96 --seed 1 --plain
    """
    from webdataset.serving import curve_keys, server_metrics  # noqa: PLC0415  after --help
    from webdataset.serving.data_server import DataServer, check_address  # noqa: PLC0415
    from webdataset.serving.server_lane import LaneSettings  # noqa: PLC0415
    from webdataset.serving.zmq_transport import ZmqListener  # noqa: PLC0415

    _check_keys(key, allow, plain=plain)
    check_address(bind, encrypted=key is not None, anywhere=bind_any)
    source: ElasticPipeline = dataset()  # type: ignore[assignment]  # the server looks
    pair = None if key is None else curve_keys.load_key_pair(key)
    authentication = None if allow is None else curve_keys.start_authentication(curve_keys.AllowedKeys(allow))
    listener = ZmqListener(bind, pair)
    how = LaneSettings(workers=workers, mode="threads" if threads else "processes")
    listening = None
    try:
        server = DataServer(source, listener, how, most_lanes=most_trainers)
        signal.signal(signal.SIGTERM, lambda *_: server.drain(drain))
        signal.signal(signal.SIGINT, lambda *_: server.stop())
        if metrics is not None:
            listening = server_metrics.start_metrics(server, metrics_host, metrics)
            console.write_line(f"metrics at http://{metrics_host}:{listening.server_address[1]}/metrics")
        console.write_line(f"serving at {listener.url}{' (not encrypted)' if pair is None else ''}")
        console.flush_stdout()
        server.serve()
    finally:
        listener.close()
        if listening is not None:
            listening.shutdown()
            listening.server_close()
        if authentication is not None:
            authentication.stop()


def _check_keys(key: str | None, allow: str | None, *, plain: bool) -> None:
    if plain and (key or allow):
        raise UsageError("--plain means no encryption: leave out --key and --allow")
    if not plain and not (key and allow):
        raise UsageError(
            "lines are encrypted: give --key (the server's .secret file) and --allow (a folder with the .public files "
            "of trainers); wds serve keygen makes them. Or --plain"
        )
