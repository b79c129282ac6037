"""Read speech and transcripts: decode audio, compute a spectrogram, and pad batches of similar lengths.

    python examples/speech.py                                     # tones made by this program
    python examples/speech.py --shards 'gs://me/speech-{000..099}.tar'

Samples have `flac` or `wav`, mono, and `txt`. Needs `pip install '.[audio]'`.
"""

import argparse
import itertools
from pathlib import Path

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


def make_batches(urls: str, max_frames: int) -> wds.WebDataset:
    """Return batches of samples of like length, of no more than ``max_frames`` frames with their padding."""
    edges = [20, 40, 60, 80, 100, 125, 150]
    return (
        wds.WebDataset(urls, shardshuffle=100, seed=1)
        .shuffle(500)
        .decode(wds.audio)
        .rename(frames="flac;wav", text="txt")
        .map_dict(frames=spectrogram)
        .bucket("frames", edges, max_total=max_frames, collation_fn=wds.PaddingCollator({"frames": 0.0}, mask="mask"))
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
    for batch in itertools.islice(make_batches(urls, 1_600), options.batches):
        padding = 1 - batch["mask"].mean()
        print(f"{batch['frames'].shape} padding {padding:.0%}, first: {batch['text'][0]}", flush=True)


if __name__ == "__main__":
    main()
