"""Backends: one kind of storage each, imported when the first url of its scheme is opened.

Each is a :class:`~webdataset.storage.object_store.Backend`. To add one, copy ``azure`` and ``azure_client`` (HTTP) or
``memory`` (anything else); ``docs/design/storage.md`` lists the steps.

* ``http``: web servers; cannot list.
* ``s3``, ``s3_client``, ``s3_errors``: S3 and compatible services, by botocore.
* ``gcs``, ``gcs_client``: Google Cloud Storage.
* ``azure``, ``azure_client``: Azure Storage.
* ``aistore``, ``aistore_client``: AIStore clusters, and batches of objects.
* ``huggingface``, ``huggingface_client``: the Hugging Face hub.
* ``sftp``, ``sftp_client``: files on other machines, over ssh.
* ``fsspec_store``: every other scheme that an installed fsspec knows.
* ``memory``: objects in this process.
* ``pipe``: commands as streams; no :class:`~webdataset.storage.object_store.Backend`.

``X`` holds the object, the list and the upload, ``X_client`` locations, credentials, requests and error translation.
"""
