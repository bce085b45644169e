"""The command line ``shedlock``. Needs the extra ``cli``."""
