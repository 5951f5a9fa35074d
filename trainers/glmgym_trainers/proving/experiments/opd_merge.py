"""``opd-merge``: experts that have drifted apart, merged by on-policy distillation and by other means (OPD, MOPD)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from random import Random

from glmgym.settings import Settings
from glmgym_trainers.algorithms import Algorithm, Mopd, MopdSettings, Opd, OpdSettings, mopd, opd
from glmgym_trainers.proving import baselines, teaching
from glmgym_trainers.proving.baselines import RunningMeanRl, RunningMeanSettings
from glmgym_trainers.proving.cache import Cache, Weights, digest
from glmgym_trainers.proving.episode import GameRules, Games
from glmgym_trainers.proving.experiment import (
    Arm,
    Claim,
    Experiment,
    Invalid,
    Panel,
    Record,
    Records,
    difference,
    level,
    metric,
)
from glmgym_trainers.proving.games import families
from glmgym_trainers.proving.games import hop as hop_game
from glmgym_trainers.proving.games.families import CountRules, FindRules
from glmgym_trainers.proving.games.hop import HopRules
from glmgym_trainers.proving.gpt import TinyGpt
from glmgym_trainers.proving.practice import (
    LEARNING,
    Dealer,
    evaluate,
    mean_weights,
    new_learner,
    policy_of,
    warm_key,
    warm_start,
    with_weights,
)
from glmgym_trainers.proving.teaching import divergence, teach
from glmgym_trainers.proving.warm import Course, Stage

EXPERT_SEED = 70_001  # added to the seed, for the experts' own games
WORDS = ("echo", "say", "print")  # the student answers with any of them; each family counts only its own
LAST = 3  # batches at the end over which the final divergence is averaged


class OpdMergeExperiment(Settings):
    hop: HopRules = HopRules(hops=(2, 3), answers=WORDS, answer="echo")
    find: FindRules = FindRules(answers=WORDS, answer="say")
    count: CountRules = CountRules(answers=WORDS, answer="print")
    warm_steps: tuple[int, int] = (300, 150)  # without errors, with errors
    expert_steps: int = 60  # batches of reinforcement per expert
    expert_batch: int = 64
    steps: int = 60  # batches of the student
    batch_size: int = 63  # trajectories of the student, about a third from each family
    top_k: int = 8  # of the arms that see the teacher's likeliest tokens only
    lr: float = 1e-3
    eval_every: int = 10
    eval_episodes: int = 500  # of each family

    @property
    def games(self) -> Games:
        return self.hop, self.find, self.count


def _course(own: OpdMergeExperiment, *, seed: int = 0, games: Games | None = None) -> Course:
    noisy = own.games if games is None else games
    clean = tuple(rules.model_copy(update={"err": 0.0}) for rules in noisy)
    stages = (Stage(games=g, steps=n) for g, n in zip((clean, noisy), own.warm_steps, strict=True))
    return Course(stages=tuple(stages), seed=seed)


def _student(own: OpdMergeExperiment, cache: Cache) -> tuple[TinyGpt, str]:
    course = _course(own)
    return warm_start(cache, "families", course), warm_key(course)


def _foreigner(own: OpdMergeExperiment, cache: Cache) -> tuple[TinyGpt, str]:
    """Another origin: other initial weights, and imitation of the first family alone."""
    course = _course(own, seed=1, games=own.games[:1])
    return warm_start(cache, "foreigner", course), warm_key(course)


def prepare(own: OpdMergeExperiment, cache: Cache) -> None:
    _student(own, cache)
    _foreigner(own, cache)


def _expert(
    own: OpdMergeExperiment, cache: Cache, name: str, start: tuple[TinyGpt, str], rules: GameRules, seed: int
) -> TinyGpt:
    """A policy reinforced on one family alone."""
    model, key = start

    def make() -> Weights:
        return _reinforced(
            own, model, (rules,), seed=EXPERT_SEED + seed, steps=own.expert_steps, batch=own.expert_batch
        )

    numbers = own.expert_steps, own.expert_batch, own.lr, seed
    return with_weights(cache.weights(f"expert-{name}-{seed}", digest(key, rules, numbers, baselines, *LEARNING), make))


def _reinforced(own: OpdMergeExperiment, model: TinyGpt, games: Games, *, seed: int, steps: int, batch: int) -> Weights:
    learner = new_learner(model, RunningMeanRl(RunningMeanSettings.model_validate({})), lr=own.lr)
    dealer = Dealer(games, seed)
    for step in range(steps):
        learner.step(dealer.rollouts(policy_of(learner), batch, version=step))
    return policy_of(learner).state_dict()


class Yardstick:
    """Scores of one seed on a scale per family: 0 is the student as it was, 1 the family's own expert."""

    def __init__(self, own: OpdMergeExperiment, student: TinyGpt, experts: Mapping[str, TinyGpt], seed: int) -> None:
        self._own = own
        self._seed = seed
        self.floor = {family: self.success(student, family) for family in experts}
        self.ceiling = {family: self.success(expert, family) for family, expert in experts.items()}
        for family, floor in self.floor.items():
            if self.ceiling[family] <= floor:
                raise Invalid(
                    f"the expert of {family!r} is no better than the student ({self.ceiling[family]:.3f} against "
                    f"{floor:.3f} on seed {seed}): give it more steps, there is nothing to distil"
                )

    def success(self, model: TinyGpt, family: str) -> float:
        games = tuple(rules for rules in self._own.games if _family(rules) == family)
        return evaluate(model, games, episodes=self._own.eval_episodes, seed=self._seed).success

    def __call__(self, model: TinyGpt) -> dict[str, float]:
        """``norm_FAMILY`` of each, and ``norm``, their mean."""
        out = {
            family: (self.success(model, family) - self.floor[family]) / (ceiling - self.floor[family])
            for family, ceiling in self.ceiling.items()
        }
        return {f"norm_{family}": share for family, share in out.items()} | {"norm": sum(out.values()) / len(out)}


