"""Every minute after a moment is tried against the fields, from the verifier's own copy of the crontab."""

from datetime import datetime, timedelta
from pathlib import Path

MATERIAL = Path(__file__).parent / "material"
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
SHORT = {"@hourly": "0 * * * *", "@monthly": "0 0 1 * *"}
FORMAT = "%Y-%m-%dT%H:%M"


def values(field: str, low: int, high: int, names: list[str]) -> set[int]:
    found: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start, end = (names.index(word) + low if word in names else int(word) for word in (first, last or first))
        found.update(range(start, end + 1, int(step or 1)))
    return found


def runs(schedule: str, moment: datetime) -> list[str]:
    minute, hour, day, month, weekday = SHORT.get(schedule, schedule).split()
    minutes, hours = values(minute, 0, 59, []), values(hour, 0, 23, [])
    days, months = values(day, 1, 31, []), values(month, 1, 12, MONTHS)
    weekdays = {number % 7 for number in values(weekday, 0, 6 if weekday[0] == "*" else 7, DAYS)}
    date = moment.replace(hour=0, minute=0)
    found: list[str] = []
    while len(found) < 3:
        of_month, of_week = date.day in days, date.isoweekday() % 7 in weekdays
        both = day[0] == "*" or weekday[0] == "*"
        if date.month in months and ((of_month and of_week) if both else (of_month or of_week)):
            times = [date.replace(hour=h, minute=m) for h in sorted(hours) for m in sorted(minutes)]
            found += [time.strftime(FORMAT) for time in times if time > moment]
        date += timedelta(days=1)
    return found[:3]


def test_every_row() -> None:
    rows = ["command,moment,first,second,third"]
    moments = (MATERIAL / "moments.txt").read_text().split()
    for line in (MATERIAL / "crontab").read_text().splitlines():
        if not line.startswith("#"):
            *fields, command = line.split()
            rows += [
                ",".join([command, moment, *runs(" ".join(fields), datetime.strptime(moment, FORMAT))])
                for moment in moments
            ]
    assert len(rows) == 43
    assert Path("/work/next.csv").read_bytes() == ("\n".join(rows) + "\n").encode()
