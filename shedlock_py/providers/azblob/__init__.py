"""Locks in a container of Azure Blob Storage."""

from shedlock_py.providers.azblob.azblob_provider import AsyncAzureBlobLockProvider, AzureBlobLockProvider

__all__ = ["AsyncAzureBlobLockProvider", "AzureBlobLockProvider"]
