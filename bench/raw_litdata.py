"""What does a raw sample of 80 KB cost, litdata's being 1? ``scripts/peers.py`` installs it.

litdata has a format of its own, and gives memory views of its mapped file, of which nothing is read until they are
used. ``ratio_mapped`` compares them with what ``memory_map=True`` gives, which is the same of tar shards; ``ratio``
with bytes, this library's default; ``ratio_copied`` compares bytes with bytes.
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
        ways = {name: WAYS[name] for name in ("ours", "mapped", "litdata", "litdata_bytes")}
        answers = in_turns(ways, shards, folder, truth(shards))
    missing = {name: answer["left_out"] for name, answer in answers.items() if "left_out" in answer}
    if missing:
        show("raw W1 litdata", left_out="; ".join(f"{name}: {why}" for name, why in missing.items()))
        return
    ours, mapped, views, litdata = (answers[name]["cpu_us"] for name in ways)
    figures = {"ratio": rounded(ours / views), "ratio_copied": rounded(ours / litdata)}
    figures["ratio_mapped"] = rounded(mapped / views)
    show("raw W1 litdata", ours_us=ours, mapped_us=mapped, litdata_us=views, litdata_bytes_us=litdata, **figures)


if __name__ == "__main__":
    main()
