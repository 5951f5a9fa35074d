import sys

sys.path.insert(0, "/app")


def test_double() -> None:
    from double import double

    assert double(21) == 42
