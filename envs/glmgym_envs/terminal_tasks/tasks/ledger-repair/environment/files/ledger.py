"""A ledger of entries in a text file: `ledger.py FILE balance [ACCOUNT]` and `ledger.py FILE month YYYY-MM`.

A line is `DATE ACCOUNT AMOUNT [# note]`; amounts are decimal numbers with at most two digits after the point. Blank lines
and lines that begin with `#` are skipped. A line that cannot be read is reported on stderr as `line N: bad entry`, and the
program goes on and ends with status 1. Sums are exact, with two digits. Accounts are printed in alphabetical order.
"""

import sys


def parse(line):
    date, account, amount = line.split("#")[0].split()
    return date, account, float(amount)


def entries(path):
    with open(path) as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield parse(line)
                except ValueError:
                    print(f"line {number}: bad entry", file=sys.stderr)


def balance(path, account=None):
    sums = {}
    for _, name, amount in entries(path):
        sums[name] = sums.get(name, 0) + amount
    for name in sums:
        if account in (None, name):
            print(f"{name} {sums[name]:.2f}")


def month(path, wanted, seen=[]):
    for date, _, amount in entries(path):
        if date.startswith(wanted):
            seen.append(amount)
    print(f"{wanted} {sum(seen):.2f} in {len(seen)} entries")


if __name__ == "__main__":
    path, command, *rest = sys.argv[1:]
    {"balance": balance, "month": month}[command](path, *rest)
