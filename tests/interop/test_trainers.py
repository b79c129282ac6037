"""Lightning, accelerate and the Hugging Face Trainer: stopped at checkpoints, they go on exactly."""

import itertools

import pytest

import webdataset as wds

torch = pytest.importorskip("torch")

STREAMS = 12


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of unequal size."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(5):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(9 + 4 * number):
                sink.write({"__key__": f"{number}-{index:03d}", "txt": "x"})
    return str(folder / "s-{0..4}.tar")


def loader(urls, *, epoch=None):
    """Batches of keys, and something to train on."""
    made = wds.WebDataset(urls, shardshuffle=10, seed=2).shuffle(24).map(lambda sample: (sample["__key__"],)).batched(4)
    made = made.map(lambda batch: {"keys": list(batch[0]), "x": torch.ones(1, 1)})
    made = made if epoch is None else made.with_epoch(epoch)
    return wds.WebLoader(made.elastic(STREAMS), batch_size=None, num_workers=2)


def test_accelerate(urls, tmp_path):
    """Its ``prepare`` leaves the loader alone; its checkpoints hold the loader's state."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    first = wds.for_accelerate(accelerator, loader(urls))
    assert accelerator.prepare(first) is first
    batches = iter(first)
    list(itertools.islice(batches, 9))
    accelerator.save_state(str(tmp_path))
    rest = [batch["keys"] for batch in batches]
    accelerator = accelerate.Accelerator(cpu=True)
    again = wds.for_accelerate(accelerator, loader(urls))
    accelerator.load_state(str(tmp_path))
    assert [batch["keys"] for batch in again] == rest


@pytest.mark.parametrize("length", [None, 20])
def test_lightning(urls, tmp_path, length):
    """A loader with a length continues after each checkpoint; without one Lightning has taken a batch more."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        """One weight, and what it was trained on."""

        def __init__(self):
            super().__init__()
            self.inner, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            """Note the batch."""
            self.seen.append(batch["keys"])
            return self.inner(batch["x"]).sum()

        def configure_optimizers(self):
            """Plain descent."""
            return torch.optim.SGD(self.parameters(), 1e-3)

    def trained(checkpoint=None, callbacks=()):
        module = Module()
        batches = loader(urls, epoch=20)
        batches = batches if length is None else batches.with_length(length)
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=bool(callbacks), callbacks=list(callbacks),
        )  # fmt: skip
        trainer.fit(module, batches, ckpt_path=checkpoint)
        return module.seen

    keeping = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1, auto_insert_metric_name=False
    )
    whole = trained(callbacks=[keeping])
    assert len(whole) == 60
    for step in (4, 20, 28, 40):
        ahead = 1 if length is None and step % 20 else 0  # after the last batch of an epoch there is none to take
        expected = whole[step + ahead :]
        assert trained(tmp_path / f"{step}.ckpt") == expected, step


def hugging_face(urls, folder, *, epoch, length, accumulated, steps, **options):
    """Return a function that trains, from a checkpoint if it is given one, and tells batches and the last weight."""
    transformers = pytest.importorskip("transformers")

    class Module(torch.nn.Module):
        """One weight, and what it was trained on."""

        def __init__(self):
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.ones(())), []

        def forward(self, x, keys):  # noqa: ARG002  the Trainer's names
            """Note the batch; what the weight becomes depends on the batches and on those that make one step."""
            self.seen.append(keys)
            return {"loss": (self.weight * sum(map(ord, "".join(keys))) / 1000 - 1) ** 2}

    def trained(checkpoint=None):
        batches = loader(urls, epoch=epoch)
        batches = batches if length is None else batches.with_length(length)
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=steps, logging_steps=1000, use_cpu=True, report_to=[], remove_unused_columns=False,
            disable_tqdm=True, gradient_accumulation_steps=accumulated, learning_rate=1e-2, **options,
        )  # fmt: skip
        module = Module()
        trainer = wds.for_trainer(transformers.Trainer(module, arguments), batches)
        trainer.train(resume_from_checkpoint=checkpoint and str(folder / f"checkpoint-{checkpoint}"))
        return module.seen, module.weight.item()

    return trained


@pytest.mark.parametrize(
    ("accumulated", "epoch", "length"),
    [(1, 20, 20), (2, 20, None), (2, 20, 20), (3, 20, None), (3, 18, 18), (3, None, None)],
)
def test_hugging_face_trainer_accumulates_gradients(urls, tmp_path, accumulated, epoch, length):
    """Checkpoints stand between steps of the optimizer, at the end of an epoch too; each goes on exactly."""
    trained = hugging_face(
        urls,
        tmp_path,
        epoch=epoch,
        length=length,
        accumulated=accumulated,
        steps=21,
        save_steps=1,
        save_only_model=False,
    )
    whole, weight = trained()
    assert len(whole) >= 21 * accumulated
    last = 0
    for step in (6, 7, 10, 20):
        rest, again = trained(step)
        behind = len(whole) - len(rest)
        assert rest == whole[behind:], step
        assert behind >= max(last, step * accumulated), step
        assert again == weight, step
        last = behind


def test_hugging_face_trainer_refuses_lengths_it_cannot_resume(urls, tmp_path):
    """A smaller last step of the epoch would be left out behind a checkpoint within it."""
    trained = hugging_face(urls, tmp_path, epoch=20, length=20, accumulated=3, steps=4)
    with pytest.raises(wds.WebDatasetError, match="length, 20, is no multiple of gradient_accumulation_steps=3"):
        trained()


@pytest.mark.parametrize("length", [None, 20])
def test_hugging_face_trainer(urls, tmp_path, length):
    """It resumes from each checkpoint with the batches that come next, skipping none by itself."""
    transformers = pytest.importorskip("transformers")

    class Module(torch.nn.Module):
        """One weight, and what it was trained on."""

        def __init__(self):
            super().__init__()
            self.inner, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, x, keys):
            """Note the batch."""
            self.seen.append(keys)
            return {"loss": self.inner(x).sum()}

    def trained(checkpoint=None):
        batches = loader(urls, epoch=20)
        batches = batches if length is None else batches.with_length(length)
        options = transformers.TrainingArguments(
            str(tmp_path), max_steps=50, save_steps=7, logging_steps=1000, use_cpu=True, report_to=[],
            remove_unused_columns=False, disable_tqdm=True,
        )  # fmt: skip
        module = Module()
        trainer = wds.for_trainer(transformers.Trainer(module, options), batches)
        trainer.train(resume_from_checkpoint=checkpoint)
        return module.seen

    whole = trained()
    assert len(whole) == 50
    for step in (7, 28, 42):
        assert trained(str(tmp_path / f"checkpoint-{step}")) == whole[step:], step
