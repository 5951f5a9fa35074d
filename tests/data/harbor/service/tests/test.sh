#!/bin/bash
python3 -I - <<'CHECK'
import urllib.request
try:
    with urllib.request.urlopen("http://127.0.0.1:8123/ready", timeout=5) as answer:
        reward = int(answer.status == 200)
except OSError:
    reward = 0
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(str(reward))
CHECK
