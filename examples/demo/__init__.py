"""The main job, to watch: three replicas, two cron jobs, one SIGKILL. Run it with ``python -m examples.demo``.

Read ``replica.py`` first: this is the app. Other modules start three replicas, kill one, and check the promises:
``plan.py`` (the jobs' numbers), ``observation.py`` (the replicas' messages), ``fleet.py`` (the processes), ``show.py``
(the order of events), ``view.py`` (plain lines) and ``table.py``, ``report.py`` (the kept promises; pure), and
``servers.py`` (for stores that need a server).
"""
