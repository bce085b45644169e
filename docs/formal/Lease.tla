------------------------------- MODULE Lease -------------------------------
(* One lock of shedlock_py: a store, holders that claim the lock, and a network that loses, repeats and delays       *)
(* messages. TLC tries every order of steps and checks the promises I1, I2, I3, I4, I6 and I7 in each state.         *)
(* Time is counted in ticks, and every time is "ticks from now", so that there are few states. A crash needs no      *)
(* step: a holder may stop anywhere. How to read TLA+, for those who know Python:                                    *)
(*   A == B          defines A, like a function without a body; a definition may take arguments                      *)
(*   /\  \/  =>  #    and, or, implies, is not equal. A list of lines that begin with /\ means: all of them            *)
(*   \E x \in S : P  any(P for x in S); it also stands for "pick such an x". \A is all(...). A \ B is set difference  *)
(*   [f |-> v]       a record, like a dataclass. [c \in S |-> v] is {c: v for c in S}, and claim[c] looks it up       *)
(*   [r EXCEPT !.f = v]   dataclasses.replace(r, f=v); @ in v is the old value; !.f is r.f and ![c].f is r[c].f       *)
(*   x'              the value of x after a step. UNCHANGED x: the step leaves x alone. <<a, b>> is a tuple            *)
(* A step, such as Acquire(c), is possible when all its conditions without a ' hold. Next lists all steps.           *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Claims,      \* acquisitions, each with a claim id of its own; a holder that tries again is another claim
          None,        \* no claim
          AtMost,      \* lock_at_most_for
          AtLeast,     \* lock_at_least_for
          Lengths,     \* what a lease may be extended by
          Extensions,  \* how often each lease may be extended
          Slack,       \* a holder trusts its lease this much shorter
          Drift,       \* so many ticks a holder's clock may miss
          Operations   \* so often an operator may force a release, or delete the record by hand
VARIABLES record,      \* in the store: holder, token, and left: how long it is still held
          tokens,      \* the last two fencing tokens that the store has granted
          sent,        \* requests. None is ever removed: the store may execute each late, twice, or never
          replies,     \* of the store: a reply may arrive late, or never
          claim,       \* what each holder knows; its times count down on its own clock
          owed,        \* what the store has promised to each claim (the lease, the minimum hold), and whether it was freed
          revoked      \* claims whose lease an operator has ended: they learn it from the next reply
vars == <<record, tokens, sent, replies, claim, owed, revoked>>

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a < b THEN b ELSE a
Less(time, ticks) == IF time < ticks THEN 0 ELSE time - ticks
NoRecord == [holder |-> None, token |-> 0, left |-> 0]
Nothing == [lease |-> 0, least |-> 0, freed |-> FALSE]
Idle == [phase |-> "new", token |-> 0, trust |-> 0, worth |-> 0, least |-> 0, sends |-> 0, missed |-> 0,
         shortest |-> AtMost]
Over == [Idle EXCEPT !.phase = "over"]
Request(kind, c, for) == [kind |-> kind, claim |-> c, token |-> claim[c].token, for |-> for, number |-> claim[c].sends]

(* The rules. tests/formal breaks them one by one, and TLC must find out.                                            *)
TrustOf(length) == Less(length, Slack + length \div 100)                   \* at_most - 1 % - 2 ms
IsFree(m) == record.left = 0                                               \* may the store grant the lock to m.claim?
IsOwn(m) == record.holder = m.claim /\ record.token = m.token              \* is this still the acquisition of m?
IsUndone(m) == record.holder = m.claim
TokenOnceFree == record.token + 1                         \* freeing changes it, so no late extension is its own
NewToken(c) == Max(tokens[2], record.token) + 1          \* the store's clock in µs: above each token granted before
TrustOnReply(k, length) == k.worth                                         \* counted from the moment of sending
Unused(k) == k.least                                                       \* release keeps the rest of the minimum
Lasting(k, length) == Max(length, k.least)                                 \* an extension does not cut it either
Narrowed(k, length) == Min(k.trust, TrustOf(length))                       \* an extension in doubt may be a shorter one

Init == /\ record = NoRecord /\ tokens = <<0, 0>> /\ sent = {} /\ replies = {} /\ revoked = {}
        /\ claim = [c \in Claims |-> Idle] /\ owed = [c \in Claims |-> Nothing]

(* The holder. It reads its clock before it sends: worth is the trust that a reply to the newest request gives.      *)
Becomes(c, k) == claim' = [claim EXCEPT ![c] = k]
Forget(c) == replies' = {r \in replies : r.claim # c}
Send(m) == sent' = sent \union {m}
Acquire(c) == /\ claim[c].phase = "new" /\ Send(Request("acquire", c, AtMost))
              /\ Becomes(c, [Idle EXCEPT !.phase = "acquires", !.worth = TrustOf(AtMost)])
              /\ UNCHANGED <<record, tokens, replies, owed, revoked>>
Granted(c) == \E r \in replies : /\ r.claim = c /\ claim[c].phase = "acquires"
                 /\ Becomes(c, [claim[c] EXCEPT !.phase = "holds", !.token = r.token, !.least = AtLeast,
                                                !.trust = TrustOnReply(claim[c], AtMost)])
                 /\ UNCHANGED <<record, tokens, sent, replies, owed, revoked>>
GiveUp(c) == /\ claim[c].phase = "acquires" /\ Becomes(c, Over) /\ Send(Request("undo", c, 0)) \* the outcome is unknown
             /\ Forget(c) /\ UNCHANGED <<record, tokens, owed, revoked>>
Extend(c, length) == LET k == claim[c] for == Lasting(k, length) shortest == Min(k.shortest, for)
    IN /\ k.phase = "holds" /\ k.sends < Extensions
       /\ Becomes(c, [k EXCEPT !.sends = @ + 1, !.shortest = shortest, !.worth = TrustOf(shortest),
                               !.trust = Narrowed(k, for)])
       /\ Send([Request("extend", c, for) EXCEPT !.number = k.sends + 1])
       /\ UNCHANGED <<record, tokens, replies, owed, revoked>>
Extended(c) == \E r \in replies : /\ r.claim = c /\ claim[c].phase = "holds" /\ claim[c].sends > 0
                  /\ r.number = claim[c].sends
                  /\ Becomes(c, [claim[c] EXCEPT !.trust = TrustOnReply(claim[c], claim[c].shortest)])
                  /\ UNCHANGED <<record, tokens, sent, replies, owed, revoked>>
Release(c) == /\ claim[c].phase = "holds" /\ Becomes(c, Over) /\ Forget(c)
              /\ Send(Request("release", c, Unused(claim[c]))) /\ UNCHANGED <<record, tokens, owed, revoked>>

(* The store executes one request, in one step.                                                                      *)
Reply(m, token) == replies' = IF claim[m.claim].phase = "over" THEN replies
                              ELSE replies \union {[claim |-> m.claim, number |-> m.number, token |-> token]}
Grant(m) == LET token == NewToken(m.claim)
    IN /\ record' = [holder |-> m.claim, token |-> token, left |-> m.for] /\ tokens' = <<tokens[2], token>>
       /\ owed' = [owed EXCEPT ![m.claim] = [lease |-> m.for, least |-> AtLeast, freed |-> FALSE]] /\ Reply(m, token)
IsFreed(c) == record.holder = c /\ owed[c].freed
SetEnd(m, left) == /\ record' = [record EXCEPT !.left = left] /\ UNCHANGED tokens
                   /\ owed' = [owed EXCEPT ![m.claim].lease = IF IsFreed(m.claim) THEN @ ELSE left]
Free(m, left) == /\ record' = [record EXCEPT !.left = left, !.token = TokenOnceFree] /\ UNCHANGED <<tokens, replies>>
                 /\ owed' = [owed EXCEPT ![m.claim] = [lease |-> left, freed |-> TRUE,
                                                      least |-> IF m.kind = "undo" THEN 0 ELSE @.least]]
Execute(m) == /\ \/ m.kind = "acquire" /\ record.holder = m.claim  \* sent twice: the same lease
                    /\ Reply(m, record.token) /\ UNCHANGED <<record, tokens, owed>>
                 \/ m.kind = "acquire" /\ record.holder # m.claim /\ IsFree(m) /\ Grant(m)
                 \/ m.kind = "extend" /\ record.left > 0 /\ IsOwn(m) /\ SetEnd(m, m.for) /\ Reply(m, m.token)
                 \/ m.kind = "release" /\ record.left > 0 /\ IsOwn(m) /\ Free(m, m.for)
                 \/ m.kind = "undo" /\ record.left > 0 /\ IsUndone(m) /\ Free(m, 0)
              /\ UNCHANGED <<sent, claim, revoked>>
Operator(after) == /\ record.left > 0 /\ Cardinality(revoked) < Operations /\ revoked' = revoked \union {record.holder}
                   /\ record' = after /\ owed' = [c \in Claims |-> [Nothing EXCEPT !.freed = TRUE]]
                   /\ UNCHANGED <<tokens, sent, replies, claim>>
ForceRelease == Operator([record EXCEPT !.left = 0, !.token = TokenOnceFree])
Pass(ticks, slow) == \* time goes by; the clocks of the claims in slow miss it
    /\ \A c \in slow : claim[c].phase \in {"acquires", "holds"} /\ claim[c].missed + ticks <= Drift
    /\ record' = [record EXCEPT !.left = Less(@, ticks)]
    /\ owed' = [c \in Claims |-> [owed[c] EXCEPT !.lease = Less(@, ticks), !.least = Less(@, ticks)]]
    /\ claim' = [c \in Claims |-> LET k == claim[c] IN
          IF c \in slow THEN [k EXCEPT !.missed = @ + ticks]
          ELSE [k EXCEPT !.trust = Less(@, ticks), !.worth = Less(@, ticks), !.least = Less(@, ticks)]]
    /\ UNCHANGED <<tokens, sent, replies, revoked>>
