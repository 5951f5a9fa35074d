"""The published reports: intervals follow from their own numbers, gates hold, and the index repeats them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from glmgym_trainers.proving.experiments import EXPERIMENTS
from glmgym_trainers.proving.statistics import interval, verdict

DOCS = Path(__file__).parents[1] / "docs" / "proving_ground"
INDEX = (DOCS / "README.md").read_text()


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / name / "results.json").read_text())
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_published_run_is_a_whole_one(name: str) -> None:
    """At least five paired seeds, at least 400 episodes an evaluation, every arm, the settings of today."""
    found = results(name)
    assert not found["quick"]
    assert len(found["cells"]) >= 5
    experiment = EXPERIMENTS[name]
    assert all(set(cell) == {arm.name for arm in experiment.arms} for cell in found["cells"].values())
    assert found["settings"] == experiment.settings().model_dump(mode="json")
    assert found["settings"].get("eval_episodes", found["settings"].get("held_out")) >= 400
    assert (DOCS / name / "plot.png").is_file()
    assert experiment.claim in (DOCS / name / "report.md").read_text()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_published_verdicts_follow_from_the_published_numbers(name: str) -> None:
    found = results(name)
    claims = {claim.measure: claim for claim in EXPERIMENTS[name].claims}
    assert [each["measure"] for each in found["claims"]] == list(claims)
    for each in found["claims"]:
        again = interval(each["per_seed"])
        assert [again.mean, again.low, again.high] == pytest.approx([each["mean"], *each["interval"]])
        assert verdict(again, above=each["border"]) == each["holds"]
        assert (each["border"], each["gate"]) == (claims[each["measure"]].above, claims[each["measure"]].gate)
        assert each["holds"] == "yes" or not each["gate"]


def test_the_index_repeats_every_claim_with_its_verdict() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\([\w-]+/report\.md\) \| (.+?) \| (.+?) \| (\S+) \|$", INDEX, re.MULTILINE)
    written = [(name, says.removeprefix("**gate** "), number, holds) for name, says, number, holds in rows]
    expected = [
        (name, each["says"], _number(each), each["holds"]) for name in EXPERIMENTS for each in results(name)["claims"]
    ]
    assert written == expected


def _number(claim: dict[str, Any]) -> str:
    low, high = claim["interval"]
    return f"{claim['mean']:+.3f} ({low:+.3f} to {high:+.3f})"


def test_the_readme_counts_the_gates() -> None:
    gates = [claim for name in EXPERIMENTS for claim in results(name)["claims"] if claim["gate"]]
    assert len(gates) == 8
    assert "All eight gates hold." in (DOCS.parents[1] / "README.md").read_text()
