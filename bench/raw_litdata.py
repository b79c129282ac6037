"""What does a raw sample of 80 KB cost, litdata's being 1? ``scripts/peers.py`` installs it.

litdata has a format of its own, and gives memory views of its mapped file, of which nothing is read until they are
used; ``ratio_copied`` compares with these views copied into bytes, which is what this library gives.
"""

from harness import SCALE, rounded, show
from peers_child import WAYS
from peers_speed import in_turns, truth
from shards import workspace, write


def main() -> None:
    """Print the answer."""
    with workspace() as folder:
        (folder / "shards").mkdir()
        shards = write("W1", folder / "shards", scale=SCALE)
        ways = {name: WAYS[name] for name in ("ours", "litdata", "litdata_bytes")}
        answers = in_turns(ways, shards, folder, truth(shards))
    missing = {name: answer["left_out"] for name, answer in answers.items() if "left_out" in answer}
    if missing:
        show("raw W1 litdata", left_out="; ".join(f"{name}: {why}" for name, why in missing.items()))
        return
    ours, views, litdata = (answers[name]["cpu_us"] for name in ways)
    figures = {"ratio": rounded(ours / views), "ratio_copied": rounded(ours / litdata)}
    show("raw W1 litdata", ours_us=ours, litdata_us=views, litdata_bytes_us=litdata, **figures)


if __name__ == "__main__":
    main()
