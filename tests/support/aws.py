"""What boto3 needs to know in all processes of the tests, and nothing of what the machine's user has configured."""

import os

ACCESS_KEY, SECRET_KEY = "test", "s3cret-key"
REGION = "eu-west-1"

os.environ.update(
    AWS_ACCESS_KEY_ID=ACCESS_KEY,
    AWS_SECRET_ACCESS_KEY=SECRET_KEY,
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    AWS_EC2_METADATA_DISABLED="true",
)
for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
    os.environ.pop(name, None)
