#!/bin/bash
# The verifier has no network of its own: asking again must fail.
python3 -I - <<'CHECK'
import os
import urllib.request

os.environ.pop("no_proxy", None)
os.environ.pop("NO_PROXY", None)
try:
    urllib.request.urlopen("http://127.0.0.1:PORT/", timeout=5)
    cut = False
except OSError:
    cut = True
try:
    page = open("page.txt").read()
except OSError:
    page = ""
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(str(int(cut and page == "the page")))
CHECK
