"""The vocabulary of the procedural suite, small enough for each word to be one token of a tiny tokenizer."""

from __future__ import annotations

# No word is part of another, so that a search for one never finds another; none is a command or a file extension.
WORDS = (
    "oak", "elm", "fir", "yew", "fig", "rye", "hay", "bee", "fox", "owl",
    "hen", "cow", "pig", "dog", "bat", "jay", "cod", "eel", "ram", "sun",
    "sky", "sea", "mud", "ice", "fog", "dew", "lake", "hill", "cave", "rock",
    "sand", "iron", "zinc", "salt", "rope", "lamp", "drum", "bell", "coin", "gum",
)  # fmt: skip
