"""The model of many replicas at one tick: its sums must come out, and its ways must help as they are said to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulate import (
    BEGIN,
    CHART,
    END,
    LAST,
    PAGE,
    PLAIN,
    STRATEGIES,
    Store,
    Strategy,
    filled,
    main,
    simulate,
    stores,
    tables,
    verdict,
)

STORE = Store("a store", processors=2, skip_us=100, run_us=400, look_us=100)
REPLICAS, JOBS = 200, 50


def test_every_attempt_is_answered_and_the_store_is_never_faster_than_it_is() -> None:
    outcome = simulate(STORE, PLAIN, REPLICAS, JOBS)
    assert outcome.attempts == REPLICAS * JOBS
    assert STORE.capacity() == 20_000
    assert outcome.answered == pytest.approx(outcome.attempts / STORE.capacity(), abs=0.15)
    assert 0 < outcome.wait_p99 <= outcome.replica <= outcome.answered + 0.15
    assert outcome.busy == pytest.approx(outcome.attempts / STORE.capacity() / 60)
    assert (outcome.steady, outcome.load, outcome.late) == (0, 0, 0)


def test_the_same_seed_gives_the_same() -> None:
    simulate.cache_clear()
    first = simulate(STORE, STRATEGIES[1], REPLICAS, JOBS)
    simulate.cache_clear()
    assert simulate(STORE, STRATEGIES[1], REPLICAS, JOBS) == first


def test_jitter_lowers_the_peak_and_not_the_sum() -> None:
    plain, spread = (simulate(STORE, replace(PLAIN, jitter=jitter), REPLICAS, JOBS) for jitter in (0, 20))
    assert spread.attempts == plain.attempts
    assert plain.peak == plain.attempts
    assert spread.peak < plain.peak / 8
    assert spread.wait_p99 < plain.wait_p99
    assert spread.answered > 15
    assert spread.replica < plain.replica / 5  # who comes late is answered as fast as who comes early
    assert spread.busy == plain.busy


def test_groups_and_stores_divide_what_a_store_gets() -> None:
    plain = simulate(STORE, PLAIN, REPLICAS, JOBS)
    groups = simulate(STORE, Strategy("groups", groups=10), REPLICAS, JOBS)
    several = simulate(STORE, Strategy("stores", stores=10), REPLICAS, JOBS)
    assert groups.attempts == plain.attempts / 10
    assert several.attempts == plain.attempts
    assert groups.answered < plain.answered / 4
    assert several.answered < plain.answered / 4


def test_a_leader_asks_alone_and_followers_look_at_all_times() -> None:
    often = simulate(STORE, Strategy("leader", leads=True, retry_period=2), REPLICAS, JOBS)
    seldom = simulate(STORE, Strategy("leader", leads=True, retry_period=20), REPLICAS, JOBS)
    assert (often.attempts, often.peak) == (JOBS, JOBS)
    assert often.steady == pytest.approx(REPLICAS / 2.2)
    assert often.load == pytest.approx(often.steady / STORE.capacity())
    assert seldom.steady == pytest.approx(often.steady / 10)
    assert often.busy == pytest.approx(often.load + JOBS * STORE.run_us / 1e6 / STORE.processors / 60)


def test_a_store_that_is_too_slow_lets_questions_run_into_the_time_limit() -> None:
    slow = replace(STORE, skip_us=200_000)
    assert simulate(slow, PLAIN, REPLICAS, 10).late > 0.5


def test_the_verdict_is_the_worst_of_what_can_be_said() -> None:
    good = simulate(STORE, PLAIN, 10, 10)
    assert verdict(good) == "good"
    assert verdict(replace(good, busy=0.5)) == "the store has little time for anything else"
    assert verdict(replace(good, busy=0.5, replica=1.5)) == "late runs are dropped"
    assert verdict(replace(good, replica=6, late=0.25)) == "**25% errors**"
    assert verdict(replace(good, late=0.25, answered=61)) == "**not done at the next tick**"
    assert verdict(replace(good, busy=1.1)) == "**not done at the next tick**"


def test_the_costs_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {
        "latency": {
            "redis": {"shedlock_py": {"server_cpu_us": 60.0, "skip_server_cpu_us": 20.0}},
            "postgres": {"shedlock_py": {"server_cpu_us": 300.0}},  # of which skips were not measured
        }
    }
    assert stores(results) == [Store("Redis", 1, 20.0, 60.0, 20.0)]
    monkeypatch.setattr("benchmarks.simulate.STRATEGIES", STRATEGIES[-2:])
    page = filled(f"before\n{BEGIN}\nold\n{END}\nafter\n", results)
    assert page == f"before\n{BEGIN}\n\n{tables(results)}\n{END}\nafter\n"
    assert "50,000 skips per second" in page
    with pytest.raises(ValueError, match="no marks"):
        filled("a page", results)


def test_at_a_tick_everybody_asks_once() -> None:
    """That costs more than asking again and again."""
    entry = {"server_cpu_us": 300.0, "skip_server_cpu_us": 20.0, "first_skip_server_cpu_us": 50.0}
    [store] = stores({"latency": {"postgres": {"shedlock_py": entry}}})
    assert store.skip_us == 50.0


# What is committed


def test_the_page_and_its_chart_say_what_follows_from_the_committed_run(tmp_path: Path) -> None:
    """``python -m benchmarks.simulate`` writes them again."""
    page, chart = tmp_path / "scaling.md", tmp_path / "scaling.svg"
    page.write_text(PAGE.read_text())
    main([str(LAST), "--page", str(page), "--chart", str(chart)])
    assert page.read_text() == PAGE.read_text()
    assert chart.read_text() == CHART.read_text()


def test_another_cost_makes_another_page() -> None:
    results = json.loads(LAST.read_text())
    results["latency"]["redis"]["shedlock_py"]["skip_server_cpu_us"] = 123.4
    assert stores(results)[0].skip_us == 123.4
    assert f"{stores(results)[0].capacity():,.0f} skips" not in PAGE.read_text()


def test_the_help_says_how_to_write_the_page_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "docs/scaling.md" in capsys.readouterr().out
