"""The page inside a Flask application, or any other of WSGI: gunicorn wsgi:application"""

import os

from a2wsgi import ASGIMiddleware
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from shedlock_py import provider_from_url
from shedlock_py.page import page_app

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "sqlite:///app.db?history=50"))
provider.create_schema()

app = Flask(__name__)
page = ASGIMiddleware(page_app(provider, allow_changes=True, token=os.environ["SHEDLOCK_PAGE_TOKEN"]))
application = DispatcherMiddleware(app.wsgi_app, {"/locks": page})
