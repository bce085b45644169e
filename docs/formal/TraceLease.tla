----------------------------- MODULE TraceLease -----------------------------
(* Is a recorded history a behaviour of Lease.tla in which all promises hold? tests/formal/traces.py writes the      *)
(* module Recorded: when each operation began, when and how it ended. When the store executed it, in between, was    *)
(* not observed: TLC tries when anything else happened, and the moments from which a lease would end just then.      *)
(* The history is accepted if TLC reaches its end, and refused if no choice leads there.                             *)
EXTENDS Lease, Sequences, Recorded
VARIABLES next,   \* the next event
          now,    \* microseconds since the first event
          live,   \* operations that the store may still execute
          done,   \* operations that it has executed or refused
          freed   \* when the lease last ended
traced == <<vars, next, now, live, done, freed>>

TraceClaims == 1..Len(Tokens)
TraceToken(c) == IF Tokens[c] > 0 THEN Tokens[c] ELSE Max(tokens[2], record.token) + 1  \* 0: nobody saw the grant
Event == Events[next]
Op(o) == Ops[o]
Message(o) == CHOOSE m \in sent : /\ m.kind = Op(o).kind /\ m.claim = Op(o).claim
                                  /\ m.kind = "extend" => m.number = Op(o).number
IsAcquire(o) == Op(o).kind = "acquire"
Unknown(o) == Op(o).outcome \in {"error", "cancelled", "none"}
Granting(o) == Op(o).outcome \in {"granted", "done"}
Freed == freed' = IF record.left > 0 /\ record'.left = 0 THEN now' ELSE freed

TraceInit == Init /\ next = 1 /\ now = 0 /\ live = {} /\ done = {} /\ freed = 0

(* What was observed.                                                                                                *)
Moment == Event.op = 0 /\ next' = next + 1 /\ UNCHANGED <<vars, now, live, done, freed>>  \* nothing: a time to try
Begin == LET o == Event.op c == Op(o).claim IN
    /\ o > 0 /\ Event.begins /\ next' = next + 1 /\ live' = IF Op(o).kind = "check" THEN live ELSE live \union {o}
    /\ CASE Op(o).kind = "acquire" -> Acquire(c)
         [] Op(o).kind = "extend" -> Extend(c, Op(o).for)
         [] Op(o).kind = "release" -> Release(c)
         [] Op(o).kind = "check" -> claim[c].trust > 0 /\ UNCHANGED vars    \* the holder found its lease trusted
         [] Op(o).kind = "force_release" -> UNCHANGED vars
    /\ UNCHANGED <<now, done, freed>>
Trusts(c, until) == \* the holder has read its clock after the operation began, and before it ended
    LET trust == Less(until, now) IN /\ trust + 1 >= claim[c].trust /\ trust <= TrustOf(Op(Event.op).for) + 1
                                     /\ Becomes(c, [claim[c] EXCEPT !.trust = trust])
Ended(o) == sent' = {m \in sent : ~(m.claim = Op(o).claim /\ m.kind = Op(o).kind)} \* its request will not come again
End == LET o == Event.op c == Op(o).claim IN
    /\ ~Event.begins /\ next' = next + 1 /\ live' = IF Unknown(o) THEN live ELSE live \ {o}
    /\ Unknown(o) \/ o \in done
    /\ CASE IsAcquire(o) /\ Unknown(o) -> GiveUp(c)
         [] Op(o).kind = "force_release" \/ (Unknown(o) /\ ~IsAcquire(o)) -> UNCHANGED vars
         [] OTHER -> /\ Ended(o) /\ UNCHANGED <<record, tokens, replies, owed, revoked>>
                     /\ CASE Op(o).outcome = "skipped" -> Becomes(c, Idle)
                          [] Op(o).outcome = "granted" -> claim[c].phase = "holds" /\ Trusts(c, Op(o).trusted)
                          [] Op(o).kind = "extend" /\ Granting(o) -> Trusts(c, Op(o).trusted)
                          [] Op(o).kind = "extend" -> Becomes(c, [claim[c] EXCEPT !.trust = 0])
                          [] Op(o).kind = "release" -> UNCHANGED claim
    /\ UNCHANGED <<now, done, freed>>

(* What was not.                                                                                                     *)
Store == \E o \in live \ done :
    /\ done' = done \union {o} /\ UNCHANGED <<next, now, live>>
    /\ \/ (Granting(o) \/ Unknown(o)) /\ Op(o).kind # "force_release" /\ Execute(Message(o))
       \/ (Granting(o) \/ Unknown(o)) /\ Op(o).kind = "force_release" /\ ForceRelease
       \/ /\ ~Granting(o) /\ ~Unknown(o) /\ UNCHANGED vars
          /\ CASE IsAcquire(o) -> ~IsFree(Message(o)) \/ now <= freed + Tolerance
               [] Op(o).kind = "force_release" -> record.left = 0
               [] OTHER -> record.left = 0 \/ ~IsOwn(Message(o))
    /\ Freed
Undo == \E m \in sent : m.kind = "undo" /\ Execute(m) /\ UNCHANGED <<next, now, live, done>> /\ Freed
Receive == \E o \in live \cap done : IsAcquire(o) /\ Granting(o) /\ Granted(Op(o).claim)
                                     /\ UNCHANGED <<next, now, live, done, freed>>
Early == /\ record.left > 0 /\ record.left <= Tolerance                    \* the store's clock is not the holder's
         /\ record' = [record EXCEPT !.left = 0] /\ owed' = [c \in Claims |-> Nothing]
         /\ UNCHANGED <<tokens, sent, replies, claim, revoked, next, now, live, done>> /\ Freed
Time == LET gap == Event.at - now ticks == IF record.left > 0 THEN Min(gap, record.left) ELSE gap IN
    gap > 0 /\ Pass(ticks, {}) /\ now' = now + ticks /\ Freed /\ UNCHANGED <<next, live, done>>

TraceNext == /\ next <= Len(Events)
             /\ Time \/ Store \/ Undo \/ Receive \/ Early \/ (Event.at = now /\ (Moment \/ Begin \/ End))
TraceSpec == TraceInit /\ [][TraceNext]_traced
Promises == /\ I1_MutualExclusion /\ I2_OwnWritesOnly /\ I4_MinimumHold /\ I3_FreedStaysFree
            /\ I6_TheHolderKnowsFirst /\ I7_TokensGrow
            /\ (next > TLCGet(1) => TLCSet(1, next) /\ PrintT(<<"reached", next>>))
ASSUME TLCSet(1, 0)
Unfinished == next <= Len(Events)   \* TLC must find a behaviour that breaks this: the history is one
=============================================================================
