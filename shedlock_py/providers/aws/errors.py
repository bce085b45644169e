"""The meaning of botocore's errors, which both boto3 and aiobotocore raise."""

from __future__ import annotations

from botocore import exceptions
from botocore.parsers import ResponseParserError

from shedlock_py.providers.kit import ErrorReply, Failure

_THROTTLED = {
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
"""The service did nothing, to protect itself. An undo would be one more request."""
_CONFLICTS = {
    "ConditionalRequestConflict",  # S3: another write of the same object is in progress
    "OperationAborted",
    "ReplicatedWriteConflictException",  # DynamoDB: a strongly consistent global table
    "TransactionConflictException",  # DynamoDB: a transaction of another program has this item
}
_UNKNOWN_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "UnrecognizedClientException",
}
_CLOCK_IS_WRONG = {"RequestExpired", "RequestTimeTooSkewed"}
_BAD_SIGNATURE = {"InvalidSignatureException", "SignatureDoesNotMatch"}
_DENIED = {"AccessDenied", "AccessDeniedException", "AllAccessDisabled", "UnauthorizedOperation"}
_NO_CREDENTIALS_NOW = (
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    exceptions.TokenRetrievalError,
)
"""The source of the credentials did not reply."""


def code_of(error: Exception) -> str:
    """Return the code of an error reply, or an empty text for other errors."""
    if not isinstance(error, exceptions.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def are_credentials_unknown(error: Exception) -> bool:
    """Return whether other credentials would help: they are missing, unknown to the service, or expired."""
    is_without = isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError)
    return is_without or code_of(error) in _UNKNOWN_CREDENTIALS


def text_of(error: Exception) -> str:
    """Return the message of an error reply without botocore's additions, such as "reached max retries: 0"."""
    if not isinstance(error, exceptions.ClientError):
        return str(error)
    message = error.response.get("Error", {}).get("Message") or "no message"
    return f"{code_of(error)}: {message}"


def _status_of(error: exceptions.ClientError) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def classify(error: Exception) -> Failure:
    """Return the meaning of ``error`` for its command."""
    match error:
        case ErrorReply():
            return error.failure
        case exceptions.ClientError():
            return _classify_reply(error)
        case exceptions.ReadTimeoutError() | ResponseParserError():
            return Failure.UNREACHABLE
        case exceptions.ConnectTimeoutError() | exceptions.ProxyConnectionError():
            return Failure.NOT_DONE
        case exceptions.SSLError() | exceptions.InvalidProxiesConfigError():
            return Failure.REFUSED
        case exceptions.HTTPClientError() | exceptions.ConnectionError() | OSError():
            return Failure.CONNECTION_LOST
        case _ if isinstance(error, _NO_CREDENTIALS_NOW):
            return Failure.NOT_DONE
        case exceptions.BotoCoreError() | ValueError() | LookupError() | TypeError():
            return Failure.REFUSED  # a wrong setting, no credentials, or a record with odd values
    return Failure.NOT_A_STORE_ERROR


def _classify_reply(error: exceptions.ClientError) -> Failure:
    code, status = code_of(error), _status_of(error)
    if code in _THROTTLED or status == 429:
        return Failure.NOT_DONE
    if code in _CONFLICTS:
        return Failure.CONFLICT
    if status >= 500 or code in ("InternalServerError", "InternalError", "RequestTimeout", "ServiceUnavailable"):
        return Failure.UNREACHABLE
    return Failure.REFUSED


def hint(error: Exception) -> str | None:
    """Return how the user can fix ``error``, if it is not specific to one service."""
    code = code_of(error)
    match error:
        case exceptions.NoRegionError():
            return "add region=… to the store URL, or set AWS_REGION or AWS_DEFAULT_REGION"
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
            return "give boto3 credentials: a role, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        case exceptions.ProfileNotFound():
            return "name a profile of ~/.aws/config, or set AWS_CONFIG_FILE"
        case exceptions.EndpointConnectionError():
            return "is the region right, and does the network allow connections to the service?"
        case ErrorReply():
            return error.hint
    if code in _CLOCK_IS_WRONG or (code in _BAD_SIGNATURE and "expired" in str(error).lower()):
        return "correct the clock of this machine: requests are signed with its time, and valid for 5 to 15 minutes"
    if code in _BAD_SIGNATURE:
        return "check the secret access key, and the clock of this machine"
    if code in _UNKNOWN_CREDENTIALS:
        return "the credentials that boto3 found are invalid or expired"
    if code in _DENIED:
        return "allow this action in the IAM policy: see docs/providers/dynamodb.md or s3.md"
    if code in _THROTTLED:
        return "the service refuses requests beyond its limit: raise it, or bill on demand"
    return None
