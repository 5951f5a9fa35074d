#!/bin/bash
python3 -I - <<'FETCH'
import os
import urllib.request

os.environ.pop("no_proxy", None)
os.environ.pop("NO_PROXY", None)
with urllib.request.urlopen("http://127.0.0.1:PORT/", timeout=5) as answer, open("page.txt", "wb") as file:
    file.write(answer.read())
FETCH
