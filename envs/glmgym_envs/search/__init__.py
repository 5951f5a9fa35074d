"""Multi-hop questions over a real corpus: ``search-mini-v0`` ships whole, ``search-v0`` wants its corpus built once."""

from functools import partial

from glmgym.registry import register
from glmgym_envs.search.env import MAX_TURNS, Asking, SearchEnv
from glmgym_envs.search.expert import oracle
from glmgym_envs.search.library import Library, built_library, mini_library
from glmgym_envs.search.questions import shipped_questions

__all__ = ["MINI", "SEARCH", "Asking", "Library", "SearchEnv"]

_MINI, _BUILT = mini_library(), built_library()

MINI = register(
    "search-mini-v0",
    partial(SearchEnv, _MINI),
    tasks=shipped_questions("search-mini-v0"),
    oracle=partial(oracle, _MINI),
    max_turns=MAX_TURNS,
    description="Multi-hop questions over country facts and WordNet; ships with its corpus.",
)

SEARCH = register(
    "search-v0",
    partial(SearchEnv, _BUILT),
    tasks=shipped_questions("search-v0"),
    oracle=partial(oracle, _BUILT),
    max_turns=MAX_TURNS,
    description="Multi-hop questions over manuals, WordNet and countries; first: python -m glmgym_envs.search build.",
)
