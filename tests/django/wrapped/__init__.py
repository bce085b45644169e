"""A database backend that wraps Django's, as django-prometheus and others do; this one makes its own password."""
