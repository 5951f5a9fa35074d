"""Every number on both sides of every border, in every place, and some thousand lines more."""

import random
import subprocess
from pathlib import Path

PATTERN = Path("/work/pattern.txt")


def selected(lines: list[str]) -> list[str]:
    pattern = PATTERN.read_text("ascii").removesuffix("\n")
    argv = ["/usr/bin/grep", "-E", "-x", "-e", pattern]
    done = subprocess.run(argv, input="\n".join(lines) + "\n", text=True, capture_output=True, timeout=20)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def is_network(line: str) -> bool:
    address, slash, prefix = line.partition("/")
    parts = address.split(".")
    numbers = [*parts, prefix]
    if not slash or len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in numbers):
        return False
    return all(str(int(part)) == part for part in numbers) and max(map(int, parts)) <= 255 and int(prefix) <= 32


def test_the_pattern_is_one_short_line() -> None:
    pattern = PATTERN.read_bytes().removesuffix(b"\n")
    assert len(pattern) <= 120
    assert b"\n" not in pattern
    assert pattern.isascii()


def test_every_number_in_every_place() -> None:
    numbers = [str(number) for number in range(400)] + ["00", "01", "007", "-1", "", " 1", "1e1", "0x1", "1000"]
    lines = []
    for place in range(5):
        for number in numbers:
            parts = ["10", "20", "30", "40", "24"]
            parts[place] = number
            lines.append(".".join(parts[:4]) + "/" + parts[4])
    assert selected(lines) == [line for line in lines if is_network(line)]


def test_damaged_and_drawn_lines() -> None:
    rng = random.Random(2026)
    lines = [
        "",
        "/",
        "...",
        ".../",
        "1.2.3.4/8/8",
        "1.2.3.4//8",
        "1..2.3.4/8",
        "1.2.3.4/8.",
        "x1.2.3.4/8",
        "1.2.3.4/8x",
    ]
    for _ in range(4000):
        line = ".".join(str(rng.randrange(300)) for _ in range(4)) + f"/{rng.randrange(40)}"
        if rng.random() < 0.4:
            at = rng.randrange(len(line))
            line = line[:at] + rng.choice("0123456789./- a") + line[at + rng.randrange(2) :]
        lines.append(line)
    assert sum(map(is_network, lines)) > 500
    assert selected(lines) == [line for line in lines if is_network(line)]
