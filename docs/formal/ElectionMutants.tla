--------------------------- MODULE ElectionMutants ---------------------------
(* Election.tla with one rule broken at a time. The name says in which mode TLC must find AtMostOneLeader or I7      *)
(* broken, and which rule of Election is replaced; see LeaseMutants.tla.                                             *)
EXTENDS Election

expired_IsFree_grants_a_held_lease(m) == TRUE
expired_NewToken_counts_in_the_record == 1
expired_TrustOnReply_counts_from_the_reply(n) == Deadline
expired_WaitAfterForce_leads_at_once == 0
expired_MayRelease_frees_while_it_waits(n) == TRUE
observed_WaitAfterAcquire_leads_at_once == 0
observed_FollowsDirectly_without_the_clocks(n, gap) == seen[n].any
observed_FollowsDirectly_by_its_own_clock_only(n, gap) == seen[n].any /\ seen[n].ago <= Retry
==============================================================================