def run(own: OpdMergeExperiment, arm: str, seed: int, cache: Cache) -> Record:
    start = _student(own, cache)
    student = start[0]
    experts = {_family(rules): _expert(own, cache, _family(rules), start, rules, seed) for rules in own.games}
    measure = Yardstick(own, student, experts, seed)
    if arm in ("average", "arithmetic-0.5", "arithmetic-1"):
        metrics = measure(_merged(student, list(experts.values()), arm))
        if arm == "average":
            metrics |= {f"expert_{family}": success for family, success in measure.ceiling.items()}
            metrics |= {f"student_{family}": success for family, success in measure.floor.items()}
        return Record(metrics)
    if arm.startswith("mix-rl"):
        # The experts' trajectories, too, where the total is to be equal.
        extra = own.expert_steps * own.expert_batch * len(own.games) if arm == "mix-rl-total" else 0
        steps = own.steps + extra // own.batch_size
        weights = _reinforced(own, student, own.games, seed=seed, steps=steps, batch=own.batch_size)
        return Record(measure(with_weights(weights)) | {"trajectories": float(steps * own.batch_size)})
    if arm in ("opd", "mopd-full", "mopd-top8"):
        return _distilled(own, arm, student, experts, own.games, measure, seed)
    family = _family(own.games[0])
    teacher = experts[family]
    if arm.startswith("foreign"):
        teacher = _expert(own, cache, "foreigner", _foreigner(own, cache), own.games[0], seed)
    return _distilled(own, arm, student, {family: teacher}, own.games[:1], measure, seed)


