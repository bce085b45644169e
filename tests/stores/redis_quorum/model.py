"""A small model of the quorum's algorithm: all states that three servers and a few claims can reach.

Every message arrives at any time, in any order, or never; a take-over's messages arrive any number of times. Votes
expire at any time, clocks differ, and one server may restart empty. The model has no other time: a lease ends when its
holder releases it, or when a take-over leaves it without a majority. A quarantine never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

SERVERS = range(3)
MAJORITY = 2
NO_CLAIM = -1


class Server(NamedTuple):
    token: int = 0
    holder: int = NO_CLAIM
    vote: int = NO_CLAIM
    is_quarantined: bool = False


NOT_READ = (-1, NO_CLAIM, False)


class Claim(NamedTuple):
    """``phase``: "collects" or, to take over, "reads"; then "confirms", "holds" or "ended". The sets are of servers."""

    phase: str = "collects"
    votes: tuple[int, ...] = (0, 0, 0)
    """The candidate token from each server that voted for this claim or was read; otherwise 0."""
    read: tuple[tuple[int, int, bool], ...] | None = None
    """For a take-over: each server's token and holder, and whether the server may have forgotten others."""
    token: int = 0
    to_confirm: frozenset[int] = frozenset()
    """Confirmations in flight, also after the claim has given up."""
    confirmed: frozenset[int] = frozenset()
    to_release: frozenset[int] = frozenset()


class State(NamedTuple):
    servers: tuple[Server, ...]
    claims: tuple[Claim, ...]
    last_token: int = 0
    """The greatest token that a claim received."""
    restarts: int = 0


Tuple = TypeVar("Tuple", Server, Claim, State)


def replace(item: Tuple, **fields: object) -> Tuple:
    return item._replace(**fields)  # type: ignore[arg-type]  # a public method of named tuples, for any of their fields


class Violation(Exception):
    """The message has the violation, and the number of steps to it."""


