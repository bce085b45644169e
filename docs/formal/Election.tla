------------------------------ MODULE Election ------------------------------
(* Leader election of shedlock_py: nodes that read, acquire, renew, take over and release one lock record. Requests  *)
(* are lost, repeated and late, nodes crash at any moment, and the store's clock may jump. Lease.tla says how to     *)
(* read this. A request that a node gave up is not undone here: the lease that it may yet get is left to expire.     *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Nodes, None,
          LeaseTime,  \* lease_duration: so long the store keeps the lease
          Deadline,   \* renew_deadline: so long a leader trusts it, from when it sent the last confirmed request
          Retry,      \* retry_period: so old may a read be that shows that nobody led in between
          Mode,       \* takeover: "expired" or "observed"
          Drift,      \* so many ticks a node's clock may miss; nodes wait longer by as much
          Jump, Jumps, \* by how much, and how often, the store's clock may jump, forwards or back
          Sends, Requests, Terms \* bounds: requests of each node, of all nodes, and leases that are granted
VARIABLES record,     \* in the store: holder, token, left (until the lease ends; 0 or less: it is free), released
          tokens,     \* the last two fencing tokens that the store has granted
          sent,       \* requests. None is ever removed: the store may execute each late, twice, or never
          replies,    \* a reply may arrive late, or never
          node,       \* what each node knows; trust, worth and wait count down on its own clock
          seen,       \* the last read of each node: for how long the record is unchanged, how long ago it was read by
                      \* the node's clock (ago) and by the store's (gap); same: nobody has written since
          jumps       \* how often the store's clock has jumped
vars == <<record, tokens, sent, replies, node, seen, jumps>>

Less(time, ticks) == IF time < ticks THEN 0 ELSE time - ticks
Least(a, b) == IF a < b THEN a ELSE b
Most(a, b) == IF a < b THEN b ELSE a
Follower == [phase |-> "follows", token |-> 0, trust |-> 0, worth |-> 0, wait |-> 0, sends |-> 0, missed |-> 0]
Unread == [any |-> FALSE, held |-> TRUE, unchanged |-> 0, same |-> FALSE, ago |-> 0, gap |-> 0]

(* The rules. tests/formal breaks them one by one, and TLC must find out.                                            *)
IsFree(m) == record.left <= 0
IsOwn(m) == record.holder = m.node /\ record.token = m.token /\ record.left > 0
IsRead(m) == record.token = m.token                                        \* a take-over replaces what was read
NewToken == tokens[2] + 1
TrustOnReply(n) == node[n].worth                                           \* counted from the moment of sending
MayAcquire(n) == Mode = "expired" \/ (~seen[n].held /\ seen[n].unchanged > LeaseTime)
MayTakeOver(n) == Mode = "expired" \/ (seen[n].held /\ seen[n].unchanged > LeaseTime)  \* a user; a clock set back
WaitAfterAcquire == IF Mode = "expired" THEN 0 ELSE Deadline + Drift       \* another node led just before, perhaps
WaitAfterForce == Deadline + Drift                                         \* the former leader stops by then
MayRelease(n) == node[n].wait = 0        \* while it waits, the former leader may still trust: the lease is left to expire
FollowsDirectly(n, gap) == seen[n].any /\ seen[n].ago <= Retry /\ gap < Deadline /\ -gap < Deadline
Leads(n) == node[n].phase = "term" /\ node[n].trust > 0 /\ node[n].wait = 0

Init == /\ record = [holder |-> None, token |-> 0, left |-> 0, released |-> FALSE] /\ tokens = <<0, 0>>
        /\ sent = {} /\ replies = {} /\ jumps = 0
        /\ node = [n \in Nodes |-> Follower] /\ seen = [n \in Nodes |-> Unread]

(* A node.                                                                                                           *)
Forget(n) == replies' = {r \in replies : r.node # n}
SendRequest(n, kind, token, phase) == \* the node reads its clock, and sends
    /\ node[n].sends < Sends /\ Forget(n)
    /\ node' = [node EXCEPT ![n].phase = phase, ![n].sends = @ + 1, ![n].worth = Deadline]
    /\ sent' = sent \union {[kind |-> kind, node |-> n, token |-> token, number |-> node[n].sends + 1]}
    /\ UNCHANGED <<record, tokens, seen, jumps>>
Read(n) == /\ node[n].phase = "follows" /\ node[n].sends < Sends
           /\ Mode = "observed"   \* with "expired" a read decides nothing, so it is left out
           /\ seen' = [seen EXCEPT ![n] = [any |-> record.holder # None, held |-> record.left > 0, same |-> TRUE,
                  ago |-> 0, gap |-> 0, unchanged |-> IF record.released \/ record.holder = None THEN LeaseTime + 1
                                                      ELSE IF seen[n].same THEN seen[n].unchanged ELSE 0]]
           /\ UNCHANGED <<record, tokens, sent, replies, node, jumps>>