def _distilled(
    own: OpdMergeExperiment,
    arm: str,
    student: TinyGpt,
    teachers: Mapping[str, TinyGpt],
    games: Games,
    measure: Yardstick,
    seed: int,
) -> Record:
    """The student after learning from its teachers on games of their families; the full divergence all along."""
    k = own.top_k if arm.endswith("top8") else -1
    algorithm: Algorithm = Mopd(MopdSettings.model_validate({"form": "topk", "k": k}))
    if arm == "opd":
        algorithm = Opd(OpdSettings.model_validate({}))
    learner = new_learner(student, algorithm, lr=own.lr)
    dealer = Dealer(games, seed)
    curve: list[dict[str, float]] = []
    for step in range(own.steps + 1):
        played = dealer.rollouts(policy_of(learner), own.batch_size, version=step)
        point = {"step": float(step), "divergence": divergence(policy_of(learner), teachers, played)}
        if len(games) > 1 and (step % own.eval_every == 0 or step == own.steps):
            point |= measure(policy_of(learner))
        curve.append(point)
        if step < own.steps:
            learner.step(played, teach(teachers, played, top_k=algorithm.teacher_top_k))
    first, last = curve[0]["divergence"], sum(point["divergence"] for point in curve[-LAST:]) / LAST
    metrics = {"divergence_first": first, "divergence_last": last, "divergence_fall": first / last}
    if len(games) > 1:
        return Record(metrics | {name: share for name, share in curve[-1].items() if name.startswith("norm")}, curve)
    ((family, teacher),) = teachers.items()
    goal, reached = measure.success(teacher, family), measure.success(policy_of(learner), family)
    floor = measure.floor[family]
    return Record(metrics | {"teacher": goal, "recovered": (reached - floor) / (goal - floor)}, curve)


def _merged(student: TinyGpt, experts: list[TinyGpt], arm: str) -> TinyGpt:
    """The student plus a coefficient times the sum of the experts' differences from it (task arithmetic)."""
    average, base = mean_weights(experts), student.state_dict()
    coefficient = 1 / len(experts) if arm == "average" else float(arm.removeprefix("arithmetic-"))
    scale = coefficient * len(experts)
    return with_weights({name: base[name] + scale * (average[name] - base[name]) for name in base})


def _family(rules: GameRules) -> str:
    return rules.deal(Random(0)).family


def _stagnation(records: Records) -> float:
    """How many times more of the divergence is left with the foreign teacher than with the one of the same origin."""
    foreign, same = (metric(records, arm, "divergence_last") for arm in ("foreign", "same-origin"))
    return foreign / same


