"""The catalogue service: `python3 server.py` reads server.ini beside it and serves items.csv."""

import configparser
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

settings = configparser.ConfigParser()
settings.read(Path(__file__).with_name("server.ini"))
server = settings["server"]


def items():
    rows = {}
    for line in open(server["items"]).read().split("\n"):
        number, name, price = line.split(",")
        rows[int(number)] = {"id": int(number), "name": name, "price": price}
    return rows


class Handler(BaseHTTPRequestHandler):
    catalogue = items()

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {"status": "ok", "records": len(self.catalogue)})
        elif self.path.startswith("/items/"):
            self.reply(200, self.catalogue[int(self.path[7:])])

    def reply(self, status, value):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode("latin-1"))


HTTPServer((server["host"], server.getint("port")), Handler).serve_forever()
