#!/bin/bash
set -eu
cd /work
python3 - <<'EOF'
import csv
import sqlite3

db = sqlite3.connect("shop.db")
db.executescript("""
CREATE TABLE orders (id INTEGER PRIMARY KEY, day TEXT NOT NULL, customer TEXT NOT NULL, cents INTEGER, paid INTEGER, note TEXT);
CREATE VIEW monthly AS
SELECT substr(day, 1, 7) AS month, count(*) AS orders, coalesce(sum(CASE WHEN paid = 1 THEN cents END), 0) AS cents
FROM orders GROUP BY 1 ORDER BY 1;
""")
with open("orders.csv", newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file, delimiter=";"):
        amount = row["Betrag"].replace(".", "").replace(",", "")
        db.execute(
            "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?, ?)",
            (
                int(row["Bestellnr"]),
                "-".join(reversed(row["Datum"].split("."))),
                row["Kunde"],
                int(amount) if amount else None,
                {"ja": 1, "nein": 0}.get(row["Bezahlt"]),
                row["Bemerkung"] or None,
            ),
        )
db.commit()
EOF
