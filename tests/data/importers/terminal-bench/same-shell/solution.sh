#!/bin/bash
cd /app
nohup python3 -m http.server --bind 127.0.0.1 8077 >/dev/null 2>&1 &
for _ in $(seq 50); do
    python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8077))' 2>/dev/null && break
    sleep 0.1
done
