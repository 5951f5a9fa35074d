#!/bin/bash
# An older service that nobody stopped holds the port.
set -eu
mkdir -p /opt/old
cat > /opt/old/placeholder.py <<'EOF'
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(503, "moved")


HTTPServer(("127.0.0.1", 8091), Handler).serve_forever()
EOF
setsid python3 /opt/old/placeholder.py < /dev/null > /dev/null 2>&1 &
