"""Records of urllib3 are kept, without what is secret in addresses."""

import logging

from webdataset.storage import http_client


def test_records_are_masked(caplog):
    """Signatures, tokens and addresses of uploads are replaced; the rest stays, and so do records of others."""
    http_client.mask_urllib3_logs()
    http_client.mask_urllib3_logs()
    query = "/c/k?comp=list&sig=canary%2B&X-Amz-Signature=canary&upload_id=canary&upload=mine"
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("urllib3.connectionpool").debug('%s "%s %s" %s', "http://h:80", "GET", query, 200)
        logging.getLogger("else").debug(query)
    shown, other = (record.getMessage() for record in caplog.records)
    assert "canary" not in shown
    assert shown.endswith('upload=mine" 200')
    assert other == query
