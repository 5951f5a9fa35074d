#!/bin/bash
set -eu
cd /work
python3 - <<'EOF'
import csv
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

with open("meetings.csv") as file, open("utc.csv", "w", newline="") as out:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "start", "end", "note"])
    for row in csv.DictReader(file):
        try:
            zone = ZoneInfo(row["zone"])
        except Exception:
            writer.writerow([row["id"], "", "", "unknown zone"])
            continue
        naive = datetime.fromisoformat(row["local"])
        early = naive.replace(tzinfo=zone).astimezone(UTC)
        late = naive.replace(tzinfo=zone, fold=1).astimezone(UTC)
        note = "" if early == late else "ambiguous" if early < late else "skipped"
        end = early + timedelta(minutes=int(row["minutes"]))
        writer.writerow([row["id"], f"{early:%Y-%m-%dT%H:%MZ}", f"{end:%Y-%m-%dT%H:%MZ}", note])
EOF
