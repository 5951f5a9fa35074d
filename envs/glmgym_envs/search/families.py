"""Every family of questions, by corpus."""

from glmgym_envs.search import borders, kinds, references
from glmgym_envs.search.chain import Family

FAMILIES: tuple[Family, ...] = (*borders.FAMILIES, *kinds.FAMILIES, *references.FAMILIES)
