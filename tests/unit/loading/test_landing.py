"""Images decoded straight into the batch, and pipelines that must not be harmed by it."""

import io

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs.images import output_buffer
from webdataset.codecs.images.decode import decode_pixels
from webdataset.loading.columns import collate_rows, infer_layout
from webdataset.loading.rows import LANDING, OFF, TRIAL, RowAllocator, WindowRows

MODES = [(0, "threads"), (2, "threads"), (2, "processes")]


def jpeg(number, height=48, width=64, kind="JPEG"):
    """Return an image whose pixels depend on a number."""
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    values = np.full((height, width, 3), number * 3 % 256, np.uint8)
    image.fromarray(values).save(stream, kind)
    return stream.getvalue()


def layout_of(sample, rows):
    """Return the layout of batches of samples like one."""
    return infer_layout(collate_rows([sample]), rows)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return urls of 4 shards of 12 JPEG images each, and two PNGs."""
    folder = tmp_path_factory.mktemp("pictures")
    urls = []
    for shard in range(4):
        urls.append(str(folder / f"{shard}.tar"))
        with wds.TarWriter(urls[-1], encoder=False) as writer:
            for n in range(12 * shard, 12 * shard + 12):
                field = "png" if n in (5, 17) else "jpg"
                payload = jpeg(n, kind="PNG" if field == "png" else "JPEG")
                writer.write({"__key__": f"{n:03d}", field: payload, "cls": str(n).encode()})
    return urls


def loaded(dataset, workers, mode, batch_size=4, epochs=2):
    """Return the samples of all batches, as copies, of some epochs."""
    start = "fork" if mode == "processes" else None
    found = []
    with wds.Loader(dataset, batch_size, workers=workers, mode=mode, start_method=start) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for pictures, numbers in loader:
                found += zip(np.array(pictures), numbers.tolist(), strict=True)
                pictures[:] = 0  # a batch is the consumer's
    return found


def expected(dataset, epochs=2):
    """Return the samples of one run, epoch by epoch."""
    found = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        found += [(np.array(picture), number) for picture, number in dataset]
    return found


def check(found, wanted):
    """Compare samples."""
    assert [number for _, number in found] == [number for _, number in wanted]
    for (picture, _), (other, _) in zip(found, wanted, strict=True):
        assert np.array_equal(picture, other)


def remembered():
    """Return a function that keeps every picture, and gives it again in the next epoch."""
    pictures = {}

    def recalled(sample):
        return {**sample, "x": pictures.setdefault(sample["cls"], sample["x"])}

    return recalled


def previous():
    """Return a function that keeps the picture before."""
    last = [None]

    def kept(sample):
        last[0] = sample["x"]
        return sample

    return kept


def brightened(sample):
    """Change a picture in place."""
    sample["x"] += 1
    return sample


PIPELINES = {
    "plain": lambda d: d,
    "shuffled behind the decoder": lambda d: d.shuffle(13),
    "flipped": lambda d: d.map(lambda s: {**s, "x": s["x"][::-1]} if s["cls"] % 2 else s),
    "changed in place": lambda d: d.map(brightened),
    "selected": lambda d: d.select(lambda s: s["cls"] % 3),
    "remembered": lambda d: d.map(remembered()),
    "previous one kept": lambda d: d.map(previous()),
    "floats": lambda d: d.map(lambda s: {**s, "x": s["x"].astype(np.float32) / 255}),
}


@pytest.mark.parametrize(("workers", "mode"), MODES)
@pytest.mark.parametrize("how", PIPELINES)
@pytest.mark.parametrize("streams", [1, 6])
def test_pipelines_give_what_they_gave_without_batches(pictures, workers, mode, how, streams):
    """Buffers, views, caches and changes in place behind the decoder meet no memory of a batch."""

    def dataset():
        decoded = wds.WebDataset(pictures, shardshuffle=10, seed=3).decode("rgb8").rename(x="jpg;png", cls="cls")
        return PIPELINES[how](decoded).to_tuple("x", "cls").elastic(streams=streams)

    check(loaded(dataset(), workers, mode), expected(dataset()))


@pytest.mark.parametrize("spec", ["rgb8", "rgb", "l8", "pil"])
@pytest.mark.parametrize(("workers", "mode"), MODES)
def test_every_kind_of_picture(pictures, workers, mode, spec):
    """Each image spec gives the same batches as collating what the pipeline gives."""
    dataset = wds.WebDataset(pictures).decode(spec).to_tuple("jpg;png", "cls").elastic(streams=6)
    if spec == "pil":
        dataset = (
            wds.WebDataset(pictures)
            .decode(spec)
            .map(lambda s: (np.asarray(s.get("jpg", s.get("png"))), s["cls"]))
            .elastic(streams=6)
        )
    check(loaded(dataset, workers, mode), expected(dataset))


def test_decoders_write_into_the_batch():
    """A JPEG's and a PNG's pixels come to lie in the row that was offered, without a copy."""
    column = np.zeros((2, 48, 64, 3), np.uint8)
    rows = WindowRows(layout_of((column[0], 1), 2), [column], LANDING)
    for row, kind in enumerate(("JPEG", "PNG")):
        rows.expect(row)
        with output_buffer.use_provider(rows.give):
            picture = decode_pixels(jpeg(50 + row, kind=kind), "RGB")
        assert np.shares_memory(picture, column[row])
        assert rows.write_sample(row, (picture, 7)) == (True, [7])
        assert np.array_equal(column[row], decode_pixels(jpeg(50 + row, kind=kind), "RGB"))
    assert rows.mode == LANDING


def test_floats_are_written_into_the_batch():
    """Pixels scaled to [0, 1] land in a column of floats; the integers before them do not."""
    from webdataset.codecs.images.handler import image_decoder

    column = np.zeros((1, 48, 64, 3), np.float32)
    rows = WindowRows(layout_of((column[0],), 1), [column], LANDING)
    rows.expect(0)
    with output_buffer.use_provider(rows.give):
        picture = image_decoder(("numpy", "float", "rgb"), None)(jpeg(9))
    assert np.shares_memory(picture, column)


def test_two_pictures_of_one_shape_get_a_column_each():
    """The fields of a sample land in their own columns, also where they were decoded in the other order."""
    columns = [np.zeros((1, 48, 64, 3), np.uint8) for _ in range(2)]
    layout = layout_of((columns[0][0], columns[1][0]), 1)
    for swapped in (False, True):
        rows = WindowRows(layout, columns, LANDING)
        rows.expect(0)
        with output_buffer.use_provider(rows.give):
            one, two = decode_pixels(jpeg(1), "RGB"), decode_pixels(jpeg(2), "RGB")
        sample = (two, one) if swapped else (one, two)
        wanted = [array.copy() for array in sample]
        placed, beside = rows.write_sample(0, sample)
        found = [column[0] for column in columns] if placed else beside
        assert all(map(np.array_equal, found, wanted))
        assert placed is not swapped
        del one, two, sample, beside, found


def test_memory_that_is_still_in_use_is_not_offered_again():
    """A row is offered once for as long as anything made of it lives, views of views too."""
    column = np.zeros((1, 48, 64, 3), np.uint8)
    rows = WindowRows(layout_of((column[0],), 1), [column], LANDING)
    rows.expect(0)
    first = rows.give((48, 64, 3), np.dtype(np.uint8))
    kept = first[::2].transpose(2, 1, 0)[0]
    del first
    assert rows.give((48, 64, 3), np.dtype(np.uint8)) is None
    kept[:] = 5
    assert rows.write_sample(0, (np.ones((48, 64, 3), np.uint8),))[0] is False
    assert int(kept.max()) == 5
    assert rows.mode == OFF


def test_nobody_is_asked_outside_of_a_loader():
    """Without a giver decoders make their own arrays; givers are put back as they were."""
    assert output_buffer.take_buffer((1,), np.dtype(np.uint8)) is None
    outer = np.zeros(1, np.uint8)
    with output_buffer.use_provider(lambda shape, dtype: outer):
        with output_buffer.use_provider(None):
            assert output_buffer.take_buffer((1,), np.dtype(np.uint8)) is None
        assert output_buffer.take_buffer((1,), np.dtype(np.uint8)) is outer
    assert decode_pixels(jpeg(3), "RGB").flags.owndata


@pytest.mark.parametrize(("kept", "turn", "mode"), [(0, 1, LANDING), (3, 1, LANDING), (999, 1, OFF), (6, 6, LANDING)])
def test_rows_are_offered_to_pipelines_that_let_go(kept, turn, mode):
    """Memory is offered on trial first; where it is kept for longer than the streams take, rows never are."""
    column = np.zeros((4, 48, 64, 3), np.uint8)
    layout = layout_of((column[0],), 4)
    allocator = RowAllocator()
    pipeline, modes = [], []
    for block in range(30):
        rows = allocator.rows(layout, [column])
        modes.append(rows.mode)
        for row in range(4):
            rows.expect(row)
            pipeline.append(rows.give((48, 64, 3), np.dtype(np.uint8)))
            del pipeline[: -kept - 1]
            rows.write_sample(row, (pipeline[-1],))
        allocator.take_back(rows, block, 4, turn)
    assert modes[:3] == [TRIAL] * 3
    assert modes[-1] == mode
    assert LANDING not in modes or mode == LANDING


def test_blocks_that_are_referred_to_are_reported():
    """A window's block is busy for as long as the pipeline has one of its rows."""
    column = np.zeros((2, 48, 64, 3), np.uint8)
    layout = layout_of((column[0],), 2)
    allocator = RowAllocator()
    allocator.mode = LANDING
    rows = allocator.rows(layout, [column])
    rows.expect(0)
    kept = rows.give((48, 64, 3), np.dtype(np.uint8))
    assert allocator.take_back(rows, 7, 1, 1) == []
    assert allocator.busy() == [7]
    del kept
    assert allocator.busy() == []


def test_small_arrays_are_copied():
    """Offering a row costs more than copying a few bytes."""
    column = np.zeros((2, 8, 8, 3), np.uint8)
    assert WindowRows(layout_of((column[0],), 2), [column], LANDING).give((8, 8, 3), np.dtype(np.uint8)) is None
