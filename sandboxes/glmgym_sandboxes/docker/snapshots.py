"""Images made of running boxes, for siblings to start from. Owns their end: none outlives the boxes made of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

from glmgym.owner import Owner
from glmgym_sandboxes.docker.engine import Engine, EngineError

IN_USE = 409


class Snapshots:
    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._repository = f"glmgym/fork-{owner}"  # where ``glmgym gc`` looks for what a killed process left
        self._numbers = itertools.count(1)
        self._dropped: list[str] = []  # nothing more will start from them, and something may still run on them

    @contextlib.asynccontextmanager
    async def taken(self, container: str) -> AsyncIterator[str]:
        """The id of an image of a container's root as it is now; dropped on leaving.

        Raises:
            EngineError: the engine could not make it.
        """
        image = await self._engine.commit(container, self._repository, str(next(self._numbers)))
        try:
            yield image
        finally:
            self._dropped.append(image)
            await self.sweep()

    async def sweep(self) -> None:
        """Remove the dropped images on which nothing runs any more, the newest first: it may be made of another."""
        for image in reversed(self._dropped.copy()):
            try:
                await self._engine.remove_image(image)
            except EngineError as error:
                if error.status == IN_USE:
                    continue
                raise
            with contextlib.suppress(ValueError):  # another sweep was faster
                self._dropped.remove(image)