EXPERIMENT = Experiment(
    name="opd-merge",
    claim=(
        "Experts that have drifted apart merge better by on-policy distillation than by mixed reinforcement or by "
        "arithmetic on weights, and the student's divergence from teachers of its own origin falls at least threefold."
    ),
    setting=(
        "Three families (`hop`, `find`, `count`), one student that imitated demonstrators of all three, and one expert "
        "per family and seed: 60 batches of 64 single rollouts of reinforcement on its family alone. The families have "
        "conflicting manners: the student may begin an answer with any of three words, each family counts only its "
        "own, and an expert, which never sees another family, makes its word a habit. Students learn from 60 batches "
        "of 63 trajectories, a third of each family, each taught by its family's expert. The normalised score is 0 for "
        "the student as it was and 1 for the family's own expert, averaged over families. The full divergence is "
        "measured over the whole vocabulary on the student's own rollouts; the last value is a mean of three batches. "
        "The arms with one teacher distil `hop` alone. Warm starts are shared by all seeds; experts are not."
    ),
    tried=(
        "Experts that stay close to their common ancestor average well: in a pilot with 18 batches each and one "
        "manner for all, the plain average was the best merge. Longer reinforcement and manners of their own are the "
        "drift that the claim speaks of.",
        "With 20 batches the student of distillation was still far from its teachers (normalised score 0.26 by "
        "sampled tokens, 0.43 by the likeliest ones, one seed), and with 40 still rising (0.59); it has 60.",
        "In the run with 40 batches top-k meant 8 of the 63 words, as in the pilot. On some seeds the full divergence "
        "then rose again, to 2 nats (fall 1.7 ± 1.5): these teachers are nearly certain, their 8 likeliest words hold "
        "all of their mass, but what the student puts on the other 55 has no gradient. With 32 words, or all, it fell. "
        "So the gate is on sampled tokens and on the whole vocabulary, and 8 words are an arm that shows the trap.",
        "Distillation uses the experts, which cost trajectories of their own; `mix-rl-total` gets those as well.",
    ),
    settings=OpdMergeExperiment,
    quick={"expert_steps": 12, "steps": 12, "eval_every": 6, "eval_episodes": 400},
    arms=(
        Arm("opd", "sampled tokens, the teacher's log-prob minus the student's as the advantage (`Opd`)"),
        Arm("mopd-full", "divergence over the whole vocabulary (`Mopd` with k = -1)"),
        Arm("mopd-top8", "divergence over the teacher's 8 likeliest tokens, with the correction term (`Mopd`)"),
        Arm("mix-rl", "reinforcement on all families, as many trajectories as the student of distillation has"),
        Arm("mix-rl-total", "the same, with the experts' trajectories added"),
        Arm("average", "mean of the experts' weights"),
        Arm("arithmetic-0.5", "student plus 0.5 times the sum of the experts' differences"),
        Arm("arithmetic-1", "student plus the sum of the experts' differences"),
        Arm("same-origin", "`hop` alone, whole vocabulary, from its expert"),
        Arm("foreign", "the same from an expert with other initial weights and another imitation"),
        Arm("foreign-top8", "as foreign, over the teacher's 8 likeliest tokens"),
    ),
    claims=(
        Claim(
            "The full divergence from same-origin teachers falls at least threefold by sampled tokens.",
            "first divergence / last, opd",
            level("divergence_fall", "opd"),
            above=3.0,
            gate=True,
        ),
        Claim(
            "And over the whole vocabulary.",
            "first divergence / last, mopd-full",
            level("divergence_fall", "mopd-full"),
            above=3.0,
            gate=True,
        ),
        Claim(
            "Distillation beats mixed reinforcement at equal student trajectories.",
            "normalised score, opd - mix-rl",
            difference("norm", "opd", "mix-rl"),
        ),
        Claim(
            "Also at equal total trajectories, the experts' included.",
            "normalised score, opd - mix-rl-total",
            difference("norm", "opd", "mix-rl-total"),
        ),
        Claim(
            "Distillation beats the average of weights.",
            "normalised score, opd - average",
            difference("norm", "opd", "average"),
        ),
        Claim(
            "Distillation beats task arithmetic.",
            "normalised score, opd - arithmetic-0.5",
            difference("norm", "opd", "arithmetic-0.5"),
        ),
        Claim(
            "The teacher's whole distribution teaches better than sampled tokens.",
            "normalised score, mopd-full - opd",
            difference("norm", "mopd-full", "opd"),
        ),
        Claim(
            "Too few of the teacher's likeliest tokens leave the student free elsewhere.",
            "last divergence, mopd-top8 - mopd-full",
            difference("divergence_last", "mopd-top8", "mopd-full"),
        ),
        Claim(
            "A foreign teacher stays farther away.",
            "last divergence, foreign / same origin",
            _stagnation,
            above=1.0,
        ),
        Claim(
            "A foreign teacher gives less of its own success.",
            "recovered share, same origin - foreign",
            difference("recovered", "same-origin", "foreign"),
        ),
    ),
    metrics={
        "norm": "normalised score",
        "norm_hop": "hop",
        "norm_find": "find",
        "norm_count": "count",
        "divergence_first": "first divergence",
        "divergence_last": "last divergence",
        "divergence_fall": "fall",
        "teacher": "teacher's success",
        "recovered": "recovered share",
    },
    panels=(
        Panel("step", "norm", "student updates", "normalised score"),
        Panel("step", "divergence", "student updates", "KL(student || teacher), nats per sampled token"),
    ),
    run=run,
    prepare=prepare,
    modules=(sys.modules[__name__], baselines, teaching, mopd, opd, hop_game, families),
)
