"""How fast are shards read over a network, against a curl pipe and against webdataset 1.0.2?

``http``: W1 from a web server nearby (nginx): bytes alone and samples, CPU seconds with children, and wall time.
``slow http`` and ``slow s3``: the same server, and SeaweedFS, behind a line in a process of its own, 50 ms a request
and 60 MB/s a connection: what part is reached of the joint limit of five connections (``share_of_limit``), and of what
five curls reach that do nothing else (``share_of_curls``: on a busy machine the line itself is slower). SeaweedFS is
left out where it is not installed.
``slow line cpu``: over the same line to the web server, CPU seconds a GB: our samples (``ours``) and our bytes alone
(``bytes``), with as many connections as above, against the one stream after the other of obstore, which only fetches
bytes (``scripts/peers.py obstore`` installs it). obstore reads one in four of the shards, since one connection is slow.
"""

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers_child
from harness import ORACLE, ROUNDS, SCALE, Library, rounded, show
from shards import workspace, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

LATENCY_SECONDS = 0.05
BYTES_PER_SECOND = 60e6
CONNECTIONS = 5
LIMIT = CONNECTIONS * BYTES_PER_SECOND
SHARDS = 32  # the last ones, which cannot keep all connections busy, should count little
_CONFIGURATION = """
daemon off; {user} worker_processes 1; pid {folder}/pid; error_log stderr crit; events {{ worker_connections 512; }}
http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {files}; }} }}
"""


@contextlib.contextmanager
def web(files: Path) -> Iterator[int]:
    """Serve a folder by nginx; give its port."""
    with tempfile.TemporaryDirectory(prefix="wds-nginx-") as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        user = "user root;" if os.geteuid() == 0 else ""
        path = Path(folder, "conf")
        path.write_text(_CONFIGURATION.format(folder=folder, port=port, files=files, user=user))
        with subprocess.Popen([found("nginx"), "-e", "stderr", "-p", folder, "-c", str(path)]) as child:
            try:
                for _ in range(200):
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                        break
                    time.sleep(0.05)
                yield port
            finally:
                child.terminate()


def found(program: str) -> str:
    """Return where a program is."""
    places = os.pathsep.join((os.environ["PATH"], "/usr/sbin"))
    path = shutil.which(program, path=places)
    if path is None:
        raise SystemExit(f"this question needs {program}")
    return path


