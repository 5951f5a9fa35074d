"""Demonstrations for imitation: the environment's oracle plays real episodes in the policy's place.

Owned here: what stands in for the engine. Everything else is the ordinary rollout, in real boxes and beside the
learner, so a demonstration is encoded, graded, stored and verified exactly as the policy's own attempts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from glmgym.engine import Engine, Finish, GenerateParams, Generation, TopScores, Weights
from glmgym.errors import ConfigError, EnvFailure, boundary
from glmgym.registry import EnvSpec
from glmgym.rewards import RewardMix
from glmgym.rollout import House, Job, run_trajectory
from glmgym.trajectory import Failure, Outcome, Stop, Trajectory

_TOLERANCE = 1e-6  # of the reward 1 that an oracle gets; as in ``glmgym check``


def check_demonstrator(spec: EnvSpec) -> None:
    """Raises ConfigError: the environment has no oracle to imitate."""
    if spec.oracle is None:
        raise ConfigError(f'[algorithm] name = "imitation": {spec.id} has no oracle to imitate; register one')


async def demonstrate(job: Job, house: House) -> Trajectory:
    """The oracle's episode on a task, in the environment's own reward alone and without compaction.

    An oracle that does not get the whole reward is broken or was given too little room: its episode is a failure of
    the environment, which the fleet counts and nobody imitates.

    Raises:
        EnvFailure: the oracle itself raised.
    """
    assert job.spec.oracle is not None
    with boundary(EnvFailure, f"oracle of {job.spec.id} on {job.task.id}"):
        turns = [house.chat.turn(message) for message in job.spec.oracle(job.task)]
    stage = replace(house, engine=Demonstrator(turns, house.engine), compaction=None, rewards=RewardMix())
    trajectory = await run_trajectory(job, stage)
    outcome = trajectory.outcome
    if not outcome.is_valid or outcome.total() >= 1.0 - _TOLERANCE:
        return trajectory
    broken = EnvFailure(
        f"the oracle of {job.spec.id} scored {outcome.total():g} on {job.task.id} and stopped as {outcome.stop}; "
        "an episode must fit the context and the budget of [rollout], and `glmgym check` must pass"
    )
    return replace(trajectory, outcome=Outcome(Stop.FAILED, failure=Failure.of(broken)))


class Demonstrator:
    """Says ``turns`` one after the other, each token with probability 1, under the version that ``policy`` is at."""

    name = "oracle"
    precision = "none/none/none"

    def __init__(self, turns: Sequence[Sequence[int]], policy: Engine) -> None:
        self._turns = iter(turns)
        self._policy = policy

    @property
    def version(self) -> int:
        return self._policy.version

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        turn = next(self._turns, None)
        if turn is None:
            raise EnvFailure("the oracle has no more turns, yet the episode goes on")
        said = np.asarray(turn[: params.max_tokens], np.int32)
        finish = Finish.STOP if len(said) == len(turn) else Finish.LENGTH
        certain = np.zeros(len(said), np.float32)
        return Generation(said, certain, np.full(len(said), self.version, np.int32), finish)

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        raise EnvFailure("an oracle says its turns; it has no probability for other tokens")

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        raise EnvFailure("an oracle says its turns; it has no probability for other tokens")

    async def switch(self, weights: Weights) -> int:
        raise EnvFailure("an oracle has no weights")

    async def abort(self, session: str) -> None:
        """Nothing runs that could be aborted: an answer is there at once."""

    async def release(self, session: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open; the policy's engine is its owner's."""
