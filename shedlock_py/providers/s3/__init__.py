"""Locks in a bucket of S3, or of a service with S3's interface and conditional writes."""

from shedlock_py.providers.s3.s3_provider import AsyncS3LockProvider, S3LockProvider

__all__ = ["AsyncS3LockProvider", "S3LockProvider"]
