#!/bin/bash
set -eu
cd /work
octet='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
echo "($octet\.){3}$octet/(3[0-2]|[12]?[0-9])" > pattern.txt
grep -E -x -e "$(cat pattern.txt)" match.txt reject.txt
