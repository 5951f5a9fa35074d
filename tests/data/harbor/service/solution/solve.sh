#!/bin/bash
nohup setsid python3 -m http.server 8123 --bind 127.0.0.1 > /dev/null 2>&1 &
for _ in 1 2 3 4 5 6 7 8 9 10; do
    python3 -c "import socket; socket.create_connection(('127.0.0.1', 8123))" 2> /dev/null && break
    sleep 0.3
done
