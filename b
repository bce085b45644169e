    A command may use any of the codes above itself; the messages of shedlock are on standard error and begin with shedlock:. 64 to 78 are those of sysexits.h, as flock(1) has them; 126, 127 and 130 are the shell's.
    A command that takes its time to end after SIGTERM may still run when the next one starts: --grace is longer than what is left of the lease. --grace 0s sends SIGKILL at once.
    A command that was never started has not: one that cannot be found or executed, or before which a signal came.
    A host whose clock is ahead by more than five minutes gets an error, exit code 69, and takes no period from the others.
    A provider of another package may have no such operation (forget_fire_time): exit code 78, and nothing is done.
    A run that fails has used up its period, as has one that was ended.
    A skip is silent and ends with 0, because it is no failure: cron sends no mail, Kubernetes counts the Job as done. -v prints who holds the lock; --skip-exit-code N ends with N.
    Absent where the store keeps none.
    All take part in the election of that name; the one that leads runs the command, the others stand by. shedlock leader NAME shows who leads, shedlock demote NAME lets another one lead, and elections of LeaderElector in your own programs are the same elections.
    At the end of its lease (1 % and 2 ms before it) the command is ended, so that it does not run beside its successor: SIGTERM, and after --grace SIGKILL.
    Both may be those of an application that uses asyncio (postgresql+asyncpg://…, sqlite+aiosqlite://…, mysql+asyncmy://…, or an async provider), so one variable serves the application and its operators.
    Ctrl-C ends it with 0. --allow-changes has no variable, on purpose.
    Each option has one, but for --version and, on purpose, release --force, --forget-fire-time, --yes and page --allow-changes.
    Everything behind -- is the command, options included, as it would stand without shedlock.
    Exit code 1: there was none to forget.
    If one of these checks failed, doctor tries no lock.
    Instructions are counted by Valgrind, and do not depend on what else the machine does.
    It needs /bin/sh; in an image without one, let shedlock be PID 1, with whose death the container ends.
    Measured from the start of the process to that of the command, with Python 3.11, SQLAlchemy 2.1, redis-py 8 and click 8.5.
    Needs the extra page besides cli. --host beyond this machine without a token is an error, exit code 78; a port that is taken, 69; a file that cannot be written, 74.
    No one is there to end the command while shedlock is stopped and the command is not, and after a pause of the host the command may do something before it is ended.
    No other command creates it.
    None is printed, with --debug neither.
    On a terminal that group is in the background until it first reads from the terminal or changes its settings; then it gets the terminal, as a job of a shell does.
    On every store, doctor tries a lock: whether the store replies, the schema (and whether its times depend on the time zone of a session), a second holder, extend, release, fencing tokens, the round trip; it compares the clocks, and names fire times in the future.
    One that comes before the command has started ends shedlock with 128 + its number, also while it waits for the lock.
    One that is empty counts as absent.
    One that lies in the future all the same, as a replica with a wrong clock could leave it before they did, keeps every run away until then. list, show and doctor name such locks:
    One that must not have it is started as shedlock run report --at-most 10m -- env -u SHEDLOCK_STORE ./report.
    One that replies with an error which does not pass, such as a missing table, ends shedlock lead with 69.
    One that switches something on or off takes true, yes, on, 1, t, y and false, no, off, 0, f, n.
    Only the command itself is waited for.
    Processor time is that of the whole process, the shortest of 15 runs, on a machine that was busy (a load of 8 on two processors).
    Schedulers start things at full minutes: those are then far from where periods begin, and hosts whose clocks differ by less than half a minute agree in which period they are.
    Stores refuse one that is more than five minutes ahead of their clock.
    The command finds in its environment SHEDLOCK_LOCK_NAME, the name of the election, and SHEDLOCK_TERM and SHEDLOCK_FENCING_TOKEN, the fencing token of this leadership; the last one may be replaced by a shedlock run inside, SHEDLOCK_TERM is not.
    The command is then ended when the lock was freed or taken over by force, or the store forgot it, which is noticed at the next extension; and when the store has not replied for a whole lease.
    The next run takes place whatever its fire time, so one that has run may run again.
    The period is that of the moment at which shedlock run starts, by this host's clock. --wait does not change it, and does not wait for a period that is used up.
    The version is that of the member that replied.
    What cannot be promised: a process that stands still does not know that its leadership has passed on.
    What is left of the command's process group when the command has ended gets SIGTERM, and SIGKILL after --grace, before another node leads.
    What it leaves behind in the background has no lock.
    What it shows, what it may change, and what keeps it safe: A page of all jobs.
    What must not be written by two checks the fencing token SHEDLOCK_TERM.
    What must not be written twice checks the fencing token.
    What stands on the command line counts more.
    What the store does not say, or not to this user, is no failure: the message begins with not known:.
    Where a URL names no driver, the command takes one that is installed: one for asyncio if there is no other.
    Where the leadership is taken away (demote, a take-over, a release by force, or a store that forgot it), the leader notices at its next renewal; the command gets SIGTERM, and SIGKILL after --grace, or at t + --renew-deadline if that is sooner.
    Who gives --lease-duration alone gets the rest in proportion: the deadline is two thirds of it, the retry period a fifth of the deadline, and the grace two fifths of the deadline.
    With --keep-alive the lease is extended, every third of it, for as long as the command runs, and --at-most is how long the lock stays held after this machine has died: long jobs.
    renew-deadline is at most 90 % of --lease-duration less 2 ms, so at least a tenth of the lease is between SIGKILL and the next command. --retry-period × 1.2 is less than --renew-deadline - --grace, so one failed renewal ends nothing.
    run and lead end with the exit code of the command, and with 128 + N if signal N has ended it, as shells have it: 143 after SIGTERM, 137 after SIGKILL.
    shedlock demote NAME takes the lease of an election away, and keeps the name free of leaders for --renew-deadline (10 s, the default of the electors): the demoted leader may trust its lease for so long.
/tmp/w43/base_docs_reference_command-line.md [as it must]
/tmp/w43/base_docs_reference_command-line.md [is no]
/tmp/w43/base_docs_reference_command-line.md [is no]
/tmp/w43/base_docs_reference_command-line.md [is no]
/tmp/w43/base_docs_reference_command-line.md [is no]
/tmp/w43/base_docs_reference_command-line.md [likewise]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [long]
/tmp/w43/base_docs_reference_command-line.md [no noun, is no]
/tmp/w43/base_docs_reference_command-line.md [no noun, likewise]
/tmp/w43/base_docs_reference_command-line.md [no noun, nor, inversion]
/tmp/w43/base_docs_reference_command-line.md [no noun, nor, inversion]
/tmp/w43/base_docs_reference_command-line.md [no noun, whose, in which, likewise]
/tmp/w43/base_docs_reference_command-line.md [no noun, whose, in which]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [no noun]
/tmp/w43/base_docs_reference_command-line.md [nor, inversion]
/tmp/w43/base_docs_reference_command-line.md [nor, inversion]
/tmp/w43/base_docs_reference_command-line.md [that of, whose, in which]
/tmp/w43/base_docs_reference_command-line.md [that of]
/tmp/w43/base_docs_reference_command-line.md [that of]
/tmp/w43/base_docs_reference_command-line.md [that of]
/tmp/w43/base_docs_reference_command-line.md [that of]
/tmp/w43/base_docs_reference_command-line.md [that of]
/tmp/w43/base_docs_reference_command-line.md [what-clause, is no]
/tmp/w43/base_docs_reference_command-line.md [what-clause, is no]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [what-clause]
/tmp/w43/base_docs_reference_command-line.md [whose, in which]
