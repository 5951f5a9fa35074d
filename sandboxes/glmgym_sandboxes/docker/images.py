"""Which image of the engine a box starts from: names of the image store, brought into the engine when needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.docker.engine import Engine
from glmgym_sandboxes.images import ImageMissing, ImageStore

DEFAULT_IMAGE = "base"


@dataclass(frozen=True, slots=True)
class EngineImage:
    """``id`` is the engine's, ``digest`` what a trajectory records: of the store's tar, or else the engine's id."""

    id: str
    digest: str


class Images:
    """Names, resolved once each: a name means the same image for as long as a provider lives."""

    def __init__(self, engine: Engine, store: ImageStore) -> None:
        self._engine = engine
        self._store = store
        self._found: dict[str, asyncio.Task[EngineImage]] = {}

    async def find(self, name: str) -> EngineImage:
        """The store's image of that name, brought into the engine if it is not there yet, or else the engine's own.

        Raises:
            ImpossibleBox: neither has it; the message lists what there is.
            EngineError: the engine cannot say, or cannot import it.
        """
        name = name or DEFAULT_IMAGE
        task = self._found.get(name)
        if task is None:
            task = self._found[name] = asyncio.create_task(self._find(name), name=f"image {name}")
        try:
            return await asyncio.shield(task)  # whoever gives up waiting does not take it from the others
        finally:
            if task.done() and (task.cancelled() or task.exception() is not None):
                self._found.pop(name, None)  # the next one looks again: it may have been built meanwhile

    async def _find(self, name: str) -> EngineImage:
        try:
            image = await asyncio.to_thread(self._store.find, name)
        except ImageMissing as missing:
            id = await self._engine.image_id(name)
            if id is None:
                names = ", ".join(await self._engine.image_names()) or "none"
                raise ImpossibleBox(f"{missing}; images of the container engine: {names}") from missing
            return EngineImage(id, id)
        id = await self._engine.image_id(image.tag)
        if id is None:
            id = await self._engine.import_image(image.tar, image.tag)
        return EngineImage(id, image.digest)

    async def close(self) -> None:
        for task in (tasks := list(self._found.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
