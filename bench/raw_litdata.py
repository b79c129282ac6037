"""What does a raw sample of 80 KB cost, litdata's being 1? It has its own format; ``scripts/peers.py`` installs it."""

from harness import SCALE, rounded, show
from peers_child import WAYS
from peers_speed import in_turns, truth
from shards import workspace, write


def main() -> None:
    """Print the answer."""
    with workspace() as folder:
        (folder / "shards").mkdir()
        shards = write("W1", folder / "shards", scale=SCALE)
        answers = in_turns({name: WAYS[name] for name in ("ours", "litdata")}, shards, folder, truth(shards))
    missing = {name: answer["left_out"] for name, answer in answers.items() if "left_out" in answer}
    if missing:
        show("raw W1 litdata", left_out="; ".join(f"{name}: {why}" for name, why in missing.items()))
        return
    ours, litdata = (answers[name]["cpu_us"] for name in ("ours", "litdata"))
    show("raw W1 litdata", ours_us=ours, litdata_us=litdata, ratio=rounded(ours / litdata))


if __name__ == "__main__":
    main()
