---------------------------- MODULE LeaseMutants ----------------------------
(* Lease.tla with one rule broken at a time: TLC replaces a rule of Lease by one of these, and must find the named   *)
(* promise broken. So a specification that promises nothing cannot pass. tests/formal reads the table in the names.  *)
EXTENDS Lease

I1_IsFree_grants_a_held_lock(m) == TRUE
I2_IsOwn_releases_by_name(m) == TRUE
I2_IsUndone_undoes_by_name(m) == TRUE
I3_TokenOnceFree_is_the_same == record.token
I4_Unused_frees_at_once(k) == 0
I4_Lasting_cuts_the_minimum(k, length) == length
I6_TrustOf_has_no_margin(length) == length
I6_TrustOnReply_counts_from_the_reply(k, length) == TrustOf(length)
I6_Narrowed_trusts_the_longer_one(k, length) == k.trust
I6_IsOwn_compares_the_claim_only(m) == record.holder = m.claim
I7_NewToken_counts_in_the_record(c) == record.token + 1
=============================================================================
