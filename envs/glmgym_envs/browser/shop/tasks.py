"""Shop tasks of seven families, each with one right outcome, and the expert that reaches it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

from pydantic import Field

from glmgym.env import Task
from glmgym.settings import Settings, parse_settings
from glmgym_envs.browser.env import Act, Expert
from glmgym_envs.browser.observe import View
from glmgym_envs.browser.shop.catalogue import (
    BY_ID,
    CATEGORIES,
    COUNTRIES,
    COUPONS,
    PRODUCTS,
    SHIPPING,
    Product,
    money,
)
from glmgym_envs.browser.shop.pages import LABELS
from glmgym_envs.browser.shop.store import Line

Play = Generator[Act, View, str]

_FIRST = ("Ada", "Boris", "Carla", "Dario", "Elin", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Luis")
_LAST = ("Keller", "Marin", "Novak", "Olsen", "Petit", "Quinn", "Rossi", "Sander", "Toth", "Urban", "Vidal", "Weber")
_STREETS = ("Mill Lane", "Harbour Road", "Linden Street", "Station Square", "Church Hill", "Garden Way")
_CITIES = ("Aalen", "Brno", "Cork", "Dijon", "Evora", "Ghent", "Lund", "Parma", "Turku", "Vigo")


class LineData(Settings):
    product_id: int
    colour: str
    quantity: int

    def line(self) -> Line:
        return Line(self.product_id, self.colour, self.quantity)


class ShopData(Settings):
    """``Task.data`` of a shop task: the one order there must be at the end, or the answer and no order at all."""

    lines: list[LineData] = Field(default_factory=list)
    address: dict[str, str] = Field(default_factory=dict)  # name, street, city, postcode, country
    shipping: str = "standard"
    coupon: str = ""
    cart: list[LineData] = Field(default_factory=list)  # what lies in the cart at the start
    answer: str = ""  # not empty: a question


def read_data(task: Task) -> ShopData:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(ShopData, task.data, where=f"task {task.id}")


def make(rng: random.Random) -> Task:
    """One task of a random family."""
    name = rng.choice(sorted(FAMILIES))
    what, data = FAMILIES[name](rng)
    if not data.answer:
        address = _address(rng)
        shipping = rng.choice(sorted(SHIPPING))
        data = data.model_copy(update={"address": address, "shipping": shipping})
        where = "{name}, {street}, {postcode} {city}, {country}".format(**address)
        what = f"{what} Check out with {shipping} shipping to {where}."
    return Task(instruction=what, data=data.model_dump(), family=name, domain="browser")


def expert(task: Task) -> Expert:
    """Find each product by its name, set the cart right, check out."""
    data = read_data(task)

    def play(goal: str, view: View) -> Play:
        if data.answer:
            yield from _look_up(goal, data, view)
            return data.answer
        have = {(line.product_id, line.colour): line.quantity for line in data.cart}
        want = {(line.product_id, line.colour): line.quantity for line in data.lines}
        for (product_id, colour), quantity in want.items():
            if (product_id, colour) not in have:
                view = yield from _open_product(BY_ID[product_id], view)
                view = yield "select", {"id": view.find("combobox").id, "option": colour}
                view = yield "fill", {"id": view.find("spinbutton").id, "text": str(quantity)}
                view = yield _click(view, "button", "Add to cart")
        if data.cart:
            view = yield "goto", {"path": "/cart"}
        for (product_id, colour), quantity in have.items():
            title = f"{BY_ID[product_id].name} ({colour})"
            wanted = want.get((product_id, colour), 0)
            if wanted == 0:
                view = yield _click(view, "button", f"Remove {title}")
            elif wanted != quantity:
                box = view.find("spinbutton", f"Quantity of {title}")
                view = yield "fill", {"id": box.id, "text": str(wanted)}
                view = yield _click(view, "button", f"Update {title}")
        if data.coupon:
            view = yield "fill", {"id": view.find("textbox", "Coupon code").id, "text": data.coupon}
            view = yield _click(view, "button", "Apply coupon")
        view = yield _click(view, "link", "Check out")
        for field, label in LABELS.items():
            view = yield "fill", {"id": view.find("textbox", label).id, "text": data.address[field]}
        view = yield "select", {"id": view.find("combobox").id, "option": data.address["country"]}
        view = yield "click", {"id": view.find("radio", contains=data.shipping.title()).id}
        view = yield _click(view, "checkbox", "I accept the terms")
        view = yield _click(view, "button", "Place order")
        return "done"

    return play


def _look_up(goal: str, data: ShopData, view: View) -> Generator[Act, View, None]:
    named = next(product for product in PRODUCTS if product.name in goal)
    view = yield from _open_product(named, view)
    view.find("text", data.answer)


def _open_product(product: Product, view: View) -> Generator[Act, View, View]:
    view = yield "fill", {"id": view.find("textbox").id, "text": product.name}
    view = yield _click(view, "button", "Search")
    return (yield _click(view, "link", product.name))


def _click(view: View, role: str, name: str) -> Act:
    return "click", {"id": view.find(role, name).id}


def _address(rng: random.Random) -> dict[str, str]:
    return {
        "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "street": f"{rng.choice(_STREETS)} {rng.randint(1, 99)}",
        "city": rng.choice(_CITIES),
        "postcode": str(rng.randint(1000, 99999)),
        "country": rng.choice(COUNTRIES),
    }


def _pick(rng: random.Random, product: Product, most: int = 4) -> LineData:
    return LineData(product_id=product.id, colour=rng.choice(product.colours), quantity=rng.randint(1, most))


def _say(line: LineData) -> str:
    return f"{line.quantity} of the {BY_ID[line.product_id].name} in {line.colour}"


def _buy(rng: random.Random) -> tuple[str, ShopData]:
    line = _pick(rng, rng.choice(PRODUCTS))
    return f"Order {_say(line)}.", ShopData(lines=[line])


def _basket(rng: random.Random) -> tuple[str, ShopData]:
    lines = [_pick(rng, product) for product in rng.sample(PRODUCTS, rng.randint(2, 3))]
    return f"Order, all in one order: {'; '.join(map(_say, lines))}.", ShopData(lines=lines)


def _coupon(rng: random.Random) -> tuple[str, ShopData]:
    line, code = _pick(rng, rng.choice(PRODUCTS)), rng.choice(sorted(COUPONS))
    return f"Order {_say(line)}, using the coupon code {code}.", ShopData(lines=[line], coupon=code)


def _cheapest(rng: random.Random) -> tuple[str, ShopData]:
    category = rng.choice(CATEGORIES)
    colour = rng.choice([c for p in PRODUCTS if p.category == category for c in p.colours])
    fitting = [p for p in PRODUCTS if p.category == category and colour in p.colours]
    best = min(fitting, key=lambda product: product.price_cents)
    line = LineData(product_id=best.id, colour=colour, quantity=rng.randint(1, 3))
    what = f"Order {line.quantity} of the cheapest product in {category} that comes in {colour}, in {colour}."
    return what, ShopData(lines=[line])


def _best_rated(rng: random.Random) -> tuple[str, ShopData]:
    category = rng.choice(CATEGORIES)
    prices = sorted(p.price_cents for p in PRODUCTS if p.category == category)
    limit = rng.choice(prices[2:]) // 100 + 1  # dollars; at least three products cost less
    fitting = [p for p in PRODUCTS if p.category == category and p.price_cents <= limit * 100]
    line = _pick(rng, max(fitting, key=lambda product: product.rating))
    what = f"Order {line.quantity} of the best-rated product in {category} for at most ${limit} each, in {line.colour}."
    return what, ShopData(lines=[line])


def _fix_cart(rng: random.Random) -> tuple[str, ShopData]:
    cart = [_pick(rng, product, 3) for product in rng.sample(PRODUCTS, 3)]
    gone, changed, kept = cart
    quantity = rng.choice([n for n in range(1, 7) if n != changed.quantity])
    lines = [changed.model_copy(update={"quantity": quantity}), kept]
    what = (
        f"There are three products in your cart. Take the {BY_ID[gone.product_id].name} out, change the "
        f"{BY_ID[changed.product_id].name} to {quantity}, leave the rest, and order it."
    )
    return what, ShopData(lines=lines, cart=cart)


def _price_of(rng: random.Random) -> tuple[str, ShopData]:
    product = rng.choice(PRODUCTS)
    what = f"What does one {product.name} cost? Answer with the price alone, such as $1.00, and order nothing."
    return what, ShopData(answer=money(product.price_cents))


FAMILIES: dict[str, Callable[[random.Random], tuple[str, ShopData]]] = {
    "basket": _basket,
    "best-rated": _best_rated,
    "buy": _buy,
    "cheapest": _cheapest,
    "coupon": _coupon,
    "fix-cart": _fix_cart,
    "price": _price_of,
}
