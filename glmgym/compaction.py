"""Compaction as an action: when the context runs out, the policy writes a summary of it and goes on from there.

Owned here: when a summary is asked for and what it is asked. The summary is sampled by the policy like any other turn
and trained with it (CompactionRL, arXiv 2607.05378).
"""

from __future__ import annotations

from pydantic import Field

from glmgym.settings import Settings


class CompactionSettings(Settings):
    """When and how a trajectory's context is compacted. Published values are those of CompactionRL, section 4.1."""

    reserve_tokens: int = Field(default=10_240, ge=1)  # a summary is asked for once fewer tokens than this remain
    max_compactions: int = Field(default=3, ge=1)  # per trajectory
    keep_pairs: int = Field(
        default=2, ge=0
    )  # latest turns kept verbatim with their observations; fewer if they don't fit
    max_summary_tokens: int = Field(default=2048, ge=1)  # sampled tokens of one summary; not disclosed, ours
    keep_task: bool = True  # not disclosed: ours keeps the task's text; false leaves it to the summary (equation 9)
    request: str = (  # what asks for the summary; the paper gives its topics, not its words
        "The context is nearly full and will be cut. Write a summary to go on from: the original goal, what was done, "
        "important observations, errors not yet solved, the current state, the next steps."
    )
    resume: str = "Work so far, in your own summary:\n{summary}"  # what the summary is put into; needs {summary} once
