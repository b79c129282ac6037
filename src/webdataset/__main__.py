"""``python -m webdataset`` is the command ``wds``."""

from webdataset.cli.main import run

if __name__ == "__main__":
    run()
