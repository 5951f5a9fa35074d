"""The view that teachers have of a student's tokens, and the divergence of a student from its teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from glmgym.scoring import TeacherScore
from glmgym.trajectory import Trajectory
from glmgym_trainers.proving.gpt import TinyGpt
from glmgym_trainers.proving.words import PAD


@torch.no_grad()
def teach(
    teachers: Mapping[str, TinyGpt], trajectories: Sequence[Trajectory], *, top_k: int = 0
) -> dict[tuple[str, int], TeacherScore]:
    """The scores that each trajectory's own teacher gives, by trajectory id and segment index.

    Args:
        teachers: by domain; a trajectory of another domain is a KeyError, there is no default.
        top_k: of the teacher's likeliest tokens to name at each position; 0 for none, -1 for the whole vocabulary.
    """
    scores = {}
    for domain in dict.fromkeys(each.domain for each in trajectories):
        own = [each for each in trajectories if each.domain == domain]
        keys = [(each.id, index) for each in own for index in range(len(each.segments))]
        ids = [segment.token_ids for each in own for segment in each.segments]
        about = _next_logprobs(teachers[domain], ids)
        for key, tokens, row in zip(keys, ids, about, strict=True):
            row = row[: len(tokens)]
            chosen = row.gather(1, torch.from_numpy(tokens.astype(np.int64))[:, None])[:, 0]
            best = row.topk(top_k if top_k > 0 else row.shape[1]) if top_k else None
            scores[key] = TeacherScore(
                domain,
                chosen.numpy(),
                None if best is None else best.indices.numpy().astype(np.int32),
                None if best is None else best.values.numpy(),
            )
    return scores


@torch.no_grad()
def divergence(student: TinyGpt, teachers: Mapping[str, TinyGpt], trajectories: Sequence[Trajectory]) -> float:
    """Mean over sampled tokens of KL(student || teacher), over the whole vocabulary, in nats."""
    total, count = 0.0, 0
    for domain in dict.fromkeys(each.domain for each in trajectories):
        segments = [s for each in trajectories if each.domain == domain for s in each.segments]
        ids = [segment.token_ids for segment in segments]
        ours, theirs = _next_logprobs(student, ids), _next_logprobs(teachers[domain], ids)
        per_token = (ours.exp() * (ours - theirs)).sum(-1)
        for segment, row in zip(segments, per_token, strict=True):
            mask = torch.from_numpy(segment.sampled_mask)
            total += float(row[: len(segment)][mask].sum())
            count += segment.num_sampled
    return total / count


def _next_logprobs(model: TinyGpt, texts: Sequence[np.ndarray]) -> Tensor:
    """[B, T, V] nats: entry p is about token p given all before it; entry 0 has no prefix and means nothing."""
    ids = np.full((len(texts), max(map(len, texts))), PAD)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    logprobs = model(torch.from_numpy(ids)).log_softmax(-1)
    return torch.cat((torch.zeros_like(logprobs[:, :1]), logprobs[:, :-1]), dim=1)
