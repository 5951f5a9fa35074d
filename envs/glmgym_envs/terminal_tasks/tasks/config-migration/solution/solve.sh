#!/bin/bash
set -eu
cat > /work/relay.toml <<'EOF'
version = 2
name = "relay"
debug = true
features = ["beta", "export", "search"]
motd = "Grüße\nvom Relais"

[server]
host = "0.0.0.0"
port = 8080
timeout_s = 1.5

[database]
host = "db1"
port = 5432
password = 's3cr"et\x'

[limits]
upload_bytes = 20971520
page_bytes = 524288
log_bytes = 1073741824

[[hosts]]
name = "a.example.org"
weight = 3
enabled = true

[[hosts]]
name = "b.example.org"
weight = 1
enabled = false

[[hosts]]
name = "c.example.org"
weight = 1
enabled = true
EOF
