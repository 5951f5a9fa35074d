"""The shop's pages: plain HTML forms over ``Store``, no script. Every change is a POST answered by a redirect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from glmgym_envs.browser.server import Request, Response
from glmgym_envs.browser.shop.catalogue import BY_ID, CATEGORIES, COUNTRIES, SHIPPING, money
from glmgym_envs.browser.shop.store import FIELDS, Line, Refused, Store

VISITOR = "visitor"  # name of the cookie
PAGE_SIZE = 12  # search results

_STYLE = (
    "body{font-family:sans-serif;margin:1em;max-width:60em} td,th{padding:.2em .8em;text-align:left} .error{color:#b00}"
)
LABELS = {"name": "Full name", "street": "Street and number", "city": "City", "postcode": "Postcode"}


class Site:
    """The request handler of one shop. The first visitor is ``"v1"``, whose cart a task may have filled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._visitors = 0

    async def __call__(self, request: Request) -> Response:
        visitor = request.cookies.get(VISITOR, "")
        cookie: dict[str, str] = {}
        if not visitor:
            self._visitors += 1
            visitor = f"v{self._visitors}"
            cookie = {"Set-Cookie": f"{VISITOR}={visitor}; Path=/; HttpOnly; SameSite=Strict"}
        try:
            answer = self._post(request, visitor) if request.method == "POST" else self._get(request, visitor)
        except Refused as refused:
            link = "<p><a href='/cart'>Back to the cart</a></p>"
            answer = self._page(
                "Not possible", f"<p class=error role=alert>{escape(str(refused))}</p>{link}", visitor, 400
            )
        return Response(answer.body, answer.status, answer.content_type, {**answer.headers, **cookie})

    def _get(self, request: Request, visitor: str) -> Response:
        head, _, rest = request.path.lstrip("/").partition("/")
        if head == "" and not rest:
            return self._page("Welcome", _links(CATEGORIES), visitor)
        if head == "search" and not rest:
            return self._search(request.query, visitor)
        if head == "product" and rest.isdecimal():
            return self._product(int(rest), visitor)
        if head == "cart" and not rest:
            return self._cart(visitor)
        if head == "checkout" and not rest:
            return self._checkout({"shipping": "standard"}, {}, visitor)
        if head == "order" and rest.isdecimal():
            return self._order(int(rest), visitor)
        return self._page("Not found", "<p>There is no such page.</p>", visitor, 404)

    def _post(self, request: Request, visitor: str) -> Response:
        form = request.form
        if request.path == "/cart/add":
            self._store.put(visitor, _line(form), add=True)
        elif request.path == "/cart/update":
            self._store.put(visitor, _line(form), add=False)
        elif request.path == "/cart/remove":
            self._store.put(visitor, _line({**form, "quantity": "0"}), add=False)
        elif request.path == "/cart/coupon":
            self._store.set_coupon(visitor, form.get("code", "").strip().upper())
        elif request.path == "/checkout":
            if problems := self._store.problems(form):
                return self._checkout(form, problems, visitor)
            return _see(f"/order/{self._store.buy(visitor, form)}")
        else:
            return self._page("Not found", "<p>There is no such page.</p>", visitor, 404)
        return _see("/cart")

    def _search(self, query: Mapping[str, str], visitor: str) -> Response:
        text, category, sort = query.get("q", ""), query.get("category", ""), query.get("sort", "name")
        limit = query.get("max", "")
        cents = int(limit) * 100 if limit.isdecimal() and len(limit) < 9 else None
        found = self._store.search(text, category, cents, sort)
        number = query.get("page", "1")
        start = (max(1, int(number)) - 1) * PAGE_SIZE if number.isdecimal() and len(number) < 6 else 0
        rows = "".join(
            f"<tr><td><a href='/product/{p['id']}'>{escape(p['name'])}</a></td><td>{money(p['price_cents'])}</td>"
            f"<td>{p['rating'] / 10} stars</td><td>{escape(p['colours'].replace('|', ', '))}</td></tr>"
            for p in found[start : start + PAGE_SIZE]
        )
        more = ""
        if start + PAGE_SIZE < len(found):
            more = (
                f"<p><a href='/search?{escape(urlencode({**query, 'page': start // PAGE_SIZE + 2}))}'>Next page</a></p>"
            )
        body = (
            f"<form action=/search>"
            f"<p><label>Words <input name=q value='{escape(text)}'></label> "
            f"<label>Category {_select('category', ('', *CATEGORIES), category)}</label> "
            f"<label>Sort by {_select('sort', ('name', 'price', 'rating'), sort)}</label> "
            f"<label>Up to $ <input name=max type=number min=1 value='{escape(limit)}'></label> "
            f"<button>Filter</button></p></form><p>{len(found)} products</p><table>{rows}</table>{more}"
        )
        return self._page("Search", body, visitor)

    def _product(self, id: int, visitor: str) -> Response:
        product = self._store.product(id) if id < 10**6 else None
        if product is None:
            return self._page("Not found", "<p>There is no such product.</p>", visitor, 404)
        colours = product["colours"].split("|")
        body = (
            f"<p>{money(product['price_cents'])}</p><p>{product['rating'] / 10} stars, {product['stock']} in stock, "
            f"in {escape(product['category'])}</p><form method=post action=/cart/add>"
            f"<input type=hidden name=product value={id}>"
            f"<p><label>Colour {_select('colour', ('', *colours), '')}</label> "
            f"<label>Quantity <input name=quantity type=number min=1 value=1></label> "
            f"<button>Add to cart</button></p></form>"
        )
        return self._page(product["name"], body, visitor)

    def _cart(self, visitor: str) -> Response:
        lines = self._store.cart(visitor)
        if not lines:
            return self._page("Cart", "<p>Your cart is empty.</p>", visitor)
        rows = "".join(_cart_row(line) for line in lines)
        totals, code = self._store.totals(visitor, ""), self._store.coupon(visitor)
        discount = f"<p>Coupon {escape(code)}: -{money(totals.discount)}</p>" if code else ""
        body = (
            f"<table>{rows}</table>{discount}<p>Total: {money(totals.sum)}</p>"
            f"<form method=post action=/cart/coupon><label>Coupon code <input name=code value='{escape(code)}'></label>"
            f" <button>Apply coupon</button></form><p><a href=/checkout>Check out</a></p>"
        )
        return self._page("Cart", body, visitor)

    def _checkout(self, form: Mapping[str, str], problems: Mapping[str, str], visitor: str) -> Response:
        if not self._store.cart(visitor):
            raise Refused("Your cart is empty.")

        def says(field: str) -> str:
            return f" <span class=error role=alert>{escape(problems[field])}</span>" if field in problems else ""

        fields = "".join(
            f"<p><label>{label} <input name={name} value='{escape(form.get(name, ''))}'></label>{says(name)}</p>"
            for name, label in LABELS.items()
        )
        ways = "".join(
            f"<label><input type=radio name=shipping value={way}{' checked' if form.get('shipping') == way else ''}> "
            f"{way.title()} ({money(cents)})</label> "
            for way, cents in SHIPPING.items()
        )
        country = _select("country", ("", *COUNTRIES), form.get("country", ""))
        body = (
            f"<p>Goods: {money(self._store.totals(visitor, '').sum)}</p><form method=post action=/checkout>{fields}"
            f"<p><label>Country {country}</label>{says('country')}</p><p>{ways}{says('shipping')}</p>"
            f"<p><label><input type=checkbox name=terms value=yes> I accept the terms</label>{says('terms')}</p>"
            f"<button>Place order</button></form>"
        )
        return self._page("Checkout", body, visitor, 422 if problems else 200)

    def _order(self, number: int, visitor: str) -> Response:
        order = next((o for o in self._store.orders() if o["id"] == number and o["visitor"] == visitor), None)
        if order is None:
            return self._page("Not found", "<p>You have no such order.</p>", visitor, 404)
        lines = sorted(order["lines"], key=lambda line: line.product_id)
        rows = "".join(f"<li>{line.quantity} x {_title(line)}</li>" for line in lines)
        address = ", ".join(escape(order[field]) for field in FIELDS)
        body = f"<ul>{rows}</ul><p>To: {address}</p><p>Shipping: {order['shipping']}</p>"
        return self._page("Thank you", f"<p>Order {number}: {money(order['total_cents'])}</p>{body}", visitor)

    def _page(self, title: str, body: str, visitor: str, status: int = 200) -> Response:
        count = sum(line.quantity for line in self._store.cart(visitor))
        nav = (
            f"<p><a href=/>Home</a> <a href=/cart>Cart ({count})</a></p><form action=/search>"
            f"<input name=q placeholder='Search products'> <button>Search</button></form>"
        )
        head = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        return Response(f"{head}<body>{nav}<h1>{escape(title)}</h1>{body}".encode(), status)


