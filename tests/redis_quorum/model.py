"""The quorum's algorithm in small: all states that three servers and a few claims can get into.

Every message is carried out at any time, in any order, or never; votes expire at any time; clocks differ; one server
may restart empty. There is no time otherwise: a lease ends when its holder releases it, and a quarantine never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SERVERS = range(3)
MAJORITY = 2
NOBODY = -1


class Server(NamedTuple):
    token: int = 0
    holder: int = NOBODY
    vote: int = NOBODY
    is_quarantined: bool = False


class Claim(NamedTuple):
    """``phase``: "asks", "confirms", "holds" or "ended". The sets are of servers."""

    phase: str = "asks"
    votes: tuple[int, ...] = (0, 0, 0)
    """The candidate token of each server that voted for this claim, or 0."""
    token: int = 0
    to_confirm: frozenset[int] = frozenset()
    """The confirmations that are on their way, also when nobody waits for them any more."""
    confirmed: frozenset[int] = frozenset()
    to_release: frozenset[int] = frozenset()


class State(NamedTuple):
    servers: tuple[Server, ...]
    claims: tuple[Claim, ...]
    last_token: int = 0
    """The greatest that was handed out."""
    restarts: int = 0


class Violation(Exception):
    """Carries what was broken, and the number of steps to it."""


@dataclass(frozen=True)
class Model:
    """The algorithm; each option leaves one thing out."""

    claims: int = 2
    restarts: int = 1
    clocks: tuple[int, ...] = (9, 1, 1)
    has_second_round: bool = True
    has_quarantine: bool = True
    needs_vote: bool = True

    def check(self) -> int:
        """How many states there are.

        :raises Violation: two claims hold at the same time, or a token is not greater than all before it.
        """
        start = State(tuple(Server() for _ in SERVERS), tuple(Claim() for _ in range(self.claims)), 0, self.restarts)
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
            if server.vote != NOBODY:
                yield with_server(state, number, server._replace(vote=NOBODY))  # it expires
            if state.restarts:
                empty = Server(is_quarantined=self.has_quarantine)
                yield with_server(state._replace(restarts=state.restarts - 1), number, empty)
        for me, claim in enumerate(state.claims):
            yield from getattr(self, claim.phase)(state, me, claim)
            for number in claim.to_confirm:
                yield self.confirm(state, me, claim, number)
            for number in claim.to_release:
                yield self.release(state, me, claim, number)

    def essence(self, state: State) -> State:
        """The same without what can have no effect any more."""
        claims = []
        for me, claim in enumerate(state.claims):
            mine = frozenset(n for n, server in enumerate(state.servers) if me in (server.vote, server.holder))
            voters = frozenset(n for n, server in enumerate(state.servers) if server.vote == me)
            to_confirm = claim.to_confirm & voters if self.needs_vote else claim.to_confirm
            is_alive = claim.phase == "confirms"
            claims.append(
                claim._replace(
                    to_confirm=to_confirm,
                    to_release=claim.to_release & (mine | to_confirm),
                    confirmed=claim.confirmed if is_alive else frozenset(),
                    token=claim.token if is_alive or to_confirm else 0,
                )
            )
        return State(state.servers, tuple(claims), state.last_token, state.restarts)

    # What a claimant does

    def asks(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        for number, server in enumerate(state.servers):
            if not claim.votes[number] and self.may_vote(server, me):
                candidate = max(server.token + 1, self.clocks[number])
                votes = tuple(candidate if n == number else vote for n, vote in enumerate(claim.votes))
                voted = server._replace(vote=me)
                if not self.has_second_round:
                    voted = Server(candidate, me, NOBODY, server.is_quarantined)
                yield with_claim(with_server(state, number, voted), me, claim._replace(votes=votes))
        voters = frozenset(number for number in SERVERS if claim.votes[number])
        if len(voters) >= MAJORITY:
            won = Claim("confirms", token=max(claim.votes), to_confirm=voters)
            if not self.has_second_round:
                won = won._replace(to_confirm=frozenset(), confirmed=voters)
            yield with_claim(state, me, won)

    def may_vote(self, server: Server, me: int) -> bool:
        return server.holder == NOBODY and server.vote in (NOBODY, me) and not server.is_quarantined

    def confirms(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        if len(claim.confirmed) >= MAJORITY:
            holding = with_claim(state, me, claim._replace(phase="holds"))
            yield holding._replace(last_token=max(state.last_token, claim.token))
        yield from self.holds(state, me, claim)  # it gives up

    def holds(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        yield with_claim(state, me, claim._replace(phase="ended", to_release=frozenset(SERVERS)))

    def ended(self, state: State, me: int, claim: Claim) -> Iterator[State]:
        return iter(())

    # What a server does

    def confirm(self, state: State, me: int, claim: Claim, number: int) -> State:
        server = state.servers[number]
        claim = claim._replace(to_confirm=claim.to_confirm - {number})
        is_wanted = server.vote == me or not self.needs_vote
        if server.token < claim.token and server.holder == NOBODY and is_wanted:
            state = with_server(state, number, server._replace(token=claim.token, holder=me, vote=NOBODY))
            if claim.phase == "confirms":
                claim = claim._replace(confirmed=claim.confirmed | {number})
        return with_claim(state, me, claim)

    def release(self, state: State, me: int, claim: Claim, number: int) -> State:
        server = state.servers[number]
        if server.vote == me:
            server = server._replace(vote=NOBODY)
        if server.holder == me:
            server = server._replace(holder=NOBODY)
        claim = claim._replace(to_release=claim.to_release - {number})
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
    return state._replace(servers=(*state.servers[:number], server, *state.servers[number + 1 :]))


def with_claim(state: State, number: int, claim: Claim) -> State:
    return state._replace(claims=(*state.claims[:number], claim, *state.claims[number + 1 :]))
