"""The main job, to watch: three replicas, two cron jobs, one SIGKILL. Run it with ``python -m examples.demo``.

Read ``replica.py`` first: that is the app. The rest starts three of it, kills one, and judges what was seen:
``plan.py`` (the jobs' numbers), ``observation.py`` (what replicas tell), ``fleet.py`` (the processes), ``show.py``
(what happens when), ``view.py`` (plain lines) and ``table.py``, ``report.py`` (which promises were kept; pure), and
``servers.py`` (for stores that need one).
"""
