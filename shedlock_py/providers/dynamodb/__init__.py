"""Locks in a table of Amazon DynamoDB."""

from shedlock_py.providers.dynamodb.dynamodb_provider import AsyncDynamoDBLockProvider, DynamoDBLockProvider

__all__ = ["AsyncDynamoDBLockProvider", "DynamoDBLockProvider"]
