"""A module for each kind of fault, which registers its scenarios with ``@scenario``."""
