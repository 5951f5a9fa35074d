from urllib.request import urlopen


def test_it_answers():
    with urlopen("http://127.0.0.1:8077/page.txt", timeout=5) as answer:
        assert answer.read() == b"it is up\n"
