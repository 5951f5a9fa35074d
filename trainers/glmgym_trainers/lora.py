"""Low-rank adapters on the policy (LoRA, arXiv 2106.09685) through peft: only they train, the base stays as it was.

Owned here: where adapters sit, and how the policy looks without them. Everything outside the learner (engines,
checkpoints, teachers) sees a plain transformers model with the adapters merged in.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from glmgym.errors import ConfigError
from glmgym_trainers.freezing import ALWAYS_FROZEN


def add_adapters(model: Any, *, rank: int, alpha: int, targets: Sequence[str]) -> None:
    """Put an adapter of ``rank``, counting ``alpha / rank``, beside every linear layer whose name holds a target.

    In place. The adapters start at a product of 0, so the policy is the same; the other parameters stop training.
    Routed experts are no linear layers but stacks of matrices, and stay as they are.

    Raises:
        ConfigError: peft is not installed, or a target matches no linear layer of this architecture.
    """
    try:
        from peft import LoraConfig
        from peft.tuners.lora import Linear as AdaptedLinear
    except ImportError as error:
        raise ConfigError(f"[policy] lora_rank={rank} needs peft: pip install 'glmgym[lora]' ({error})") from error
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not model.get_output_embeddings()  # its weight is read as a matrix, past any adapter
        and not any(part in name for part in ALWAYS_FROZEN)
    }
    for target in targets:
        if not any(target in name for name in linear):
            nearby = next(iter(linear))
            raise ConfigError(
                f"[policy] lora_targets: {target!r} is in no linear layer; they are called like {nearby!r}"
            )
    model.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=alpha)
    for name, module in linear.items():
        if any(target in name for target in targets):
            # One by one: peft's own search by name moves targets to the experts where a model has some.
            _replace(model, name, AdaptedLinear(module, "default", config, r=rank, lora_alpha=alpha))


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' weights by parameter name; empty without adapters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if ".lora_" in name}


def load_adapters(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Set the adapters' weights to what ``adapter_state`` returned, exactly."""
    parameters = dict(model.named_parameters())
    for name, tensor in state.items():
        parameters[name].data.copy_(tensor)


def merged(model: Any) -> Any:
    """The model as transformers knows it: itself without adapters, else a copy with them merged into the weights."""
    if not adapter_state(model):
        return model
    twin = copy.deepcopy(model)
    for name, module in list(twin.named_modules()):
        if hasattr(module, "lora_A"):
            module.merge()
            _replace(twin, name, module.get_base_layer())
    return twin


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
