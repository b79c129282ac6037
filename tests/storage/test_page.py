"""The Python blocks of the page about storage run against real services."""

import pytest

PAGE = "storage.md"


@pytest.mark.usefixtures("environment")
def test_the_page_runs_on_s3(ran_page):
    """The blocks about S3."""
    assert ran_page(PAGE, "s3://") == 3


@pytest.mark.usefixtures("gs")
def test_the_page_runs_on_google_cloud(ran_page):
    """The block about Google Cloud Storage."""
    assert ran_page(PAGE, "gs://") == 1


@pytest.mark.usefixtures("az")
def test_the_page_runs_on_azure(ran_page):
    """The block about Azure Storage."""
    assert ran_page(PAGE, "az://") == 1
