"""Which MiniWoB++ pages can be played with actions on elements, which cannot and why, and what counts as solved."""

from __future__ import annotations

from glmgym.errors import did_you_mean

_PLAYABLE = """
    ascending-numbers book-flight book-flight-nodelay button-delay buy-ticket choose-date choose-date-easy
    choose-date-medium choose-date-nodelay choose-list click-button click-button-sequence click-checkboxes
    click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-collapsible click-collapsible-2
    click-collapsible-2-nodelay click-collapsible-nodelay click-color click-dialog click-dialog-2 click-link
    click-menu click-menu-2 click-option click-pie click-pie-nodelay click-scroll-list click-shades click-shape
    click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2
    click-test-transfer click-widget copy-paste copy-paste-2 count-shape daily-calendar drag-box drag-items
    drag-items-grid drag-shapes drag-shapes-2 drag-sort-numbers email-inbox email-inbox-delete
    email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-important
    email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply enter-date enter-password
    enter-text enter-text-2 enter-text-dynamic enter-time find-greatest find-word focus-text focus-text-2
    form-sequence form-sequence-2 form-sequence-3 generate-number grid-coordinate guess-number identify-shape
    login-user login-user-popup multi-layouts multi-orderings navigate-tree odd-or-even order-food phone-book
    read-table read-table-2 scroll-text scroll-text-2 search-engine sign-agreement simple-algebra
    simple-arithmetic social-media social-media-all social-media-some terminal text-transform tic-tac-toe
    unicode-test use-autocomplete use-autocomplete-nodelay use-colorwheel use-slider use-slider-2 use-spinner
    visual-addition
"""
PAGES = tuple(_PLAYABLE.split())

_WHY_NOT = {
    "wants a point, and actions name elements": (
        "bisect-angle circle-center draw-circle draw-line find-midpoint hot-cold right-angle"
    ),
    "wants a drag by a distance, and a drag goes from element to element": (
        "drag-circle drag-cube drag-single-shape resize-textarea"
    ),
    "moves in real time, and page time stands still between actions": (
        "chase-circle hover-shape moving-items stock-market"
    ),
    "shows its task as colours that pass in real time": "simon-says",
    "shows its task on a canvas, which has no text": "count-sides",
    "shows its task as an image": "number-checkboxes",
    "shows its task as a colour in the goal, which has no text": "use-colorwheel-2",
    "wants part of a page's text selected": "highlight-text highlight-text-2 text-editor",
}
EXCLUDED = {page: reason for reason, pages in _WHY_NOT.items() for page in pages.split()}

_DEFAULT = 0.5  # these pages give 1 or at most 0.4
# These give a part of 1 for a part of the task (find-greatest 0.1 for a wrong card, odd-or-even 2/3 for two of three,
# use-colorwheel up to 0.99 for a near colour), so only all of it is a success.
_ALL_OR_NOTHING = """
    find-greatest click-checkboxes click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer odd-or-even
    phone-book use-colorwheel drag-shapes-2 ascending-numbers button-delay
"""
_ROUNDING = 1e-6  # of a reward added up from parts


def threshold(page: str) -> float:
    """The least raw reward that is a success."""
    return 1.0 - _ROUNDING if page in _ALL_OR_NOTHING.split() else _DEFAULT


def why_not(page: str) -> str:
    """Why a page is not among ``PAGES``."""
    return EXCLUDED.get(page) or f"there is no such page{did_you_mean(page, PAGES)}"