def _line(form: Mapping[str, str]) -> Line:
    """Raises Refused: not a number."""
    product, quantity = form.get("product", ""), form.get("quantity", "")
    if not (product.isdecimal() and quantity.isdecimal() and len(product) < 9 and len(quantity) < 9):
        raise Refused("The quantity must be a whole number, at least 1.")
    return Line(int(product), form.get("colour", ""), int(quantity))


def _title(line: Line) -> str:
    return escape(f"{BY_ID[line.product_id].name} ({line.colour})")


def _cart_row(line: Line) -> str:
    hidden = (
        f"<input type=hidden name=product value={line.product_id}><input type=hidden name=colour value={line.colour}>"
    )
    title = _title(line)
    return (
        f"<tr><td>{title}</td><td>{money(BY_ID[line.product_id].price_cents)}</td>"
        f"<td><form method=post action=/cart/update>{hidden}<input name=quantity type=number min=1 "
        f"value={line.quantity} aria-label='Quantity of {title}'> "
        f"<button aria-label='Update {title}'>Update</button></form></td>"
        f"<td><form method=post action=/cart/remove>{hidden}<button aria-label='Remove {title}'>Remove</button></form>"
        f"</td></tr>"
    )


def _links(categories: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li><a href='/search?category={name}'>{name}</a></li>" for name in categories) + "</ul>"


def _select(name: str, options: Sequence[str], chosen: str) -> str:
    items = "".join(f"<option{' selected' if option == chosen else ''}>{escape(option)}</option>" for option in options)
    return f"<select name={name}>{items}</select>"


def _see(path: str) -> Response:
    return Response(status=303, headers={"Location": path})
