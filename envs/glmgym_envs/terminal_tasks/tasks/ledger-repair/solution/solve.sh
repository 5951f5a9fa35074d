#!/bin/bash
set -eu
cd /work
python3 - <<'EOF'
import re

text = open("ledger.py").read()
head = text[: text.index("import sys")]
open("ledger.py", "w").write(head + '''import re
import sys
from datetime import date as Date
from decimal import Decimal, getcontext

getcontext().prec = 50
bad = False


def parse(line):
    date, account, amount = line.split("#")[0].split()
    if not re.fullmatch(r"\\d{4}-\\d\\d-\\d\\d", date) or not re.fullmatch(r"[+-]?\\d+(\\.\\d{1,2})?", amount):
        raise ValueError(line)
    Date.fromisoformat(date)
    return date, account, Decimal(amount)


def entries(path):
    global bad
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if line.split("#")[0].strip() or (line.strip() and not line.strip().startswith("#")):
                try:
                    yield parse(line)
                except ValueError:
                    bad = True
                    print(f"line {number}: bad entry", file=sys.stderr)


def balance(path, account=None):
    sums = {}
    for _, name, amount in entries(path):
        sums[name] = sums.get(name, Decimal(0)) + amount
    for name in sorted(sums):
        if account in (None, name):
            print(f"{name} {sums[name] + 0:.2f}")


def month(path, wanted):
    seen = [amount for date, _, amount in entries(path) if date[:7] == wanted]
    print(f"{wanted} {sum(seen, Decimal(0)):.2f} in {len(seen)} entries")


if __name__ == "__main__":
    path, command, *rest = sys.argv[1:]
    {"balance": balance, "month": month}[command](path, *rest)
    sys.exit(bad)
''')
EOF
bash check.sh
