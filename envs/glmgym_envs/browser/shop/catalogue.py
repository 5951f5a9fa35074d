"""What the shop sells: 72 products of eight kinds, the same in every process."""

from __future__ import annotations

import random
from dataclasses import dataclass

SHIPPING = {"standard": 495, "express": 1295}  # cents
COUPONS = {"SPRING10": 10, "WELCOME5": 5, "BULK20": 20}  # percent off the goods
COUNTRIES = ("Austria", "Belgium", "Denmark", "France", "Germany", "Ireland", "Italy", "Spain", "Sweden")
MAX_QUANTITY = 9  # of one line

_KINDS = {
    "Lamps": ("Desk Lamp", "Floor Lamp", "Reading Lamp"),
    "Mugs": ("Coffee Mug", "Travel Mug", "Tea Cup"),
    "Bags": ("Backpack", "Shoulder Bag", "Laptop Sleeve"),
    "Chairs": ("Office Chair", "Folding Chair", "Bar Stool"),
    "Blankets": ("Wool Blanket", "Picnic Blanket", "Fleece Throw"),
    "Notebooks": ("Pocket Notebook", "Sketchbook", "Week Planner"),
    "Headphones": ("Studio Headphones", "Sport Earbuds", "Travel Headset"),
    "Plants": ("Fern", "Cactus", "Bonsai"),
}
_MAKERS = ("Alder", "Brook", "Corvo", "Dune", "Ember", "Fjord", "Grove", "Halden", "Indigo", "Juno", "Kestrel", "Lumen")
_COLOURS = ("black", "white", "red", "blue", "green", "grey", "yellow")


@dataclass(frozen=True, slots=True)
class Product:
    """``rating`` is in tenths of a star; ``colours`` are the options of which one is bought."""

    id: int
    name: str
    category: str
    price_cents: int
    rating: int
    stock: int
    colours: tuple[str, ...]


def money(cents: int) -> str:
    """``"$12.50"``."""
    return f"${cents // 100}.{cents % 100:02}"


def _make() -> tuple[Product, ...]:
    rng = random.Random("shop-v0")
    products: list[Product] = []
    for category, kinds in _KINDS.items():
        makers = rng.sample(_MAKERS, 9)
        prices = rng.sample(range(8, 190), 9)  # distinct within a category, and so are ratings: every best is unique
        ratings = rng.sample(range(20, 50), 9)
        for maker, kind, price, rating in zip(makers, kinds * 3, prices, ratings, strict=True):
            colours = tuple(sorted(rng.sample(_COLOURS, rng.randint(2, 4))))
            cents = price * 100 + rng.choice((0, 49, 50, 90, 95, 99))
            id = len(products) + 1
            products.append(Product(id, f"{maker} {kind}", category, cents, rating, rng.randint(10, 60), colours))
    return tuple(products)


PRODUCTS = _make()
BY_ID = {product.id: product for product in PRODUCTS}
CATEGORIES = tuple(_KINDS)
