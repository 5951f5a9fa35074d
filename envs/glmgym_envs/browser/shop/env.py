"""``Shop``: an offline web shop with a real backend, graded on its database and never on what a page says."""

from __future__ import annotations

from functools import partial

from glmgym.env import ScoreView, Task
from glmgym.trajectory import Reward
from glmgym_envs.browser.chromium import chromium
from glmgym_envs.browser.env import BrowserEnv
from glmgym_envs.browser.server import Server
from glmgym_envs.browser.session import Session
from glmgym_envs.browser.shop.catalogue import BY_ID
from glmgym_envs.browser.shop.pages import Site
from glmgym_envs.browser.shop.store import FIELDS, Line, Store
from glmgym_envs.browser.shop.tasks import ShopData, read_data


class Shop(BrowserEnv):
    """Buy exactly what is asked for in a small web shop, or answer a question about it."""

    _store: Store

    async def open_session(self, task: Task) -> tuple[Session, str]:
        session, self._store = await self.drive(_open(read_data(task), counted=self.counted))
        return session, task.instruction

    async def grade(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the shop's orders are exactly the one that was asked for (or none, and the answer is right)."""
        answer = self.answered if self.answered is not None else view.answer
        problems = await self.drive(_judge(read_data(view.task), self._store, answer))
        return (Reward("bought", float(not problems), reason="; ".join(problems)),)


async def _open(data: ShopData, *, counted: bool) -> tuple[Session, Store]:
    """A shop of its own, on the browser's loop: the database belongs to that thread."""
    store = Store()
    store.fill_cart("v1", [line.line() for line in data.cart])
    server = await Server.start(Site(store))
    on_close = partial(_shut, server, store)
    return await Session.open(chromium(), server.origin, "/", counted=counted, on_close=on_close), store


async def _judge(data: ShopData, store: Store, answer: str) -> list[str]:
    return wrong(data, store, answer)


async def _shut(server: Server, store: Store) -> None:
    await server.close()
    store.close()


def wrong(data: ShopData, store: Store, answer: str) -> list[str]:
    """What differs between the shop's database and what the task asks for, as sentences; nothing if it is right."""
    orders = store.orders()
    if data.answer:
        problems = ["something was ordered"] if orders else []
        return problems + (
            [] if _same_price(answer, data.answer) else [f"answered {answer[:60]!r}, not {data.answer!r}"]
        )
    if len(orders) != 1:
        return [f"there are {len(orders)} orders, not 1"]
    (order,) = orders
    wanted = {line.line() for line in data.lines}
    problems = [f"ordered {_name(line)}" for line in sorted(order["lines"] - wanted, key=_name)]
    problems += [f"did not order {_name(line)}" for line in sorted(wanted - order["lines"], key=_name)]
    expected = {**{field: data.address[field] for field in FIELDS}, "shipping": data.shipping, "coupon": data.coupon}
    return problems + [f"{k} is {order[k]!r}, not {v!r}" for k, v in expected.items() if order[k] != v]


def _name(line: Line) -> str:
    return f"{line.quantity} of {BY_ID[line.product_id].name} in {line.colour}"


def _same_price(answer: str, expected: str) -> bool:
    return answer.strip().rstrip(".").replace(" ", "").lstrip("$") == expected.lstrip("$")
