"""Log-probs of chosen tokens, forward and backward: memory and time of ours, the naive path, TRL's and liger's.

    python benchmarks/trainer.py [--json]

Every variant computes the same policy-gradient step (advantage 1 on each token) from the same hidden states, in a
process of its own, in rounds so that a busy moment of the machine hits all alike. Reported are the growth of resident
memory at the peak, the best wall time and the processor time of that run. The gradients must agree. TRL and
liger-kernel run from their own packages, installed on the first run into a virtual environment beside this
repository's, on the same torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import report
from torch import Tensor

VOCAB, ROWS, TOKENS, HIDDEN = 151_552, 4, 512, 256
ROUNDS = 3
THREADS = 2
PEERS = ("trl==1.16.0", "liger-kernel==0.8.5")
PEERS_VENV = Path(__file__).resolve().parents[1] / ".cache" / "bench-venvs" / "trainer"
TARGETS = {"peak_vs_naive": (0.1, "max"), "peak_vs_liger": (1.0, "max"), "time_vs_naive": (1.15, "max")}

# A step takes hidden [B, T, H], weight [V, H] and targets [B, T], and returns the loss, ready for backward.
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive() -> Step:
    def step(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = hidden @ weight.T
        return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()

    return step


def trl() -> Step:
    from trl.trainer.utils import selective_log_softmax

    def step(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = hidden @ weight.T
        return -selective_log_softmax(logits, targets).mean()

    return step


def liger(chunk_size: int) -> Step:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    # On-policy and without a reference its objective is the plain policy gradient.
    loss = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, chunk_size=chunk_size)

    def step(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = loss(hidden, weight, targets, torch.ones(targets.shape), torch.ones(len(targets)))[0]
        return out

    return step


def ours() -> Step:
    from glmgym_trainers.token_logprobs import token_logprobs

    def step(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return -token_logprobs(hidden.flatten(0, 1), weight, targets.flatten()).mean()

    return step


VARIANTS: dict[str, Callable[[], Step]] = {
    "naive": naive,
    "trl": trl,
    "liger": lambda: liger(chunk_size=1),  # its default: one row at a time
    "liger_whole": lambda: liger(chunk_size=ROWS),
    "ours": ours,
}


def measure(make_step: Callable[[], Step]) -> dict[str, float]:
    """Run one variant in this process: peak growth of resident memory in MiB, seconds, gradient norms."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    step = make_step()
    hidden = torch.randn(ROWS, TOKENS, HIDDEN, requires_grad=True)
    weight = (torch.randn(VOCAB, HIDDEN) * 0.05).requires_grad_()
    targets = torch.randint(VOCAB, (ROWS, TOKENS))
    small = torch.randn(1, 2, HIDDEN, requires_grad=True)
    step(small, weight[:64].detach().requires_grad_(), targets[:1, :2] % 64).backward()  # threads and libraries are up
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark restarts at the present size
    before = _status_mib("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    step(hidden, weight, targets).backward()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = _status_mib("VmHWM") - before
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "peak_mib": peak,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "hidden_grad_norm": float(hidden.grad.norm()),
        "weight_grad_norm": float(weight.grad.norm()),
    }


def run_variant(name: str, python: Path | str) -> dict[str, float]:
    """``measure`` in a fresh process."""
    env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"}
    command = [str(python), str(Path(__file__).resolve()), "--variant", name]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def peers_python(venv: Path) -> Path:
    """The interpreter that has the peers, and below them everything this one has, torch included."""
    python = venv / "bin" / "python"
    if not (venv / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        paths = sysconfig.get_paths(vars={"base": str(venv), "platbase": str(venv)})
        (Path(paths["purelib"]) / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PEERS], check=True, stdout=sys.stderr)
        (venv / "ready").touch()
    return python


def _status_mib(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peers", type=Path, default=PEERS_VENV, help="virtual environment of the compared packages")
    parser.add_argument("--variant", choices=VARIANTS, help="measure one variant in this process and print it")
    args = parser.parse_args()
    if args.variant:
        print(json.dumps(measure(VARIANTS[args.variant])))
        return 0
    peers = peers_python(args.peers)
    rounds = [
        {name: run_variant(name, sys.executable if name in ("naive", "ours") else peers) for name in VARIANTS}
        for _ in range(ROUNDS)
    ]
    runs = {name: min((round[name] for round in rounds), key=lambda run: run["seconds"]) for name in VARIANTS}
    for name, run in runs.items():
        run["peak_mib"] = max(round[name]["peak_mib"] for round in rounds)
    for name, run in runs.items():
        for norm in ("hidden_grad_norm", "weight_grad_norm"):
            if abs(run[norm] / runs["naive"][norm] - 1) > 1e-4:
                raise SystemExit(f"{name} computes something else: {norm} {run[norm]}, naive {runs['naive'][norm]}")
    measured = {
        f"{name}_{key}": run[key] for name, run in runs.items() for key in ("peak_mib", "seconds", "cpu_seconds")
    }
    measured["peak_vs_naive"] = runs["ours"]["peak_mib"] / runs["naive"]["peak_mib"]
    measured["peak_vs_liger"] = runs["ours"]["peak_mib"] / min(runs[k]["peak_mib"] for k in ("liger", "liger_whole"))
    measured["time_vs_naive"] = runs["ours"]["seconds"] / runs["naive"]["seconds"]
    return report(measured, TARGETS, args.json)


if __name__ == "__main__":
    sys.exit(main())
