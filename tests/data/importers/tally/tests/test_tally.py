import pytest

from tally import plural, tally


def test_one_space():
    assert tally("a b a") == {"a": 2, "b": 1}


@pytest.mark.parametrize(("count", "text"), [(1, "1 word"), (2, "2 words")])
def test_plural(count, text):
    assert plural(count, "word") == text
