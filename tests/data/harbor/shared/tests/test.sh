#!/bin/bash
# The exit code means nothing: a reward of 0 is written with exit 3.
if [ "$(wc -l < /srv/sorted.txt)" = "$EXPECTED_LINES" ] && [ "$(cat /srv/sorted.txt)" = "$(cat /tests/expected.txt)" ]; then
    echo '{"reward": 1, "lines": 3}' > /logs/verifier/reward.json
else
    echo '{"reward": 0, "lines": 0}' > /logs/verifier/reward.json
    exit 3
fi
