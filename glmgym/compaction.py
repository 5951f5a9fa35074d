"""Compaction as an action: when the context runs out, the policy writes a summary of it and goes on from there.

Owned here: when a summary is asked for and what it is asked. The summary is sampled by the policy like any other turn
and trained with it (CompactionRL, arXiv 2607.05378). What becomes of the context is ``glmgym.context``'s.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from glmgym.settings import Settings

SLOT = "{summary}"  # where the summary's own ids stand in the text that resumes


class CompactionSettings(Settings):
    """When and how a trajectory's context is compacted. Published values are those of CompactionRL, section 4.1."""

    reserve_tokens: int = Field(default=10_240, ge=1)  # a summary is asked for once fewer tokens than this remain
    max_compactions: int = Field(default=3, ge=1)  # per trajectory
    keep_pairs: int = Field(default=2, ge=0)  # latest turns kept with their observations; fewer if they do not fit
    max_summary_tokens: int = Field(default=2048, ge=1)  # sampled tokens of one summary; not disclosed, ours
    keep_task: bool = True  # not disclosed: ours keeps the task's text; false leaves it to the summary (equation 9)
    request: str = (  # what asks for the summary; the paper gives its topics, not its words
        "The context is nearly full and will be cut. Write a summary to go on from: the original goal, what was done, "
        "important observations, errors not yet solved, the current state, the next steps."
    )
    resume: str = "Work so far, in your own summary:\n{summary}"  # what the summary is put into; needs {summary} once

    @field_validator("resume")
    @classmethod
    def _one_slot(cls, value: str) -> str:
        if value.count(SLOT) != 1:
            raise ValueError(f"must hold {SLOT} exactly once, where the summary goes; it holds it {value.count(SLOT)}x")
        return value


def must_compact(limit: int, used: int, reserve: int) -> bool:
    """True when fewer than ``reserve`` of a context's ``limit`` tokens remain; strict (CompactionRL, equation 7)."""
    return limit - used < reserve
