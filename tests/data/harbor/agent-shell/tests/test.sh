#!/bin/bash
[ "$COLOUR" = teal ] && [ "$PWD" = /app/here ] && [ "$SHOUT" = "it's loud" ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
