"""Download the images that a list names, with the published img2dataset: ``img2dataset_probe.py LIST FOLDER``."""

import os
import sys

# albumentations asks a server for newer versions of itself when it is imported
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

from img2dataset import download  # type: ignore[import-not-found]  # noqa: E402

# the processes that it starts import this file again
if __name__ == "__main__":
    download(
        url_list=sys.argv[1],
        output_folder=sys.argv[2],
        input_format="jsonl",
        url_col="url",
        caption_col="caption",
        save_additional_columns=["licence"],
        output_format="webdataset",
        processes_count=1,
        thread_count=4,
        number_sample_per_shard=10,
        image_size=64,
        extract_exif=True,
    )
