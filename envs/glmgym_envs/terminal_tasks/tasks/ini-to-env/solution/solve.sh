#!/bin/bash
set -eu
cd /work
python3 - <<'EOF'
import configparser
import re
import shlex

parser = configparser.ConfigParser()
parser.read(["base.ini", "site.ini"])
with open("app.env", "w") as file:
    for section in parser.sections():
        for key, value in parser.items(section):
            name = re.sub("[^A-Za-z0-9]", "_", f"{section}_{key}").upper()
            file.write(f"export {name}={shlex.quote(value)}\n")
EOF
