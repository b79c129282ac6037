"""Backends: one kind of storage each, imported when the first url of its scheme is opened.

``X`` holds the object, listing and upload of a backend; ``X_client`` its locations, credentials, requests and errors.
"""
