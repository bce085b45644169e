"""A backend that wraps Django's, as django-prometheus and others do. It makes its own password."""
