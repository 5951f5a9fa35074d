"""A reward that is a Python function of the episode."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from pydantic import Field

from glmgym.env import ScoreView
from glmgym.errors import BoundaryFailure, ConfigError, ScorerFailure, boundary, did_you_mean
from glmgym.rewards.component import Component, ComponentSettings
from glmgym.trajectory import Reward

Function = Callable[..., Any]  # (view, **options) -> a number, or a coroutine of one


class RuleSettings(ComponentSettings):
    """A Python function of the episode: ``def polite(view: ScoreView, **options) -> float``, or the same ``async``."""

    function: str  # "module:name"; the module is installed, or lies beside the environment's own file
    options: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of the function


class Rule(Component):
    """Calls the function; a plain one in a thread, so that a slow one holds up nobody.

    The version in the record is a digest of the function's source and options.
    """

    Settings = RuleSettings

    def __init__(self, settings: RuleSettings, function: Function | None = None) -> None:
        """``function`` stands in for the one that the settings name.

        Raises:
            ConfigError: the settings' function cannot be imported.
        """
        self.name = settings.name
        self.version = _version(function or find_function(settings.function), settings.options)
        self._settings = settings
        self._function = partial(function or find_function(settings.function), **settings.options)

    async def __call__(self, view: ScoreView) -> Reward:
        """Raises TypeError: the function returned something that is no number."""
        if inspect.iscoroutinefunction(self._function):
            value = await self._function(view)
        else:
            value = await asyncio.to_thread(self._function, view)
        if not isinstance(value, Real | np.bool_):
            raise TypeError(f"a reward is a number, {self._settings.function} returned {value!r}")
        return self._settings.reward(float(value), source="rule", version=self.version)


def rule(function: Function, *, name: str = "", weight: float = 1.0, shaping: bool = False) -> Rule:
    """A rule from a function at hand; its reward is called like the function."""
    settings = RuleSettings(
        name=name or function.__name__, weight=weight, shaping=shaping, function=function.__qualname__
    )
    return Rule(settings, function)


def find_function(target: str) -> Function:
    """The function that ``module:name`` means.

    Raises:
        ConfigError: no such form, module or function, or the module fails while it is imported.
    """
    module_name, _, name = target.partition(":")
    if not (module_name and name):
        raise ConfigError(f"function = {target!r}: must be 'module:name'")
    try:
        with boundary(ScorerFailure, f"function = {target!r}: import {module_name}"):
            module = importlib.import_module(module_name)
    except BoundaryFailure as failure:
        raise ConfigError(str(failure)) from failure.__cause__
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(f"function = {target!r}: {module_name} has no function {name!r}{did_you_mean(name, known)}")
    return function  # type: ignore[no-any-return]


def _version(function: Function, options: dict[str, Any]) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # built in, or typed at a prompt
        source = getattr(function, "__qualname__", repr(type(function)))
    return hashlib.sha256((source + json.dumps(options, sort_keys=True, default=str)).encode()).hexdigest()[:16]
