"""Puts the state of a loader into the checkpoints of accelerate and the Hugging Face Trainer.

Lightning asks the loader itself, torchdata's StatefulDataLoader the dataset; see ``torch_nodes`` for torchdata.nodes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from webdataset.core.distributed import process_context
from webdataset.core.durable_files import make_durable_folder, replace_and_sync, write_and_sync
from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import require


class StatefulLoader(Protocol):
    """A loader whose state can be saved and loaded."""

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return a JSON value: where the loader is."""

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Continue from a state."""


LoaderType = TypeVar("LoaderType", bound=StatefulLoader)
TrainerType = TypeVar("TrainerType")


class Accelerator(Protocol):
    """What is asked of accelerate's class of this name."""

    def register_for_checkpointing(self, *objects: object) -> object:
        """Save these with each checkpoint."""


class _TrainingArguments(Protocol):
    output_dir: str


class _TrainerState(Protocol):
    global_step: int


def _check_stateful(loader: object) -> None:
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        raise UsageError(f"{type(loader).__name__} has no state: pass a wds.WebLoader over an elastic dataset")
    loader.state_dict()


def for_accelerate(accelerator: Accelerator, loader: LoaderType) -> LoaderType:
    """Let accelerate save and load the state of a loader, and not share its batches out a second time.

    Pass the loader itself to the training loop, not to ``accelerator.prepare``: for an iterable dataset, ``prepare``
    reads on one rank and sends to the others, or drops every other rank's batches, and the dataset has been shared out
    between ranks already. ``accelerator.save_state`` and ``load_state`` keep one state for each rank.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        loader: a :class:`~webdataset.fluent.loader.WebLoader` over an elastic dataset.

    Returns:
        The loader.

    Raises:
        UsageError: the loader has no state.
    """
    _check_stateful(loader)
    accelerator.register_for_checkpointing(RankState(loader))
    return loader


class RankState:
    """The states of a loader on all ranks, as one: for programs of which only the first rank saves."""

    def __init__(self, loader: StatefulLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks, by rank; every rank calls it at the same step."""
        return {str(rank): state for rank, state in enumerate(gather_states(self.loader.state_dict()))}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Load this rank's state, or where there are other ranks now, the merged one of all."""
        self.loader.load_state_dict(select_rank_state(states))


def gather_states(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the states of all ranks."""
    here = process_context()
    if here.world_size == 1:
        return [state]
    distributed = require("torch.distributed", extra="torch", purpose="saving on several ranks")
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError(f"this is one of {here.world_size} ranks, and torch.distributed is not initialized")
    states: list[Mapping[str, Any]] = [{}] * here.world_size
    distributed.all_gather_object(states, state)
    return states


def select_rank_state(states: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the state that this rank continues from."""
    from webdataset.flow.elastic_state import merge_states  # noqa: PLC0415  seldom needed

    here = process_context()
    if len(states) == here.world_size:
        return states[str(here.rank)]
    return merge_states(states.values())


class TrainerLoader:
    """A loader for a program that counts epochs by itself: the loader's own count holds."""

    def __init__(self, loader: StatefulLoader) -> None:
        self.loader = loader
        self.dataset = getattr(loader, "dataset", loader)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a state."""
        self.loader.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _SizedLoader(StatefulLoader, Protocol):
    """A loader with a length."""

    def __len__(self) -> int:
        """Return the number of batches."""


class SizedTrainerLoader(TrainerLoader):
    """The same of a loader with a length."""

    loader: _SizedLoader

    def __len__(self) -> int:
        return len(self.loader)


def for_trainer(trainer: TrainerType, loader: StatefulLoader) -> TrainerType:
    """Let the Hugging Face Trainer train on a loader, and keep the loader's state in its checkpoints.

    The Trainer neither shares the batches out a second time, nor skips any when it resumes: the loader continues by
    itself. Each checkpoint gets ``webdataset-<rank>-of-<ranks>.json``; on another number of ranks, the states of all
    are merged. Give the loader a length (``with_length``) only if each epoch has exactly so many batches.

    The Trainer saves between two steps of the optimizer, never between the batches of one. So it continues exactly with
    ``gradient_accumulation_steps``, too; where the loader has a length, that must be a multiple of them: the Trainer
    makes a smaller last step in an epoch that it reads whole, and none in one whose rest it reads.

    Args:
        trainer: a ``transformers.Trainer``; changed in place.
        loader: a :class:`~webdataset.fluent.loader.WebLoader` over an elastic dataset.

    Returns:
        The trainer.

    Raises:
        MissingExtra: transformers is not installed.
        UsageError: the loader has no state, or a length that is no multiple of ``gradient_accumulation_steps``.
    """
    transformers: Any = require("transformers", extra="trainer", purpose="training with the Hugging Face Trainer")
    # a transformers.Trainer, whose methods are replaced here
    changed: Any = trainer
    _check_stateful(loader)
    _check_length(loader, changed.args.gradient_accumulation_steps)

    class LoaderState(transformers.TrainerCallback):  # type: ignore[misc]
        """Saves and loads the loader's state with the Trainer's checkpoints."""

        def on_save(self, args: _TrainingArguments, state: _TrainerState, control: object, **_: object) -> None:  # noqa: ARG002  the Trainer's names
            write_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", loader.state_dict())

        def on_train_begin(self, args: _TrainingArguments, state: _TrainerState, control: object, **_: object) -> None:  # noqa: ARG002  the same
            if state.global_step:
                view.load_state_dict(read_state(Path(args.output_dir) / f"checkpoint-{state.global_step}"))

    view = SizedTrainerLoader(loader) if hasattr(loader, "__len__") else TrainerLoader(loader)
    changed.args.ignore_data_skip = True
    changed.get_train_dataloader = lambda: view
    changed.add_callback(LoaderState())
    return trainer


def _check_length(loader: object, accumulated: int) -> None:
    length = len(loader) if hasattr(loader, "__len__") else 0
    if length % accumulated:
        raise UsageError(
            f"the loader's length, {length}, is no multiple of gradient_accumulation_steps={accumulated}, so that the "
            "Trainer could not continue exactly: make epochs of such a number of batches, with_epoch(n) and "
            "with_length(n), or leave the length out and give the Trainer max_steps"
        )


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write this rank's state into a folder; it is complete under its name, also after a power failure.

    Args:
        folder: of the checkpoint; made where it is not there.
        state: a JSON value.
    """
    here = process_context()
    make_durable_folder(str(folder))
    place = folder / f"webdataset-{here.rank}-of-{here.world_size}.json"
    waiting = place.with_suffix(".part")
    # of a process that was killed
    waiting.unlink(missing_ok=True)
    write_and_sync(str(waiting), json.dumps(state).encode())
    replace_and_sync(str(waiting), str(place))


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state that this rank continues from.

    Raises:
        UsageError: it has no states, or not those of all ranks.
    """
    found = sorted(folder.glob("webdataset-*-of-*.json"))
    states = {path.stem.split("-")[1]: json.loads(path.read_text(encoding="utf-8")) for path in found}
    ranks = {int(path.stem.split("-")[3]) for path in found}
    if len(ranks) != 1 or len(states) != max(ranks):
        raise UsageError(f"{folder} holds the loader's states of ranks {sorted(states)}, not those of all ranks")
    return select_rank_state(states)
