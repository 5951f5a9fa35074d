"""``sao-vs-grpo``: single rollouts that train on completion against groups that wait for their last member (SAO)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms import Algorithm, Dis, DisSettings, Sao, SaoSettings, dis, sao
from glmgym_trainers.proving import arrivals, baselines
from glmgym_trainers.proving.arrivals import Update, in_step, latencies, on_completion
from glmgym_trainers.proving.baselines import RunningMeanRl, RunningMeanSettings
from glmgym_trainers.proving.cache import Cache, Weights
from glmgym_trainers.proving.experiment import Arm, Claim, Experiment, Panel, Record, difference
from glmgym_trainers.proving.games import hop
from glmgym_trainers.proving.games.hop import HopRules
from glmgym_trainers.proving.gpt import TinyGpt
from glmgym_trainers.proving.lockstep import play
from glmgym_trainers.proving.practice import (
    Dealer,
    evaluate,
    new_learner,
    policy_of,
    warm_critic,
    warm_key,
    warm_start,
)
from glmgym_trainers.proving.warm import Course, Stage

CRITIC_SEED = 90_002  # of the rollouts the shared critic was trained on; no arm sees them


class AsynchronyExperiment(Settings):
    game: HopRules = HopRules(err=0.5)
    warm_steps: tuple[int, int] = (250, 100)  # without errors, with errors
    critic_batches: int = 80
    slots: int = 64
    batch_size: int = 64
    group_size: int = 8
    sigma: float = 1.25  # of the log-normal latency
    update_time: float = 0.2  # simulated, of the regime in which all wait for the update
    horizon: float = 20.0  # simulated time at which arms are compared; the median latency is 1
    trajectories: int = 768  # at which they are compared too, and until which every arm goes on
    eval_every: float = 4.0  # simulated time
    eval_trajectories: int = 128  # and trajectories
    lr: float = 7e-4
    critic_lr: float = 2e-3
    eval_episodes: int = 800


def _start(own: AsynchronyExperiment, cache: Cache) -> tuple[TinyGpt, Weights]:
    """The warm policy and its critic, which all arms and seeds share."""
    clean = own.game.model_copy(update={"err": 0.0})
    stages = (Stage(games=(g,), steps=n) for g, n in zip((clean, own.game), own.warm_steps, strict=True))
    course = Course(stages=tuple(stages))
    model = warm_start(cache, "hop", course)
    critic = warm_critic(
        cache,
        "hop-critic",
        warm_key(course),
        model,
        Sao(SaoSettings.model_validate({"value_warmup": own.critic_batches})),
        (own.game,),
        seed=CRITIC_SEED,
        batch_size=own.batch_size,
        lr=own.critic_lr,
    )
    return model, critic


def prepare(own: AsynchronyExperiment, cache: Cache) -> None:
    _start(own, cache)


def run(own: AsynchronyExperiment, arm: str, seed: int, cache: Cache) -> Record:
    model, critic = _start(own, cache)
    learner = new_learner(
        model, _algorithm(own, arm), lr=own.lr, critic_lr=own.critic_lr, critic=critic if arm == "sao" else None
    )
    schedule = _schedule(own, arm, seed)
    stream = Attempts(own, seed, schedule, group_size=own.group_size if arm.startswith("grpo") else 1)
    curve: list[dict[str, float]] = []
    over_time: list[float] = []  # success on the grid of simulated times
    spent = 0.0

    def measure(at: float, consumed: int) -> None:
        score = evaluate(policy_of(learner), (own.game,), episodes=own.eval_episodes, seed=seed)
        curve.append({"time": at, "trajectories": float(consumed), "cpu_s": spent, "success": score.success})

    metrics: dict[str, float] = {}
    lags: list[int] = []
    clock = [own.eval_every * k for k in range(int(own.horizon / own.eval_every) + 1)]
    for version, update in enumerate(schedule):
        consumed = version * own.batch_size
        while clock and clock[0] < update.time:
            measure(clock.pop(0), consumed)
            over_time.append(curve[-1]["success"])
            metrics["trajectories_at_horizon"] = float(consumed)
        if version and consumed % own.eval_trajectories == 0:
            measure(schedule[version - 1].time, consumed)
        if consumed == own.trajectories:
            metrics["success_at_trajectories"] = curve[-1]["success"]
            metrics["time_of_trajectories"] = curve[-1]["time"]
        start = time.process_time()
        learner.step(stream.batch(policy_of(learner), update, version))
        spent += time.process_time() - start
        lags += [version - attempt.version for attempt in update.attempts]
    metrics["success_at_horizon"] = over_time[-1]
    metrics["success_over_time"] = sum(over_time[1:]) / len(over_time[1:])
    metrics["mean_lag"] = sum(lags) / len(lags)
    return Record(metrics, sorted(curve, key=lambda point: point["time"]))


class Attempts:
    """The episodes of a schedule. Each is played by the version that is current when it starts."""

    def __init__(self, own: AsynchronyExperiment, seed: int, schedule: list[Update], *, group_size: int) -> None:
        self._dealer = Dealer((own.game,), seed)
        used = [attempt for update in schedule for attempt in update.attempts]
        self._episodes = self._dealer.episodes(max(a.index for a in used) + group_size, group_size=group_size)
        self._started: dict[int, list[int]] = {}
        for attempt in sorted(used, key=lambda attempt: attempt.index):
            self._started.setdefault(attempt.version, []).append(attempt.index)
        self._played: dict[int, Trajectory] = {}

    def batch(self, model: TinyGpt, update: Update, version: int) -> list[Trajectory]:
        """The trajectories of an update, after playing what starts under ``version``, whose policy is ``model``."""
        started = self._started.get(version, [])
        played = play(model, [self._episodes[i] for i in started], seed=self._dealer.sampling_seed(), version=version)
        self._played |= dict(zip(started, played, strict=True))
        return [self._played.pop(attempt.index) for attempt in update.attempts]


def _algorithm(own: AsynchronyExperiment, arm: str) -> Algorithm:
    if arm == "sao":
        return Sao(SaoSettings.model_validate({"value_warmup": 0}))
    if arm == "running-mean":
        return RunningMeanRl(RunningMeanSettings.model_validate({}))
    return Dis(DisSettings.model_validate({"group_size": own.group_size}))


def _schedule(own: AsynchronyExperiment, arm: str, seed: int) -> list[Update]:
    """The updates up to the first after both the horizon and the number of trajectories."""
    times = latencies(100 * own.trajectories, sigma=own.sigma, seed=seed)
    updates: Iterator[Update]
    if arm == "grpo-sync":
        updates = in_step(times, batch_size=own.batch_size, update_time=own.update_time)
    else:
        group_size = own.group_size if arm == "grpo-async" else 1
        updates = on_completion(times, slots=own.slots, batch_size=own.batch_size, group_size=group_size)
    schedule: list[Update] = []
    while not schedule or schedule[-1].time <= own.horizon or len(schedule) * own.batch_size <= own.trajectories:
        schedule.append(next(updates))
    return schedule


EXPERIMENT = Experiment(
    name="sao-vs-grpo",
    claim=(
        "Where episodes take heavy-tailed times, training on single rollouts as they complete beats waiting for whole "
        "groups, at equal simulated time."
    ),
    setting=(
        "The game `hop`: follow file names through one to four files and say the code in the last one. 64 slots, "
        "batches of 64, log-normal latencies with median 1 that do not depend on what an episode says: attempt i takes "
        "equally long in every arm. An attempt is sampled by the version that is current when it starts. All arms use "
        "the DIS loss with the band 0.2 to 4 and the same learning rate; the arms with groups have 8 attempts per "
        "task. Every arm goes on until both the horizon and the number of trajectories are reached, so that they can "
        "be compared at equal time, at equal trajectories and over CPU time. The critic of `sao` comes from one pass "
        "over rollouts of the warm policy (its cost is not in the curves). The warm start is shared by all seeds."
    ),
    tried=(
        "The synchronous arm is compared at equal time, where it has made few updates: that part of the claim is "
        "arithmetic. At equal trajectories it is on-policy and as good as any.",
        "The running-mean arm separates what single rollouts give from what the critic gives.",
        "With a warm policy that succeeds half the time, a rate of 1e-3 and a horizon of 40, every asynchronous arm "
        "reached 0.98 and nothing was left to compare: the start is weaker now, the rate lower, the horizon nearer.",
    ),
    settings=AsynchronyExperiment,
    quick={"horizon": 8.0, "trajectories": 256, "eval_episodes": 400},
    arms=(
        Arm("sao", "single rollouts, critic with two updates per policy update, skip-observation GAE"),
        Arm("running-mean", "single rollouts against the mean of the last 128 rewards, no critic"),
        Arm("grpo-async", "groups of 8, each enters the buffer when its last member ends; slots never wait"),
        Arm("grpo-sync", "groups of 8; all start together and wait for the last"),
    ),
    claims=(
        Claim(
            "Single rollouts on completion beat the asynchronous group barrier at equal simulated time.",
            "mean success over simulated time, sao - grpo-async",
            difference("success_over_time", "sao", "grpo-async"),
            gate=True,
        ),
        Claim(
            "Single rollouts on completion beat the synchronous barrier at equal simulated time.",
            "mean success over simulated time, sao - grpo-sync",
            difference("success_over_time", "sao", "grpo-sync"),
            gate=True,
        ),
        Claim(
            "They need no more trajectories than asynchronous groups.",
            "success at equal trajectories, sao - grpo-async",
            difference("success_at_trajectories", "sao", "grpo-async"),
        ),
        Claim(
            "The critic beats a running mean.",
            "mean success over simulated time, sao - running-mean",
            difference("success_over_time", "sao", "running-mean"),
        ),
        Claim(
            "Single rollouts beat asynchronous groups without a critic, too.",
            "mean success over simulated time, running-mean - grpo-async",
            difference("success_over_time", "running-mean", "grpo-async"),
        ),
    ),
    metrics={
        "success_over_time": "mean success over time",
        "success_at_horizon": "success at the horizon",
        "trajectories_at_horizon": "trajectories by then",
        "success_at_trajectories": "success at equal trajectories",
        "time_of_trajectories": "simulated time of those",
        "mean_lag": "mean lag, versions",
    },
    panels=(
        Panel("time", "success", "simulated time (median latency 1)", "success", x_max=60.0),
        Panel("trajectories", "success", "trajectories", "success"),
        Panel("cpu_s", "success", "CPU s of rollouts and updates", "success"),
    ),
    run=run,
    prepare=prepare,
    modules=(sys.modules[__name__], arrivals, baselines, dis, sao, hop),
)
