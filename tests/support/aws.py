"""Settings of boto3 for all test processes, independent of the user's own configuration."""

import os
from functools import cache

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


@cache
def parse_models_once() -> None:
    """Let all clients of this process share the data that botocore reads from JSON files: this halves the time per
    client.

    An application has one client; the tests have hundreds.
    """
    from botocore.loaders import JSONFileLoader  # import late: processes without these stores do not need it

    load, models = JSONFileLoader.load_file, dict[str, object]()

    def load_once(self: JSONFileLoader, file_path: str) -> object:
        if file_path not in models:
            models[file_path] = load(self, file_path)
        return models[file_path]

    JSONFileLoader.load_file = load_once
