#!/bin/bash
set -eu
cd /work/catalogue
pkill -f /opt/old/placeholder.py || true
sed -i 's/8O91/8091/; s|/srv/catalogue|/work/catalogue|' server.ini
cat > server.py <<'EOF'
"""The catalogue service: `python3 server.py` reads server.ini beside it and serves items.csv."""

import configparser
import csv
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

settings = configparser.ConfigParser()
settings.read(Path(__file__).with_name("server.ini"))
server = settings["server"]


def items():
    with open(server["items"], newline="", encoding="utf-8") as file:
        return {
            int(row["id"]): {"id": int(row["id"]), "name": row["name"], "price": float(row["price"])}
            for row in csv.DictReader(file)
        }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {"status": "ok", "records": len(items())})
        elif self.path.startswith("/items/"):
            number = self.path[7:]
            item = items().get(int(number)) if re.fullmatch("[0-9]+", number) else None
            self.reply(200 if item else 404, item or {"error": "unknown item"})
        else:
            self.reply(404, {"error": "unknown path"})

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer((server["host"], server.getint("port")), Handler).serve_forever()
EOF
for _ in $(seq 50); do
    pgrep -f /opt/old/placeholder.py > /dev/null || break
    sleep 0.1
done
setsid python3 server.py < /dev/null > /dev/null 2>&1 &
for _ in $(seq 50); do
    python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8091/health")' 2> /dev/null && break
    sleep 0.1
done
