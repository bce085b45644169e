"""Shared by the stores in Amazon's services: clients over boto3 and aiobotocore, and the meaning of their errors.

The client for asyncio is in ``async_clients``, because its import takes a third of a second.
"""

from shedlock_py.providers.aws.aws_clients import AwsClient, AwsReply, AwsRequest, Sleep
from shedlock_py.providers.aws.errors import classify, code_of, hint, text_of
from shedlock_py.providers.aws.place import Place, split_url

__all__ = [
    "AwsClient",
    "AwsReply",
    "AwsRequest",
    "Place",
    "Sleep",
    "classify",
    "code_of",
    "hint",
    "split_url",
    "text_of",
]
