    A callback of the former one may still be running when this node leads again; let it remember its term.
    A child may call start() and then is a candidate itself; its provider must be one that survives a fork, such as one from a URL.
    A follower that has seen it for less waits for the rest of the renew_deadline: a node that gave its lease back so soon may never have led, and the leader before it may still trust its own lease.
    A job store that cannot be started is tried twice more: when several nodes make its table at the same moment, all but one may fail.
    A job store that fails when the leader updates a job is logged at ERROR, and the next pass comes at the next renewal or after APScheduler's jobstore_retry_interval, whichever is first.
    A job whose submission meets the end of the leadership stays in the store as it is, with its run time, and the next leader runs it.
    A leader whose scheduler has ended (its thread has died, it was shut down) leaves the election with an ERROR; start the process anew.
    A node that cannot reach the store in that time learns nothing of the cooldown, nor does one whose record another node takes over meanwhile.
    A node that resigns rests for two retry periods, so that another can lead.
    A node whose lease_duration is shorter than another's renew_deadline does not overlap by itself, but take_over and demote wait for the renew_deadline of the node that they are called on, and "observed" for its own lease_duration.
    A scheduler that works on the leader only, of which several share one job store:
    False: not within the timeout, another node took over from this one, its lease ended before it led, or this elector was not started or has stopped.
    For def and async def; the types of a call are those of the function, or None.
    In a forked child the elector does not lead: is_leader() is False, term is None, stop() does nothing.
    It costs time: a follower that has just started waits a whole lease_duration before it can lead, even if no node does; a renew_deadline if there is no record of that name.
    It is no term (run.is_demotion).
    It may stand still between is_leader() and what it does next.
    Measured, from the signal until another node says is_leader(), with five processes, each in 20 elections at once (lease 3 s, deadline 2 s, retry period 0.5 s):
    Not for process pools, which cannot use it.
    One leader and four followers: 130 to 150 operations a minute, of which 30 write.
    One of N nodes leads: it consumes the feed, runs the scheduler, does what must be done in one place.
    One that raises is logged and changes nothing, whatever it raises; only on asyncio sys.exit() ends the program, as it does in any task.
    One that was handed to the executor before runs, even if it had to wait for a free worker: the store does not have that run any more.
    One whose scheduler does not react for two leases, because its event loop is blocked, resigns.
    Pass elector.term along with what it writes, and let the resource refuse a smaller one than it has seen, as examples/07_fenced_write.py does.
    Reasons: "resigned"; "revoked": taken over, demoted, freed by force, or forgotten by the store; "unreachable": the store did not confirm a renewal in time, or something failed in the elector itself: an ERROR says what, and it takes no part any more.
    So the new leader leads only when the former one cannot trust its lease any more: after renew_deadline and 1 %, if a node led, or if with takeover="observed" this node has not watched for long enough to know; at once, if no node did.
    The cooldown reaches the demoted node through the record, whose holder is demoted 10000ms node-1 meanwhile.
    The demoted node learns this when its next renewal or release is refused, and is no candidate until the cooldown is over.
    The others follow, and one of them leads when the leader is gone.
    They have no arguments (on_new_leader: the leader's holder).
    What was submitted meanwhile is not submitted again by this leader; the next one, if leadership changes before the store is back, does.
    Where the machine can start no thread for a callback (a container's limit on processes), that is logged and tried again at the next renewal; until then the callback counts as running. start() raises a RuntimeError then, and can be called again.
    With release_on_sigterm() under asyncio.run(), SIGTERM cancels all tasks at once, also those of callbacks.
    With takeover="observed" a follower leads only if it has seen the same record, unchanged, for a whole lease_duration of its own clock, so no jump of the store's clock makes two leaders (two jumps in opposite directions within a retry_period can).
    demote(cooldown) may be called on any node, also one that was never started.
    lost after a take-over, a demotion, or a time without the store, as soon as the former leader has read that another node has the lease, or that it has ended;
    misfire_grace_time=None, or longer than a fail-over: APScheduler's default is one second, and it drops what came due while no node led.
    on_renewed is not called again while its former call runs. stop(), wait_until_leader() and take_over() do not wait where the elector waits for the caller: in a callback of a leader that resigns, and in a listener.
    renew_deadline longer than lease_duration × 90 % − 2 ms: a leader could still trust its lease when another is elected;
    replace_existing=True at each start computes the job's next run time anew, as it always does in APScheduler: what was due at that moment is forgotten.
    stop() waits for callbacks without limit. stop("20s") returns False if they are not done by then; the node keeps the lease until they are, or until its process ends. with elector: stops it at the end, also after Ctrl-C, and after SIGTERM with release_on_sigterm(); otherwise SIGTERM ends a leader as SIGKILL does.
    take_over() takes the lease at once: the store refuses the former leader from then on, and so do resources that check the term once the new leader has written.
/tmp/w43/base_docs_leader-election.md [is no]
/tmp/w43/base_docs_leader-election.md [is no]
/tmp/w43/base_docs_leader-election.md [is no]
/tmp/w43/base_docs_leader-election.md [is no]
/tmp/w43/base_docs_leader-election.md [likewise]
/tmp/w43/base_docs_leader-election.md [likewise]
/tmp/w43/base_docs_leader-election.md [likewise]
/tmp/w43/base_docs_leader-election.md [likewise]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [long]
/tmp/w43/base_docs_leader-election.md [no noun, as it must]
/tmp/w43/base_docs_leader-election.md [no noun, likewise]
/tmp/w43/base_docs_leader-election.md [no noun, that of]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [no noun]
/tmp/w43/base_docs_leader-election.md [nor, inversion]
/tmp/w43/base_docs_leader-election.md [that of]
/tmp/w43/base_docs_leader-election.md [what-clause, no noun]
/tmp/w43/base_docs_leader-election.md [what-clause]
/tmp/w43/base_docs_leader-election.md [what-clause]
/tmp/w43/base_docs_leader-election.md [what-clause]
/tmp/w43/base_docs_leader-election.md [whose, in which, as it must]
/tmp/w43/base_docs_leader-election.md [whose, in which, nor, inversion]
/tmp/w43/base_docs_leader-election.md [whose, in which]
/tmp/w43/base_docs_leader-election.md [whose, in which]
/tmp/w43/base_docs_leader-election.md [whose, in which]
/tmp/w43/base_docs_leader-election.md [whose, in which]
/tmp/w43/base_docs_leader-election.md [whose, in which]
/tmp/w43/base_docs_leader-election.md [whose, in which]
