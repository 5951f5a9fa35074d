"""Routing: every session to one engine, the same everywhere, and few move when an engine leaves; the contract holds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from engine_contract import CONTEXT, PROMPT, EngineContract
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.engine import Engine, GenerateParams, Weights
from glmgym.engines import Fault, RoutedEngine, ScriptedEngine, route
from glmgym.errors import ConfigError, EngineFailure

NAMES = ("north", "east", "south", "west")
SESSIONS = [f"t{number:08d}" for number in range(2000)]


def scripted(version: int = 3, context_length: int = CONTEXT) -> ScriptedEngine:
    return ScriptedEngine(
        lambda prompt_ids, session, turn: list(range(20, 276)),
        fault=lambda session, _: Fault.STALL if session == "slow" else None,
        context_length=context_length,
        version=version,
    )


class TestRoutedEngineContract(EngineContract):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        engine = RoutedEngine({name: scripted() for name in NAMES})
        yield engine
        await engine.close()

    def weights(self, engine: Engine, version: int) -> Weights:
        return Weights(version)


@settings(deadline=None)
@given(st.text(max_size=20), st.permutations(NAMES), st.sampled_from(NAMES))
def test_only_the_sessions_of_an_engine_that_leaves_move(session: str, names: list[str], leaving: str) -> None:
    """Invariant 15, exactly."""
    rest = [name for name in names if name != leaving]
    before = route(session, names)
    assert before == route(session, NAMES)
    assert before == leaving or route(session, rest) == before


def test_sessions_are_spread_evenly() -> None:
    counts = Counter(route(session, NAMES) for session in SESSIONS)
    assert all(abs(counts[name] - 500) < 100 for name in NAMES)  # five standard deviations


def test_another_process_routes_alike() -> None:
    """Invariant 15: python salts its own ``hash`` in each process."""
    code = f"from glmgym.engines import route; print([route(f't{{n:08d}}', {NAMES}) for n in range(50)])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str([route(session, NAMES) for session in SESSIONS[:50]])


async def test_the_turns_of_a_session_are_one_engine_s() -> None:
    engines = {name: ScriptedEngine(lambda prompt, session, turn: [turn]) for name in NAMES}
    routed = RoutedEngine(engines)
    for turn in range(3):
        for session in SESSIONS[:20]:
            answer = await routed.generate(PROMPT, GenerateParams(max_tokens=4), session=session)
            assert answer.token_ids.tolist() == [turn]
    await routed.release(SESSIONS[0])
    answer = await routed.generate(PROMPT, GenerateParams(max_tokens=4), session=SESSIONS[0])
    assert answer.token_ids.tolist() == [0]


async def test_weights_that_one_engine_lacks_are_a_failure_that_says_where() -> None:
    closed = {"north": scripted(), "east": scripted(version=5)}
    routed = RoutedEngine(closed)
    assert routed.version == 3
    with pytest.raises(EngineFailure, match="version 4 are older than version 5"):
        await routed.switch(Weights(4))
    assert [engine.version for engine in closed.values()] == [3, 5]

    class Refusing(ScriptedEngine):
        async def switch(self, weights: Weights) -> int:
            raise EngineFailure("no room")

    half = RoutedEngine({"north": scripted(), "east": Refusing([[2]], context_length=CONTEXT, version=3)})
    with pytest.raises(EngineFailure, match=r"version 4 \(north: in effect, east: no room\)"):
        await half.switch(Weights(4))
    assert half.version == 3


def test_engines_that_differ_cannot_stand_in_for_each_other() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        RoutedEngine({})
    with pytest.raises(ConfigError, match="precision or context"):
        RoutedEngine({"a": scripted(), "b": scripted(context_length=100)})
    with pytest.raises(ValueError, match="no engine"):
        route("t1", ())
