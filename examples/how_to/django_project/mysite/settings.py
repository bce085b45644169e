"""Only the settings that this project needs."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")

INSTALLED_APPS = ["shedlock_py.integrations.django", "reports"]
INSTALLED_APPS += ["django_apscheduler"]

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True

CRONTASK = {"LOCK_REFRESH_INTERVAL": 3600}
