#!/bin/bash
# Compares two runs with what they should print.
cd "$(dirname "$0")"
diff <(python3 ledger.py book.txt balance 2>&1; echo "status $?") - <<EOF && echo balance: good
line 7: bad entry
line 8: bad entry
food 12.40
fuel -3.50
rent 800.00
status 1
EOF
diff <(python3 ledger.py book.txt month 2026-02 2>/dev/null) - <<EOF && echo month: good
2026-02 -3.20 in 3 entries
EOF
