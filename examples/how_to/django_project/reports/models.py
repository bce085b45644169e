"""Your models. Django sends post_migrate only for applications that have this file."""
