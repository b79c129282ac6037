"""Read speech and transcripts: decode audio, compute a spectrogram, and pad batches of similar lengths.

    python examples/speech.py                                     # tones made by this program
    python examples/speech.py --shards 'gs://me/speech-{000..099}.tar'

Samples have `flac` or `wav`, mono, and `txt`. Needs `pip install 'webdataset[audio]'`.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import webdataset as wds

RATE, WINDOW, HOP = 16_000, 400, 160


def write_tones(folder: Path, count: int) -> str:
    """Write tones of 0.2 to 1.5 seconds with a transcript; return the urls of the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with wds.ShardWriter(str(folder / "speech-%02d.tar"), maxcount=50, overwrite=True, verbose=0) as sink:
        for number in range(count):
            seconds, pitch = rng.uniform(0.2, 1.5), rng.uniform(100, 1000)
            time = np.arange(int(seconds * RATE)) / RATE
            wave = (0.3 * np.sin(2 * np.pi * pitch * time)).astype(np.float32)
            sink.write({"__key__": f"{number:05d}", "flac": (wave, RATE), "txt": f"a tone of {pitch:.0f} hertz"})
    return str(folder / f"speech-{{00..{(count - 1) // 50:02d}}}.tar")


def spectrogram(audio: tuple[np.ndarray, int]) -> np.ndarray:
    """Return float32[frames, 201]: the logarithm of the power in windows of 25 ms, 10 ms apart.

    Raises:
        ValueError: another sampling rate than 16 kHz.
    """
    wave, rate = np.asarray(audio[0]), audio[1]
    if rate != RATE:
        raise ValueError(f"sampled at {rate} Hz, not {RATE}: resample it")
    mono = wave.mean(axis=0 if wave.shape[0] < wave.shape[-1] else -1) if wave.ndim > 1 else wave
    windows = sliding_window_view(mono, WINDOW)[::HOP] * np.hanning(WINDOW)
    return np.log(np.abs(np.fft.rfft(windows)) ** 2 + 1e-6).astype(np.float32)


def pad(samples: list[tuple[np.ndarray, str]]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return float32[batch, longest, 201] filled with zeros, int64[batch] lengths, and the transcripts."""
    lengths = np.array([len(frames) for frames, _ in samples])
    padded = np.zeros((len(samples), lengths.max(), samples[0][0].shape[1]), np.float32)
    for row, (frames, _) in zip(padded, samples, strict=True):
        row[: len(frames)] = frames
    return padded, lengths, [text for _, text in samples]


def sort_by_length(samples: list[Any]) -> list[Any]:
    """Return a list sorted by the number of frames, so that neighbours have similar lengths."""
    return sorted(samples, key=lambda sample: len(sample[0]))


def make_batches(urls: str, batch: int) -> wds.WebDataset:
    """Return padded batches; eight batches at a time are sorted by length, then shuffled."""
    return (
        wds.WebDataset(urls, shardshuffle=100, seed=1)
        .shuffle(500)
        .decode(wds.audio)
        .to_tuple("flac;wav", "txt")
        .map_tuple(spectrogram, None)
        .listed(8 * batch)
        .map(sort_by_length)
        .unlisted()
        .batched(batch, collation_fn=pad)
        .shuffle(8)
    )


def main() -> None:
    """Print the shape of each of the first batches, and how much of it is padding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", help="urls; tones are made by default")
    parser.add_argument("--folder", type=Path, default=Path("speech-data"))
    parser.add_argument("--batches", type=int, default=10)
    options = parser.parse_args()
    urls = options.shards or write_tones(options.folder, 200)
    for frames, lengths, texts in itertools.islice(make_batches(urls, 16), options.batches):
        padding = 1 - lengths.sum() / (frames.shape[0] * frames.shape[1])
        print(f"{frames.shape} padding {padding:.0%}, first: {texts[0]}", flush=True)


if __name__ == "__main__":
    main()
