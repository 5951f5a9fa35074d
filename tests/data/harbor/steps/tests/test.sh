#!/bin/bash
# Shared by the steps; each says what it wants.
[ "$(cat number)" = "${WANTED:-1}" ] && reward=1 || reward=0
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