def medians(rounds: int, *groups: dict[str, tuple[Library, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the median CPU and wall seconds of each candidate, measured in turns after one warm-up of each.

    Args:
        rounds: measurements of each.
        *groups: candidates by their names; those of one group must have the same result.
    """
    candidates = {name: candidate for group in groups for name, candidate in group.items()}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, (library, job) in candidates.items():
            answer = library.ask(**job)
            if number:
                taken[name].append(answer)
    for group in groups:
        counts = {answer["result"] for name in group for answer in taken[name]}
        if len(counts) > 1:
            raise RuntimeError(f"the candidates {', '.join(group)} disagree: {counts}")
    return {
        name: {key: statistics.median(answer[key] for answer in answers) for key in ("cpu", "wall")}
        for name, answers in taken.items()
    }


def nearby(port: int, names: list[str]) -> dict[str, object]:
    """Print and return the answer for a server nearby."""
    urls = [f"http://127.0.0.1:{port}/{name}" for name in names]
    piped = [f"pipe:curl -s {url}" for url in urls]
    ours, theirs = Library(sys.executable), Library(ORACLE)
    try:
        bytes_alone = {
            "http": (ours, {"job": "stream", "urls": urls}),
            "curl": (ours, {"job": "stream", "urls": piped}),
        }
        samples = {
            "http": (ours, {"job": "raw", "shards": urls}),
            "curl": (ours, {"job": "raw", "shards": piped}),
            "1.0.2": (theirs, {"job": "raw", "shards": piped}),
        }
        alone, whole = medians(ROUNDS, bytes_alone), medians(ROUNDS, samples)
    finally:
        ours.close()
        theirs.close()
    return show(
        "http",
        cpu_of_curl=rounded(alone["http"]["cpu"] / alone["curl"]["cpu"]),
        ratio=rounded(alone["curl"]["wall"] / alone["http"]["wall"]),
        samples_cpu_of_curl=rounded(whole["http"]["cpu"] / whole["curl"]["cpu"]),
        samples_ratio=rounded(whole["curl"]["wall"] / whole["http"]["wall"]),
        samples_cpu_of_theirs=rounded(whole["http"]["cpu"] / whole["1.0.2"]["cpu"]),
        samples_ratio_of_theirs=rounded(whole["1.0.2"]["wall"] / whole["http"]["wall"]),
    )


def side_by_side(urls: list[str]) -> float:
    """Return the seconds in which as many curls as there are connections fetch some urls, and throw them away."""
    program, begun = found("curl"), time.perf_counter()
    shares = [urls[number::CONNECTIONS] for number in range(CONNECTIONS)]
    words = [[word for url in share for word in ("-o", os.devnull, url)] for share in shares]
    children = [subprocess.Popen([program, "-s", *each]) for each in words if each]
    if any(child.wait() for child in children):
        raise RuntimeError("curl failed")
    return time.perf_counter() - begun


def far(question: str, ours_urls: list[str], plain_urls: list[str], size_bytes: int) -> dict[str, object]:
    """Print and return the answer for a server behind a slow line."""
    rounds = max(1, min(3, ROUNDS))
    ours, theirs = Library(sys.executable), Library(ORACLE)
    ours_job: dict[str, Any] = {"job": "raw", "shards": ours_urls}
    alone = []
    try:
        ours.ask(**ours_job)
        for _ in range(rounds):
            wall = ours.ask(**ours_job)["wall"]
            alone.append(side_by_side(plain_urls) / wall)
        their_job = {"job": "raw", "shards": [f"pipe:curl -s {url}" for url in plain_urls]}
        taken = medians(rounds, {"ours": (ours, ours_job), "theirs": (theirs, their_job)})
    finally:
        ours.close()
        theirs.close()
    fast, slow = (size_bytes / taken[name]["wall"] for name in ("ours", "theirs"))
    return show(
        question,
        ours_mb_per_second=rounded(fast / 1e6),
        theirs_mb_per_second=rounded(slow / 1e6),
        share_of_limit=rounded(fast / LIMIT),
        share_of_curls=rounded(statistics.median(alone)),
        theirs_share_of_limit=rounded(slow / LIMIT),
        ratio=rounded(fast / slow),
        cpu_ratio=rounded(taken["theirs"]["cpu"] / taken["ours"]["cpu"]),
    )


def slow_cpu(urls: list[str]) -> dict[str, object]:
    """Print and return the answer about CPU seconds a GB, over a line that is slow."""
    question, rounds = "slow line cpu", max(1, min(3, ROUNDS))
    try:
        python = peers_child.interpreter("obstore")
    except peers_child.GoneError as problem:
        return show(question, left_out=f"obstore is not installed: {problem}")
    ours, theirs, few = Library(sys.executable), Library(python), urls[::4]
    try:
        size_bytes, part_bytes = ours.ask("stream", urls=urls)["result"], theirs.ask("obstore", urls=few)["result"]
        taken = medians(
            rounds,
            {"ours": (ours, {"job": "raw", "shards": urls})},
            {"bytes": (ours, {"job": "stream", "urls": urls})},
            {"obstore": (theirs, {"job": "obstore", "urls": few})},
        )
    finally:
        ours.close()
        theirs.close()
    seconds = {name: taken[name]["cpu"] / size_bytes * 1e9 for name in ("ours", "bytes")}
    one_stream = taken["obstore"]["cpu"] / part_bytes * 1e9
    return show(
        question,
        ours_s_per_gb=rounded(seconds["ours"]),
        bytes_s_per_gb=rounded(seconds["bytes"]),
        obstore_s_per_gb=rounded(one_stream),
        ours_mb_per_second=rounded(size_bytes / taken["ours"]["wall"] / 1e6),
        obstore_mb_per_second=rounded(part_bytes / taken["obstore"]["wall"] / 1e6),
        to_obstore=rounded(seconds["ours"] / one_stream),
        bytes_to_obstore=rounded(seconds["bytes"] / one_stream),
    )


def uploaded(endpoint: str, folder: Path, names: list[str]) -> None:
    """Put shards into the bucket that everybody may read."""
    import botocore.session

    from support import s3_server

    session = botocore.session.Session()
    session.set_credentials(*s3_server.WRITER)
    client = session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="open")
    for name in names:
        client.put_object(Bucket="open", Key=name, Body=(folder / name).read_bytes())
    os.environ |= dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), s3_server.WRITER, strict=True))
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"


def slow_s3(folder: Path, names: list[str], size_bytes: int) -> None:
    """Ask the question about S3, where SeaweedFS is installed."""
    from support import s3_server
    from support.slow_line import slow_line
    from webdataset.core.errors import NotFound

    try:
        s3_server.weed()
    except NotFound:
        return
    with tempfile.TemporaryDirectory(prefix="wds-s3-") as place, s3_server.shared_s3(Path(place)) as service:
        host, _, port = service.endpoint.removeprefix("http://").partition(":")
        uploaded(service.endpoint, folder, names)
        with slow_line(host, int(port), latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND) as root:
            os.environ["AWS_ENDPOINT_URL_S3"] = root
            plain = [f"{root}/open/{name}" for name in names]
            far("slow s3", [f"s3://open/{name}" for name in names], plain, size_bytes)


def measure() -> None:
    """Print the answers."""
    from support.slow_line import slow_line

    with workspace() as folder:
        folder.chmod(0o755)
        first = [Path(path).name for path in write("W1", folder, scale=SCALE)]
        names = [f"{copy}-{name}" for copy in range(max(1, SHARDS // len(first))) for name in first]
        for name in names:
            os.link(folder / name.partition("-")[2], folder / name)
        size_bytes = sum((folder / name).stat().st_size for name in names)
        with web(folder) as port:
            nearby(port, first)
            line = slow_line("127.0.0.1", port, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND)
            with line as root:
                urls = [f"{root}/{name}" for name in names]
                far("slow http", urls, urls, size_bytes)
                slow_cpu(urls)
        slow_s3(folder, names, size_bytes)


if __name__ == "__main__":
    measure()
