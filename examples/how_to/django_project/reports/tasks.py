"""Tasks that django-crontask enqueues: python manage.py crontask, on several hosts"""

from crontask import cron, scheduler
from django.tasks import task

from shedlock_py.integrations.apscheduler import install

install(
    scheduler,
    lock_extractor=lambda job: f"crontask:{job.name}",
    default_lock_at_most_for="1m",
)


@cron("0 3 * * *")
@task
def clean_up() -> None:
    print("clean-up", flush=True)
