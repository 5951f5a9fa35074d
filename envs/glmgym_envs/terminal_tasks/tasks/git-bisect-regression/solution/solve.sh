#!/bin/bash
set -eu
cd /work/duration
cat > /tmp/probe.sh <<'EOF'
python3 -B -c 'import duration' 2>/dev/null || exit 125
python3 -B -c 'import duration, sys; sys.exit(duration.seconds("2h5m") != 7500)'
EOF
git bisect start main good
git bisect run bash /tmp/probe.sh || true
git bisect log > /tmp/bisect.log
git bisect reset
# The first bad commit lies among commits that cannot be imported: look for the change of the sum itself.
git log --format=%H -S'total = max(' good..main -- duration.py | tail -1 > /work/culprit.txt
sed -i -E 's/total = max\(total, (.*)\)$/total += \1/' duration.py
git commit -q -am "Add up again"
