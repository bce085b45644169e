"""One module for each kind of fault; each registers what it has with ``@scenario``."""
