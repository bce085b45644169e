"""The models for permissions, without tables. ``apps.py`` makes the tables of the locks after each "migrate"."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Lock",
            fields=[("name", models.CharField(max_length=64, primary_key=True, serialize=False))],
            options={
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "permissions": (
                    ("pause_lock", "Can pause and resume locks"),
                    ("force_release_lock", "Can free locks by force"),
                ),
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[("name", models.CharField(max_length=64, primary_key=True, serialize=False))],
            options={"managed": False, "base_manager_name": "objects", "default_permissions": ("view",)},
        ),
    )