Acquire(n) == node[n].phase = "follows" /\ MayAcquire(n) /\ SendRequest(n, "acquire", 0, "acquires")
TakeOver(n) == node[n].phase = "follows" /\ MayTakeOver(n) /\ SendRequest(n, "take", record.token, "takes")
Renew(n) == node[n].phase = "term" /\ node[n].trust > 0 /\ SendRequest(n, "renew", node[n].token, "term")
Confirmed(n) == \E r \in replies : /\ r.node = n
    /\ node' = [node EXCEPT ![n].phase = "term", ![n].token = r.token, ![n].trust = TrustOnReply(n), ![n].worth = 0,
                            ![n].wait = CASE @ > 0 \/ node[n].phase = "term" -> @
                                          [] node[n].phase = "takes" -> WaitAfterForce
                                          [] FollowsDirectly(n, r.gap) -> 0
                                          [] OTHER -> WaitAfterAcquire]
    /\ Forget(n) /\ UNCHANGED <<record, tokens, sent, seen, jumps>>
Stop(n, requests) == /\ node' = [node EXCEPT ![n] = [Follower EXCEPT !.sends = node[n].sends]]
                     /\ Forget(n) /\ sent' = sent \union requests /\ UNCHANGED <<record, tokens, seen, jumps>>
GiveUp(n) == node[n].phase # "follows" /\ node[n].trust = 0 /\ Stop(n, {})
Resign(n) == /\ node[n].phase = "term" /\ MayRelease(n)
             /\ Stop(n, {[kind |-> "release", node |-> n, token |-> node[n].token, number |-> 0]})

(* The store executes one request, in one step. A node that has read the record finds it changed.                      *)
Write(holder, token, left, released) ==
    /\ record' = [holder |-> holder, token |-> token, left |-> left, released |-> released]
    /\ seen' = [n \in Nodes |-> [seen[n] EXCEPT !.same = FALSE]]
Reply(m, token) == replies' = IF node[m.node].worth = 0 \/ node[m.node].sends # m.number THEN replies \* not awaited
    ELSE replies \union {[node |-> m.node, token |-> token, gap |-> seen[m.node].gap]}
Grant(m) == /\ Write(m.node, NewToken, LeaseTime, FALSE) /\ tokens' = <<tokens[2], NewToken>> /\ Reply(m, NewToken)
Execute(m) == /\ \/ m.kind = "acquire" /\ IsFree(m) /\ Grant(m)
                 \/ m.kind = "take" /\ IsRead(m) /\ Grant(m)
                 \/ m.kind = "renew" /\ IsOwn(m) /\ Write(m.node, record.token, LeaseTime, FALSE)
                    /\ Reply(m, m.token) /\ UNCHANGED tokens
                 \/ m.kind = "release" /\ IsOwn(m) /\ Write(m.node, record.token, 0, TRUE) /\ UNCHANGED <<tokens, replies>>
              /\ UNCHANGED <<sent, node, jumps>>

(* Time goes by, by ticks on the store's clock; the clocks of the nodes in slow miss one.                            *)
Later(ticks) == /\ record' = [record EXCEPT !.left = Most(@ - ticks, -Jump)]
                /\ UNCHANGED <<tokens, sent, replies>>
Age(s, own, ticks) == LET ago == Least(s.ago + own, Retry + 1) IN
    IF Mode = "expired" THEN s ELSE \* only the others need it
    [s EXCEPT !.unchanged = Least(@ + own, LeaseTime + 1), !.ago = ago, !.gap = IF ago > Retry THEN 0 ELSE @ + ticks]
Pass(slow) == /\ Later(1) /\ UNCHANGED jumps /\ \A n \in slow : node[n].trust > 0 /\ node[n].missed < Drift
              /\ node' = [n \in Nodes |-> LET k == node[n] IN IF n \in slow THEN [k EXCEPT !.missed = @ + 1] ELSE
                     [k EXCEPT !.trust = Less(@, 1), !.worth = Less(@, 1), !.wait = Less(@, 1)]]
              /\ seen' = [n \in Nodes |-> Age(seen[n], IF n \in slow THEN 0 ELSE 1, 1)]
JumpBy(ticks) == /\ jumps < Jumps /\ jumps' = jumps + 1 /\ Later(ticks) /\ UNCHANGED node
                 /\ seen' = [n \in Nodes |-> Age(seen[n], 0, ticks)]
Next == \/ \E n \in Nodes : Read(n) \/ Acquire(n) \/ TakeOver(n) \/ Renew(n) \/ Confirmed(n) \/ GiveUp(n) \/ Resign(n)
        \/ \E m \in sent : Execute(m)
        \/ \E slow \in SUBSET Nodes : Pass(slow)
        \/ JumpBy(Jump) \/ JumpBy(-Jump)
Spec == Init /\ [][Next]_vars

(* The promises.                                                                                                     *)
AtMostOneLeader == Cardinality({n \in Nodes : Leads(n)}) <= 1
I7_TermsGrow == tokens = <<0, 0>> \/ tokens[1] < tokens[2]
Bounded == tokens[2] <= Terms /\ Cardinality(sent) <= Requests
Symmetry == Permutations(Nodes)  \* nodes are alike: states that differ by their names only are one
=============================================================================
