"""Counts of words."""


def tally(text):
    """How often each word stands in the text."""
    counts = {}
    for word in text.split(" "):
        counts[word] = counts.get(word, 0) + 1
    return counts


def plural(count, noun):
    """``1 word``, ``2 words``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
