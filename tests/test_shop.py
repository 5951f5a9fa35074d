"""The web shop: its rules, its pages, its tasks, and a grade taken from the database alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from browser_site import browser_works, needs_browser

from glmgym.check import check, play
from glmgym.env import Task
from glmgym.messages import ToolCall, assistant
from glmgym_envs.browser import SHOP, Shop
from glmgym_envs.browser.server import Request, Response
from glmgym_envs.browser.shop.catalogue import BY_ID, CATEGORIES, PRODUCTS, money
from glmgym_envs.browser.shop.env import wrong
from glmgym_envs.browser.shop.pages import Site
from glmgym_envs.browser.shop.store import Line, Refused, Store
from glmgym_envs.browser.shop.tasks import FAMILIES, LineData, ShopData, make

__all__ = ["browser_works"]  # a fixture

ADDRESS = {"name": "Ada Olsen", "street": "Mill Lane 3", "city": "Lund", "postcode": "12345", "country": "Sweden"}
FORM = {**ADDRESS, "shipping": "standard", "terms": "yes"}
LAMP = PRODUCTS[0]


def _line(quantity: int = 2, product: int = LAMP.id, colour: str = "") -> Line:
    return Line(product, colour or BY_ID[product].colours[0], quantity)


def _data(**changes: Any) -> ShopData:
    line = LineData(product_id=LAMP.id, colour=LAMP.colours[0], quantity=2)
    return ShopData(lines=[line], address=ADDRESS).model_copy(update=changes)


def test_the_catalogue_has_unique_names_and_a_best_of_each_kind() -> None:
    assert len(PRODUCTS) == 72
    assert len({product.name for product in PRODUCTS}) == 72
    for category in CATEGORIES:
        of_kind = [product for product in PRODUCTS if product.category == category]
        assert len({product.price_cents for product in of_kind}) == len({p.rating for p in of_kind}) == 9


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (_line(0), "at least 1"),
        (_line(10), "At most 9"),
        (Line(LAMP.id, "pink", 1), "Choose a colour"),
        (Line(LAMP.id, "", 1), "Choose a colour"),
        (Line(999, "red", 1), "no such product"),
    ],
)
def test_what_cannot_be_put_into_a_cart(line: Line, said: str) -> None:
    store = Store()
    with pytest.raises(Refused, match=said):
        store.put("v1", line, add=True)
    assert store.cart("v1") == []


def test_a_cart_adds_up_to_its_bound_and_zero_removes() -> None:
    store = Store()
    store.put("v1", _line(4), add=True)
    store.put("v1", _line(5), add=True)
    assert store.cart("v1") == [_line(9)]
    with pytest.raises(Refused, match="At most 9"):
        store.put("v1", _line(1), add=True)
    store.put("v1", _line(3), add=False)
    assert store.cart("v1") == [_line(3)]
    assert store.cart("v2") == []
    store.put("v1", _line(0), add=False)
    assert store.cart("v1") == []


def test_an_order_is_paid_by_hand_counted_cents() -> None:
    """Two lamps, 10 % off the goods, rounded down, and express shipping of 12.95."""
    store = Store()
    store.put("v1", _line(2), add=True)
    store.set_coupon("v1", "SPRING10")
    with pytest.raises(Refused, match="NOPE is not valid"):
        store.set_coupon("v1", "NOPE")
    number = store.buy("v1", {**FORM, "shipping": "express"})
    (order,) = store.orders()
    goods = 2 * LAMP.price_cents
    assert order["total_cents"] == goods - goods // 10 + 1295
    assert (order["id"], order["coupon"], order["lines"]) == (number, "SPRING10", {_line(2)})
    row = store.product(LAMP.id)
    assert row is not None
    assert row["stock"] == LAMP.stock - 2
    with pytest.raises(Refused, match="empty"):
        store.buy("v1", FORM)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "  "}, "name"),
        ({"postcode": "123"}, "postcode"),
        ({"postcode": "123456"}, "postcode"),
        ({"postcode": "12a45"}, "postcode"),
        ({"country": "Atlantis"}, "country"),
        ({"shipping": "rocket"}, "shipping"),
        ({"terms": ""}, "terms"),
    ],
)
def test_a_form_is_checked_field_by_field(changes: dict[str, str], field: str) -> None:
    store = Store()
    assert store.problems(FORM) == {}
    assert store.problems({**FORM, "postcode": "1234"}) == {}
    assert set(store.problems({**FORM, **changes})) == {field}


def _twice(store: Store) -> None:
    store.put("v1", _line(1), add=True)
    store.buy("v1", FORM)


@pytest.mark.parametrize(
    ("lines", "form", "more", "said"),
    [
        ([_line(2)], {}, None, []),
        ([], {}, None, ["there are 0 orders, not 1"]),
        ([_line(2)], {}, _twice, ["there are 2 orders, not 1"]),
        ([_line(3)], {}, None, [f"ordered 3 of {LAMP.name}", f"did not order 2 of {LAMP.name}"]),
        ([_line(2), _line(1, 5)], {}, None, [f"ordered 1 of {BY_ID[5].name}"]),
        ([_line(2, colour=LAMP.colours[1])], {}, None, ["ordered 2", "did not order 2"]),
        ([_line(2)], {"city": "lund"}, None, ["city is 'lund', not 'Lund'"]),
        ([_line(2)], {"shipping": "express"}, None, ["shipping is 'express', not 'standard'"]),
        ([_line(2)], {"country": "Spain"}, None, ["country is 'Spain', not 'Sweden'"]),
        ([_line(2)], {"coupon": "BULK20"}, None, ["coupon is 'BULK20', not ''"]),
    ],
)
def test_the_database_decides(
    lines: list[Line], form: dict[str, str], more: Callable[[Store], None] | None, said: list[str]
) -> None:
    store = Store()
    store.fill_cart("v1", lines)
    if "coupon" in form:
        store.set_coupon("v1", form["coupon"])
    if lines:
        store.buy("v1", {**FORM, **form})
    if more is not None:
        more(store)
    problems = wrong(_data(), store, "I have ordered everything, reward 1")
    assert len(problems) == len(said)
    assert all(start in problem for start, problem in zip(said, problems, strict=True))


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("$12.50", True), ("12.50", True), (" $ 12.50. ", True), ("$12.5", False), ("", False), ("$112.50", False)],
)
def test_a_question_wants_the_answer_and_no_order(answer: str, is_right: bool) -> None:
    data = ShopData(answer="$12.50")
    store = Store()
    assert (wrong(data, store, answer) == []) is is_right
    _twice(store)
    assert "something was ordered" in wrong(data, store, answer)


async def _get(site: Site, path: str, visitor: str = "v1", **query: str) -> str:
    return (await site(Request("GET", path, query, cookies={"visitor": visitor}))).body.decode()


async def test_pages_escape_what_a_customer_wrote_and_sql_is_never_built_from_it() -> None:
    site = Site(Store())
    page = await _get(site, "/search", q="<script>alert(1)</script>'")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "0 products" in page
    assert "0 products" in await _get(site, "/search", q="%")
    assert "0 products" in await _get(site, "/search", q="' OR 1=1 --")
    assert "72 products" in await _get(site, "/search", sort="price; DROP TABLE product", max="x", page="0")


async def test_nobody_sees_anothers_order_and_a_strange_request_is_answered() -> None:
    store = Store()
    _twice(store)
    site = Site(store)
    assert "Mill Lane 3" in await _get(site, "/order/1", "v1")
    assert "You have no such order" in await _get(site, "/order/1", "v2")

    async def post(path: str, **form: str) -> Response:
        return await site(Request("POST", path, form=form, cookies={"visitor": "v1"}))

    assert (await post("/nowhere")).status == 404
    assert (await post("/cart/add", product="1", quantity="-1", colour="red")).status == 400
    assert (await post("/cart/add", product="9" * 50, quantity="1")).status == 400
    assert (await post("/checkout", **FORM)).status == 400  # the cart is empty
    store.put("v1", _line(1), add=True)
    answer = await post("/checkout", **{**FORM, "postcode": "1"})
    assert answer.status == 422
    assert b"A postcode has 4 or 5 digits." in answer.body
    assert len(store.orders()) == 1


def test_every_task_has_one_solution() -> None:
    """Counted again from the catalogue: the cheapest and the best-rated of what the instruction says."""
    rng = random.Random(0)
    seen: Counter[str] = Counter()
    for _ in range(400):
        task = make(rng)
        seen[task.family] += 1
        data = ShopData.model_validate(task.data)
        if task.family == "price":
            (product,) = [p for p in PRODUCTS if p.name in task.instruction]
            assert data.answer == money(product.price_cents)
            continue
        assert all(line.colour in BY_ID[line.product_id].colours for line in data.lines)
        assert len({(line.product_id, line.colour) for line in data.lines}) == len(data.lines)
        assert Store().problems({**data.address, "shipping": data.shipping, "terms": "yes"}) == {}
        chosen = BY_ID[data.lines[0].product_id]
        rivals = [p for p in PRODUCTS if p.category == chosen.category and p is not chosen]
        if task.family == "cheapest":
            fitting = [p for p in rivals if data.lines[0].colour in p.colours]
            assert all(p.price_cents > chosen.price_cents for p in fitting)
        if task.family == "best-rated":
            limit = int(task.instruction.split("at most $")[1].split(" ")[0]) * 100
            assert chosen.price_cents <= limit
            assert all(p.rating < chosen.rating for p in rivals if p.price_cents <= limit)
    assert set(seen) == set(FAMILIES)


def test_there_are_enough_tasks_and_the_held_out_ones_are_distinct() -> None:
    held_out = [SHOP.tasks.task("heldout", i) for i in range(SHOP.tasks.size("heldout"))]
    assert len({task.instruction for task in held_out}) == len(held_out) == 256


@needs_browser
async def test_the_suite_is_sound() -> None:
    """Oracle 1, doing nothing 0, twice, the same reset: one task of each split."""
    report = await check(SHOP, None, tasks=1)
    assert report.problems == ()
    assert report.episodes == 12


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_the_expert_solves_each_family(family: str) -> None:
    index = next(i for i in range(256) if SHOP.tasks.task("heldout", i).family == family)
    task = SHOP.tasks.task("heldout", index)
    assert SHOP.oracle is not None
    turns = await asyncio.to_thread(SHOP.oracle, task)
    assert len(turns) <= SHOP.max_turns
    episode = await play(SHOP, task, turns, None)
    assert episode.outcome == 1.0, episode.rewards
    assert (await play(SHOP, task, turns[:-2], None)).outcome == 0.0  # the order is not placed, the answer not given


@needs_browser
async def test_a_wrong_form_is_shown_and_the_claim_of_success_is_worth_nothing() -> None:
    task = Task("one", "Order 2.", _data(cart=_data().lines).model_dump())
    turns = [assistant("", ToolCall("call_0", "goto", {"path": "/checkout"}))]
    env = Shop()
    await env.reset(task, None)
    await env.step(turns[0])
    turns.append(assistant("", ToolCall("call_0", "click", {"id": env.view.find("button", "Place order").id})))
    step = await env.step(turns[-1])
    assert "This field is required." in step.observation[0].content
    await env.close()
    episode = await play(SHOP, task, [*turns, assistant("Order 1 is placed. Thank you!")], None)
    assert episode.outcome == 0.0
    assert episode.rewards[0].reason == "there are 0 orders, not 1"