@dataclass(frozen=True)
class Model:
    """The algorithm. Each option can switch off one part."""

    claims: int = 2
    restarts: int = 1
    clocks: tuple[int, ...] = (9, 1, 1)
    has_second_broadcast: bool = True
    has_quarantine: bool = True
    needs_vote: bool = True
    take_overs: int = 0
    """Number of claims that take over."""
    is_conditional: bool = True
    """Whether a take-over replaces only the record that it has read."""
    checks_memory: bool = True
    """Whether a take-over needs a server that has not forgotten anything since."""

    def check(self) -> int:
        """Return the number of states.

        :raises Violation: two claims hold at the same time, or a token is not greater than all previous tokens.
        """
        acquiring = tuple(Claim() for _ in range(self.claims - self.take_overs))
        taking_over = tuple(Claim("reads", read=(NOT_READ,) * len(SERVERS)) for _ in range(self.take_overs))
        start = State(tuple(Server() for _ in SERVERS), acquiring + taking_over, 0, self.restarts)
        seen, todo = {start}, [(start, 0)]
        while todo:
            state, depth = todo.pop()
            for following in self.steps(state):
                broken = what_is_broken(state, following)
                if broken:
                    raise Violation(f"{broken}, after {depth + 1} steps")
                following = self.essence(following)
                if following not in seen:
                    seen.add(following)
                    todo.append((following, depth + 1))
        return len(seen)

    def steps(self, state: State) -> Iterator[State]:
        for number, server in enumerate(state.servers):
            if server.vote != NO_CLAIM:
                yield with_server(state, number, replace(server, vote=NO_CLAIM))  # the vote expires
            if state.restarts:
                empty = Server(is_quarantined=self.has_quarantine)
                yield with_server(replace(state, restarts=state.restarts - 1), number, empty)
        for me, claim in enumerate(state.claims):
            yield from getattr(self, claim.phase)(state, me, claim)
            for number in claim.to_confirm:
                yield self.confirm(state, me, claim, number)
            for number in claim.to_release:
                yield self.release(state, me, claim, number)

    def essence(self, state: State) -> State:
        """Return the state without the parts that can no longer have an effect."""
        claims = []
        for me, claim in enumerate(state.claims):
            mine = frozenset(n for n, server in enumerate(state.servers) if me in (server.vote, server.holder))
            voters = frozenset(n for n, server in enumerate(state.servers) if server.vote == me)
            to_confirm = claim.to_confirm & voters if self.needs_vote else claim.to_confirm
            if claim.read is not None:
                to_confirm = frozenset(n for n in claim.to_confirm if self.may_match(state, claim, n))
            is_alive = claim.phase == "confirms"
            claims.append(
                replace(
                    claim,
                    to_confirm=to_confirm,
                    to_release=claim.to_release & (mine | to_confirm),
                    confirmed=claim.confirmed if is_alive else frozenset(),
                    token=claim.token if is_alive or to_confirm else 0,
                    read=claim.read if claim.read is None or claim.phase == "reads" or to_confirm else (),
                )
            )
        return State(state.servers, tuple(claims), state.last_token, state.restarts)

    # Steps of a claimant

    def collects(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        for number, server in enumerate(state.servers):
            if not claim.votes[number] and self.may_vote(server, me):
                candidate = max(server.token + 1, self.clocks[number])
                votes = tuple(candidate if n == number else vote for n, vote in enumerate(claim.votes))
                voted = replace(server, vote=me)
                if not self.has_second_broadcast:
                    voted = Server(candidate, me, NO_CLAIM, server.is_quarantined)
                yield with_claim(with_server(state, number, voted), me, replace(claim, votes=votes))
        voters = frozenset(number for number in SERVERS if claim.votes[number])
        if len(voters) >= MAJORITY:
            won = Claim("confirms", token=max(claim.votes), to_confirm=voters)
            if not self.has_second_broadcast:
                won = replace(won, to_confirm=frozenset(), confirmed=voters)
            yield with_claim(state, me, won)

    def may_vote(self, server: Server, me: int) -> bool:
        return server.holder == NO_CLAIM and server.vote in (NO_CLAIM, me) and not server.is_quarantined

    def reads(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        assert claim.read is not None
        for number, server in enumerate(state.servers):
            if claim.read[number] == NOT_READ:
                candidate = max(server.token + 1, self.clocks[number])
                votes = tuple(candidate if n == number else vote for n, vote in enumerate(claim.votes))
                found = (server.token, server.holder, server.is_quarantined)
                read = tuple(found if n == number else other for n, other in enumerate(claim.read))
                yield with_claim(state, me, replace(claim, votes=votes, read=read))
        readable = frozenset(n for n in SERVERS if claim.read[n] != NOT_READ)
        know = [n for n in readable if not claim.read[n][2]]
        if len(know) >= MAJORITY or len(readable) == len(SERVERS):
            to_confirm = frozenset(know) if len(know) >= MAJORITY else readable
            chosen = Claim("confirms", token=max(claim.votes), to_confirm=to_confirm, read=claim.read)
            yield with_claim(state, me, chosen)

    def confirms(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        if len(claim.confirmed) >= MAJORITY:
            proxy = with_claim(state, me, replace(claim, phase="holds"))
            yield replace(proxy, last_token=max(state.last_token, claim.token))
        yield from self.holds(state, me, claim)  # the claim gives up

    def holds(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        yield with_claim(state, me, replace(claim, phase="ended", to_release=frozenset(SERVERS)))

    def ended(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        return iter(())

    # Steps of a server

    def confirm(self, state: State, me: int, claim: Claim, number: int) -> State:
        server = state.servers[number]
        if claim.read is not None:
            return self.take(state, me, claim, number)
        claim = replace(claim, to_confirm=claim.to_confirm - {number})
        is_wanted = server.vote == me or not self.needs_vote
        if server.token < claim.token and server.holder == NO_CLAIM and is_wanted:
            state = with_server(state, number, replace(server, token=claim.token, holder=me, vote=NO_CLAIM))
            if claim.phase == "confirms":
                claim = replace(claim, confirmed=claim.confirmed | {number})
        return with_claim(state, me, claim)

    def take(self, state: State, me: int, claim: Claim, number: int) -> State:
        """Confirm a take-over. The message stays in flight: a copy may come later."""
        assert claim.read is not None
        server = state.servers[number]
        token, holder, was_quarantined = claim.read[number]
        if server.token >= claim.token or (self.is_conditional and server.token != token):
            return state
        if self.checks_memory and server.is_quarantined != was_quarantined:
            return state
        if server.holder not in (NO_CLAIM, holder, me) and state.claims[server.holder].phase == "holds":
            raise Violation(f"I2: a take-over takes from {server.holder} what it has not read")
        state = with_server(state, number, replace(server, token=claim.token, holder=me, vote=NO_CLAIM))
        if claim.phase == "confirms":
            claim = replace(claim, confirmed=claim.confirmed | {number})
        state = with_claim(state, me, claim)
        for other, former in enumerate(state.claims):
            kept = sum(server.holder == other for server in state.servers)
            if other != me and former.phase == "confirms":  # its reply may be in flight; the lock is taken anyway
                state = with_claim(state, other, replace(former, confirmed=former.confirmed - {number}))
            if other != me and former.phase == "holds" and kept < MAJORITY:
                state = with_claim(state, other, replace(former, phase="ended", to_release=frozenset(SERVERS)))
        return state

    def may_match(self, state: State, claim: Claim, number: int) -> bool:
        """Whether a confirmation of a take-over can still change this server."""
        assert claim.read is not None
        server = state.servers[number]
        may_be_emptied = state.restarts > 0 and (claim.read[number][0] == 0 or not self.is_conditional)
        is_same = server.token == claim.read[number][0] or not self.is_conditional
        return may_be_emptied or (is_same and server.token < claim.token)

    def release(self, state: State, me: int, claim: Claim, number: int) -> State:
        server = state.servers[number]
        if server.vote == me:
            server = replace(server, vote=NO_CLAIM)
        if server.holder == me:
            server = replace(server, holder=NO_CLAIM)
        claim = replace(claim, to_release=claim.to_release - {number})
        return with_claim(with_server(state, number, server), me, claim)


def what_is_broken(before: State, after: State) -> str:
    holders = [number for number, claim in enumerate(after.claims) if claim.phase == "holds"]
    if len(holders) > 1:
        return f"I1: claims {holders} hold at the same time"
    for old, new in zip(before.claims, after.claims, strict=True):
        if old.phase != "holds" and new.phase == "holds" and new.token <= before.last_token:
            return f"I7: token {new.token} after {before.last_token}"
    return ""


def with_server(state: State, number: int, server: Server) -> State:
    return replace(state, servers=(*state.servers[:number], server, *state.servers[number + 1 :]))


def with_claim(state: State, number: int, claim: Claim) -> State:
    return replace(state, claims=(*state.claims[:number], claim, *state.claims[number + 1 :]))
