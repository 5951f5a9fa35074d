#!/bin/bash
# Nothing of the policy's box but its artifacts is here.
reward=0
if [ "$(cat /app/report.txt)" = done ] && [ "$(cat /app/parts/one)" = 1 ] && [ ! -e /app/parts/x.tmp ] \
    && [ "$(cat /logs/artifacts/total.txt)" = 7 ] && [ ! -e /app/running-total ]; then
    reward=1
fi
echo "graded $reward"
echo $reward > /logs/verifier/reward.txt