Next == \/ \E c \in Claims : Acquire(c) \/ Granted(c) \/ GiveUp(c) \/ Extended(c) \/ Release(c)
        \/ \E c \in Claims, length \in Lengths : Extend(c, length)
        \/ \E m \in sent : Execute(m)
        \/ ForceRelease \/ Operator(NoRecord)
        \/ \E slow \in SUBSET Claims : Pass(1, slow)
Spec == Init /\ [][Next]_vars

(* The promises.                                                                                                     *)
I1_MutualExclusion == Cardinality({c \in Claims : owed[c].lease > 0}) <= 1
I2_OwnWritesOnly == \A c \in Claims : owed[c].lease > 0 => record.holder = c /\ record.left >= owed[c].lease
I3_FreedStaysFree == \A c \in Claims : IsFreed(c) => record.left <= owed[c].lease
I4_MinimumHold == \A c \in Claims : owed[c].least > 0 => record.holder = c /\ record.left > 0
I6_TheHolderKnowsFirst == \A c \in Claims \ revoked : claim[c].trust > 0 =>
    record.holder = c /\ record.token = claim[c].token /\ record.left > 0
I7_TokensGrow == tokens = <<0, 0>> \/ tokens[1] < tokens[2]
Bounded == tokens[2] <= 2 * Cardinality(Claims)  \* late copies of requests may be granted without end: look at so many
Symmetry == Permutations(Claims)  \* claims are alike: states that differ by their names only are one
=============================================================================
