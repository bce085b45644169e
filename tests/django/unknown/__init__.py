"""A Django backend for another database that speaks PostgreSQL's protocol."""
