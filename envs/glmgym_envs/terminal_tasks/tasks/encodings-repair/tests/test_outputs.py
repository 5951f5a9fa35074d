"""Each file holds its text in UTF-8; the texts stand here escaped, so that this file has no encoding of its own."""

from pathlib import Path

import pytest

INBOX = Path("/work/inbox")
TEXTS = {
    "menu.txt": "Caf\xe9 cr\xe8me \u2013 3 \u20ac\nJalape\xf1o \u201chot\u201d 4 \u20ac\n",
    "letter.txt": "Sehr geehrte Frau M\xfc\xdfig,\ndie Rechnung \xfcber 45 \xa3 ist beglichen.\n",
    "poem.txt": (
        "\u0422\u044b \u0438 \u0432\u044b\n"
        "\u041f\u0443\u0441\u0442\u043e\u0435 \u0432\u044b "
        "\u0441\u0435\u0440\u0434\u0435\u0447\u043d\u044b\u043c \u0442\u044b\n"
    ),
    "labels.txt": "\u03a9\u03bc\u03ad\u03b3\u03b1\n\u03ac\u03bb\u03c6\u03b1\n",
    "cities.txt": "-*- coding: windows-1250 -*-\n\u0141\xf3d\u017a\nKrak\xf3w\nWroc\u0142aw\n",
    "names.txt": "Zo\xeb \xc7elik\nBj\xf6rn Strau\xdf\n",
    "plain.txt": "already fine: \xf1, \xe9\nsecond line\n",
    "export.txt": "id;gr\xf6\xdfe\n1;s\xfc\xdf\n2;\u2014\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_text_reads_as_it_was_written(name: str) -> None:
    assert (INBOX / name).read_bytes() == TEXTS[name].encode()


def test_the_other_file_is_untouched() -> None:
    assert (INBOX / "photo.dat").read_bytes() == (Path(__file__).parent / "material/inbox/photo.dat").read_bytes()


def test_nothing_is_added() -> None:
    assert sorted(path.name for path in INBOX.iterdir()) == sorted([*TEXTS, "photo.dat"])
