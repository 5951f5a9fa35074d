"""The shop's backend: a SQLite database per episode and the rules of buying. It knows nothing of HTML."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from glmgym_envs.browser.shop.catalogue import COUNTRIES, COUPONS, MAX_QUANTITY, PRODUCTS, SHIPPING

FIELDS = ("name", "street", "city", "postcode", "country")

_SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price_cents INTEGER, rating INTEGER,
                      stock INTEGER, colours TEXT);
CREATE TABLE cart_line (visitor TEXT, product_id INTEGER, colour TEXT, quantity INTEGER,
                        PRIMARY KEY (visitor, product_id, colour));
CREATE TABLE coupon (visitor TEXT PRIMARY KEY, code TEXT);
CREATE TABLE purchase (id INTEGER PRIMARY KEY, visitor TEXT, name TEXT, street TEXT, city TEXT, postcode TEXT,
                       country TEXT, shipping TEXT, coupon TEXT, total_cents INTEGER);
CREATE TABLE purchase_line (purchase_id INTEGER, product_id INTEGER, colour TEXT, quantity INTEGER,
                            price_cents INTEGER);
"""
_SORTS = {"name": "name", "price": "price_cents, name", "rating": "rating DESC, name"}


class Refused(Exception):
    """What a customer asked for cannot be done; the message is for the customer."""


@dataclass(frozen=True, slots=True)
class Line:
    """A product in a cart or an order."""

    product_id: int
    colour: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Cents."""

    goods: int
    discount: int
    shipping: int

    @property
    def sum(self) -> int:
        return self.goods - self.discount + self.shipping


class Store:
    """One shop. Used from one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(_SCHEMA)
        rows = [(p.id, p.name, p.category, p.price_cents, p.rating, p.stock, "|".join(p.colours)) for p in PRODUCTS]
        self._db.executemany("INSERT INTO product VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        self._db.close()

    def search(self, text: str, category: str, max_cents: int | None, sort: str) -> list[sqlite3.Row]:
        """Products with every word of ``text`` in their name; an unknown sort is by name."""
        words = text.lower().split()
        where = ["instr(lower(name), ?) > 0"] * len(words)
        values: list[Any] = list(words)
        if category:
            where.append("category = ?")
            values.append(category)
        if max_cents is not None:
            where.append("price_cents <= ?")
            values.append(max_cents)
        order = _SORTS.get(sort, "name")
        return self._rows(f"SELECT * FROM product WHERE {' AND '.join(where) or '1'} ORDER BY {order}", *values)

    def product(self, id: int) -> sqlite3.Row | None:
        return next(iter(self._rows("SELECT * FROM product WHERE id = ?", id)), None)

    def cart(self, visitor: str) -> list[Line]:
        query = "SELECT product_id, colour, quantity FROM cart_line WHERE visitor = ? ORDER BY product_id, colour"
        return [Line(*row) for row in self._rows(query, visitor)]

    def coupon(self, visitor: str) -> str:
        return next((row["code"] for row in self._rows("SELECT code FROM coupon WHERE visitor = ?", visitor)), "")

    def put(self, visitor: str, line: Line, *, add: bool) -> None:
        """Add to a line of the cart, or set it; a set quantity of 0 removes it.

        Raises:
            Refused: no such product or colour, or not so many.
        """
        product = self.product(line.product_id)
        if product is None:
            raise Refused("There is no such product.")
        if line.colour not in product["colours"].split("|"):
            raise Refused("Choose a colour.")
        had = next((x.quantity for x in self.cart(visitor) if (x.product_id, x.colour) == _key(line)), 0)
        quantity = line.quantity + (had if add else 0)
        if quantity < (1 if add else 0) or line.quantity < 0 or (add and line.quantity < 1):
            raise Refused("The quantity must be at least 1.")
        if quantity > min(MAX_QUANTITY, product["stock"]):
            raise Refused(f"At most {min(MAX_QUANTITY, product['stock'])} of this product can be ordered.")
        if quantity == 0:
            self._db.execute("DELETE FROM cart_line WHERE visitor = ? AND product_id = ? AND colour = ?",
                             (visitor, *_key(line)))  # fmt: skip
        else:
            self._db.execute("INSERT OR REPLACE INTO cart_line VALUES (?, ?, ?, ?)", (visitor, *_key(line), quantity))

    def set_coupon(self, visitor: str, code: str) -> None:
        """Raises Refused: there is no such code. An empty code takes the coupon off."""
        if code and code not in COUPONS:
            raise Refused(f"The code {code} is not valid.")
        self._db.execute("INSERT OR REPLACE INTO coupon VALUES (?, ?)", (visitor, code))

    def totals(self, visitor: str, shipping: str) -> Totals:
        goods = sum(line.quantity * self._price(line) for line in self.cart(visitor))
        return Totals(goods, goods * COUPONS.get(self.coupon(visitor), 0) // 100, SHIPPING.get(shipping, 0))

    def problems(self, form: Mapping[str, str]) -> dict[str, str]:
        """What is wrong with a checkout form, by field."""
        found = {field: "This field is required." for field in FIELDS if not form.get(field, "").strip()}
        if "postcode" not in found and not re.fullmatch(r"\d{4,5}", form["postcode"].strip()):
            found["postcode"] = "A postcode has 4 or 5 digits."
        if "country" not in found and form["country"] not in COUNTRIES:
            found["country"] = "We do not deliver there."
        if form.get("shipping") not in SHIPPING:
            found["shipping"] = "Choose a way of shipping."
        if form.get("terms") != "yes":
            found["terms"] = "Please accept the terms."
        return found

    def buy(self, visitor: str, form: Mapping[str, str]) -> int:
        """Turn the cart into an order and empty it; returns the order's number.

        Raises:
            Refused: the cart is empty. The form must have no ``problems``.
        """
        lines = self.cart(visitor)
        if not lines:
            raise Refused("Your cart is empty.")
        address = [form[field].strip() for field in FIELDS]
        values = (visitor, *address, form["shipping"], self.coupon(visitor), self.totals(visitor, form["shipping"]).sum)
        self._db.execute("BEGIN")
        number = self._db.execute(
            "INSERT INTO purchase (visitor, name, street, city, postcode, country, shipping, coupon, total_cents)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        ).lastrowid
        assert number is not None
        for line in lines:
            row = (number, line.product_id, line.colour, line.quantity, self._price(line))
            self._db.execute("INSERT INTO purchase_line VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute("UPDATE product SET stock = stock - ? WHERE id = ?", (line.quantity, line.product_id))
        self._db.execute("DELETE FROM cart_line WHERE visitor = ?", (visitor,))
        self._db.execute("DELETE FROM coupon WHERE visitor = ?", (visitor,))
        self._db.execute("COMMIT")
        return number

    def orders(self) -> list[dict[str, Any]]:
        """Every order of the shop with its address and its ``lines``."""
        out = [dict(row) for row in self._rows("SELECT * FROM purchase ORDER BY id")]
        for order in out:
            query = "SELECT product_id, colour, quantity FROM purchase_line WHERE purchase_id = ?"
            order["lines"] = {Line(*row) for row in self._rows(query, order["id"])}
        return out

    def fill_cart(self, visitor: str, lines: Iterable[Line]) -> None:
        for line in lines:
            self.put(visitor, line, add=True)

    def _price(self, line: Line) -> int:
        product = self.product(line.product_id)
        assert product is not None
        return int(product["price_cents"])

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._db.execute(query, values).fetchall()


def _key(line: Line) -> tuple[int, str]:
    return line.product_id, line.colour
