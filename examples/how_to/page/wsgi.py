"""The page inside a Flask application, or any other WSGI application: gunicorn wsgi:application"""

import os

from a2wsgi import ASGIMiddleware
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from shedlock_py import configure
from shedlock_py.page import page_app

STORE = os.environ.get("SHEDLOCK_STORE", "sqlite:///app.db?history=50")
configure(STORE, create_schema=True)

app = Flask(__name__)
page = ASGIMiddleware(page_app(STORE, allow_changes=True, token=os.environ["SHEDLOCK_PAGE_TOKEN"]))
application = DispatcherMiddleware(app.wsgi_app, {"/locks": page})
