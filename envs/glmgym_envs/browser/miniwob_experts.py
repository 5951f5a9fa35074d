"""Scripted experts for MiniWoB++ pages: what a person would do, from the goal and the elements alone.

An expert is a generator: it yields a tool call and is sent the page it led to.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from glmgym_envs.browser.env import Act, Expert
from glmgym_envs.browser.observe import Element, View

Play = Generator[Act, View, str]

_WORD_NUMBERS = {"1st": 0, "2nd": 1, "3rd": 2}
_COLOURS = {
    "black": "#000000", "blue": "#0000ff", "cyan": "#00ffff", "aqua": "#00ffff", "grey": "#808080", "green": "#008000",
    "lime": "#00ff00", "magenta": "#ff00ff", "maroon": "#800000", "navy": "#000080", "olive": "#808000",
    "orange": "#ffa500", "pink": "#ffc0cb", "purple": "#800080", "red": "#ff0000", "silver": "#c0c0c0",
    "teal": "#008080", "white": "#ffffff", "yellow": "#ffff00",
}  # fmt: skip


def click(element: Element) -> Act:
    return "click", {"id": element.id}


def fill(element: Element, text: str) -> Act:
    return "fill", {"id": element.id, "text": text}


def quoted(goal: str) -> list[str]:
    """What stands in double quotes."""
    return re.findall(r'"([^"]*)"', goal)


def click_named(*roles: str) -> Expert:
    """Click what the goal quotes, whichever of the roles it has."""

    def expert(goal: str, view: View) -> Play:
        yield click(_first(view, roles, quoted(goal)[-1]))
        return ""

    return expert


def click_buttons(pattern: str) -> Expert:
    """Click, in order, the buttons that the pattern finds in the goal."""

    def expert(goal: str, view: View) -> Play:
        for name in re.findall(pattern, goal):
            view = yield click(view.find("button", name))
        return ""

    return expert


def click_test(goal: str, view: View) -> Play:
    yield click(view.find("button"))
    return ""


def dialog_button(goal: str, view: View) -> Play:
    name = quoted(goal)[-1]
    yield click(view.find("button", "Close" if name == "x" else name))
    return ""


def navigate_tree(goal: str, view: View) -> Play:
    """Open one folder after another until the name is there; a file is never opened on the way."""
    name = quoted(goal)[-1]
    while not view.all(name=name):
        view = yield click(view.find("clickable", contains=".expandable"))
    yield click(view.find(name=name))
    return ""


def checkboxes(goal: str, view: View) -> Play:
    wanted = _between(goal, "Select ", " and click Submit")
    for name in [] if wanted == "nothing" else wanted.split(", "):
        view = yield click(view.find("checkbox", name))
    yield submit(view)
    return ""


def option(goal: str, view: View) -> Play:
    view = yield click(view.find("radio", _between(goal, "Select ", " and click Submit")))
    yield submit(view)
    return ""


def choose_list(goal: str, view: View) -> Play:
    name = re.sub(r" from the (scroll )?list$", "", _between(goal, "Select ", " and click Submit"))
    lists = [element for element in view.elements if element.options]
    for part in name.split(", "):
        view = yield "select", {"id": lists[0].id, "option": part}
    yield submit(view)
    return ""


def click_tab(goal: str, view: View) -> Play:
    yield click(view.find("tab", goal.removeprefix("Click on ").removesuffix(".")))
    return ""


def search_sections(goal: str, view: View) -> Play:
    """Open one tab or section after another until the link is there."""
    name = quoted(goal)[-1]
    for section in view.all("tab"):
        if found := [e for e in view.all("clickable", name) if e.shown]:
            yield click(found[0])
            return ""
        view = yield click(section)
    yield click(view.find("clickable", name))
    return ""


def collapsible(goal: str, view: View) -> Play:
    view = yield click(view.find("tab"))
    yield submit(view)
    return ""


def enter_text(goal: str, view: View) -> Play:
    text = quoted(goal)[0]
    if "lower case" in goal:
        text = text.lower()
    elif "upper case" in goal:
        text = text.upper()
    view = yield fill(view.find("textbox"), text)
    yield submit(view)
    return ""


def enter_password(goal: str, view: View) -> Play:
    for nth in (0, 1):
        view = yield fill(view.find("textbox", nth=nth), quoted(goal)[0])
    yield submit(view)
    return ""


def login(goal: str, view: View) -> Play:
    for nth, text in enumerate(quoted(goal)):
        view = yield fill(view.find("textbox", nth=nth), text)
    yield click(view.find("button", "Login"))
    return ""


def enter_date(goal: str, view: View) -> Play:
    month, day, year = _match(r"(\d+)/(\d+)/(\d+)", goal)
    view = yield fill(view.find("date"), f"{year}-{month}-{day}")
    yield submit(view)
    return ""


def enter_time(goal: str, view: View) -> Play:
    hour, minute, half = _match(r"(\d+):(\d+) ([AP]M)", goal)
    view = yield fill(view.find("time"), f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}")
    yield submit(view)
    return ""


def focus(goal: str, view: View) -> Play:
    places = [number for word, number in _WORD_NUMBERS.items() if word in goal]
    yield click(view.find("textbox", nth=places[0] if places else 0))
    return ""


def find_word(goal: str, view: View) -> Play:
    (place,) = _match(r"(\d+)\w\w word", goal)
    words = view.find("text").name.split()
    view = yield fill(view.find("textbox"), words[int(place) - 1].strip(",."))
    yield submit(view)
    return ""


def find_greatest(goal: str, view: View) -> Play:
    """Turn each card, then the greatest again: only one lies open at a time."""
    cards = [element for element in view.elements if ".card" in element.look]
    numbers: list[int] = []
    for card in cards:
        view = yield click(card)
        numbers.append(next(int(e.name) for e in view.elements if e.id == card.id or e.name.isdigit()))
    view = yield click(cards[numbers.index(max(numbers))])
    yield submit(view)
    return ""


def arithmetic(goal: str, view: View) -> Play:
    a, sign, b = _match(r"(-?\d+) ([-+x]) (-?\d+)", view.find("text").name)
    value = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign]
    view = yield fill(view.find("textbox"), str(value))
    yield submit(view)
    return ""


def algebra(goal: str, view: View) -> Play:
    a, sign, b, total = _match(r"(x|\d+) ([-+]) (x|\d+) = (-?\d+)", view.find("text").name)
    if a == "x":
        x = int(total) - int(b) if sign == "+" else int(total) + int(b)
    else:
        x = int(total) - int(a) if sign == "+" else int(a) - int(total)
    view = yield fill(view.find("textbox"), str(x))
    yield submit(view)
    return ""


def search_engine(goal: str, view: View) -> Play:
    text, place = _match(r'enter "(.*?)".* (\d+)\w\w search result', goal)
    view = yield fill(view.find("textbox"), text)
    view = yield click(view.find("button", "Search"))
    index = int(place) - 1
    for _ in range(index // 3):  # three results a page
        view = yield click(view.find("link", ">"))
    results = [link for link in view.all("link") if not re.fullmatch(r"[<>\d]+", link.name)]
    yield click(results[index % 3])
    return ""


def colour_box(goal: str, view: View) -> Play:
    (name,) = _match(r"Click on the (\w+) colored box", goal)
    yield click(view.find("box", contains=_COLOURS[name]))
    return ""


def read_table(goal: str, view: View) -> Play:
    (label,) = _match(r"value of (.*) into", goal)
    names = [element.name for element in view.elements]
    view = yield fill(view.find("textbox"), names[names.index(label) + 1])
    yield submit(view)
    return ""


def read_table_2(goal: str, view: View) -> Play:
    names = [element.name for element in view.elements]
    labels = [name.removesuffix(":") for name in names if name.endswith(":")]
    for nth, label in enumerate(labels):
        view = yield fill(view.find("textbox", nth=nth), names[names.index(label) + 1])
    yield submit(view)
    return ""


def movies(goal: str, view: View) -> Play:
    genre, director, year = _match(r"Search for (.*) movies directed by (.*) from year (\d+)", goal)
    labels = {"genre": genre, "director": director, "year": year, "date": year}
    fields = view.all("textbox")
    step = 1 if view.elements[0] is fields[0] else -1  # a layout has its labels before or after the fields
    beside = [view.elements[view.elements.index(field) + step].name.lower() for field in fields]
    for field, label in zip(fields, beside, strict=True):
        view = yield fill(field, next(text for word, text in labels.items() if word in label))
    yield click(view.elements[-1])
    return ""


def ascending(goal: str, view: View) -> Play:
    """The numbers are hidden after the first click, so their places have to be remembered."""
    numbered = sorted((shape for shape in view.all("shape") if shape.name), key=lambda shape: int(shape.name))
    for place in [_centre(shape) for shape in numbered]:
        view = yield click(min(view.all("shape"), key=lambda shape: abs(_centre(shape) - place)))
    return ""


def odd_or_even(goal: str, view: View) -> Play:
    for nth, number in enumerate(view.all("text")):
        view = yield click(view.find("button", "Even" if int(number.name) % 2 == 0 else "Odd", nth=nth))
    yield submit(view)
    return ""


def guess_number(goal: str, view: View) -> Play:
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        view = yield fill(view.find("spinbutton"), str(guess))
        view = yield submit(view)
        if view.all(contains="higher"):
            low = guess + 1
        else:
            high = guess - 1


def slider(goal: str, view: View) -> Play:
    """Arrow keys move the handle by one; the number beside it says where it is."""
    (wanted,) = _match(r"Select (-?\d+) with the slider", goal)
    view = yield click(view.find("clickable"))
    while (now := int(view.find("text").name)) != int(wanted):
        view = yield "press", {"key": "ArrowRight" if now < int(wanted) else "ArrowLeft"}
    if "checkbox" in goal:
        view = yield click(view.find("checkbox", nth=next(n for word, n in _WORD_NUMBERS.items() if word in goal)))
    yield submit(view)
    return ""


def spinner(goal: str, view: View) -> Play:
    """The field takes no typed number, only its two arrows."""
    wanted = int(_match(r"Select (-?\d+) with", goal)[0])
    for _ in range(abs(wanted)):
        view = yield click(view.find("button", contains="spinner-up" if wanted > 0 else "spinner-down"))
    yield submit(view)
    return ""


def grid_coordinate(goal: str, view: View) -> Play:
    """The points stand 30 pixels apart, column by column from the upper left."""
    x, y = map(int, _match(r"\((-?\d+),(-?\d+)\)", goal))
    points = view.all("shape", contains="circle")
    yield click(points[(x + 2) * 5 + (2 - y)])
    return ""


def button_delay(goal: str, view: View) -> Play:
    (seconds,) = _match(r"wait (\d+) seconds", goal)
    view = yield click(view.find("button", "ONE"))
    view = yield "wait", {"seconds": float(seconds)}
    yield click(view.find("button", "TWO"))
    return ""


def copy_paste(goal: str, view: View) -> Play:
    """The full areas come in their own order; the empty field may stand before or after them."""
    sources = [field for field in view.all("textbox") if field.value]
    target = next(field for field in view.all("textbox") if not field.value)
    places = [number for word, number in _WORD_NUMBERS.items() if word in goal]
    view = yield fill(target, sources[places[0] if places else 0].value or "")
    yield submit(view)
    return ""


def text_transform(goal: str, view: View) -> Play:
    view = yield fill(view.find("textbox"), "".join(element.name for element in view.all("text")))
    yield submit(view)
    return ""


def visual_addition(goal: str, view: View) -> Play:
    view = yield fill(view.find("textbox"), str(len(view.all("box"))))
    yield submit(view)
    return ""


def submit(view: View) -> Act:
    return click(view.find("button", "Submit"))


def _centre(element: Element) -> complex:
    x, y, width, height = map(int, _match(r"at (-?\d+),(-?\d+) size (\d+)x(\d+)", element.look))
    return complex(x + width / 2, y + height / 2)


def _first(view: View, roles: Sequence[str], name: str) -> Element:
    found = [element for role in roles for element in view.all(role, name)]
    return found[0] if found else view.find(roles[0], name)


def _between(text: str, start: str, end: str) -> str:
    return text.removeprefix(start).split(end)[0]


def _match(pattern: str, text: str) -> tuple[str, ...]:
    """Raises LookupError: the goal is not of the form that the expert knows."""
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"{pattern!r} is not in {text!r}")
    return found.groups()


EXPERTS: dict[str, Expert] = {
    "ascending-numbers": ascending,
    "button-delay": button_delay,
    "choose-list": choose_list,
    "click-button": click_named("button"),
    "click-button-sequence": click_buttons(r"button (\w+)"),
    "click-checkboxes": checkboxes,
    "click-checkboxes-large": checkboxes,
    "click-checkboxes-transfer": checkboxes,
    "click-collapsible": collapsible,
    "click-collapsible-2": search_sections,
    "click-color": colour_box,
    "click-dialog": click_test,
    "click-dialog-2": dialog_button,
    "click-link": click_named("clickable"),
    "click-option": option,
    "click-scroll-list": choose_list,
    "click-tab": click_tab,
    "click-tab-2": search_sections,
    "click-tab-2-easy": search_sections,
    "click-tab-2-hard": search_sections,
    "click-tab-2-medium": search_sections,
    "click-test": click_test,
    "click-test-2": click_buttons(r"button (\w+)"),
    "click-test-transfer": click_buttons(r"button (\w+)"),
    "copy-paste": copy_paste,
    "copy-paste-2": copy_paste,
    "enter-date": enter_date,
    "enter-password": enter_password,
    "enter-text": enter_text,
    "enter-text-2": enter_text,
    "enter-text-dynamic": enter_text,
    "enter-time": enter_time,
    "find-greatest": find_greatest,
    "find-word": find_word,
    "focus-text": focus,
    "focus-text-2": focus,
    "form-sequence": slider,
    "grid-coordinate": grid_coordinate,
    "guess-number": guess_number,
    "login-user": login,
    "multi-layouts": movies,
    "multi-orderings": movies,
    "navigate-tree": navigate_tree,
    "odd-or-even": odd_or_even,
    "read-table": read_table,
    "read-table-2": read_table_2,
    "search-engine": search_engine,
    "simple-algebra": algebra,
    "simple-arithmetic": arithmetic,
    "text-transform": text_transform,
    "unicode-test": click_named("button"),
    "use-slider": slider,
    "use-spinner": spinner,
    "visual-addition": visual_addition,
}
