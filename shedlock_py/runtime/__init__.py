"""How programs and callbacks are carried out: processes, threads and event loops."""
