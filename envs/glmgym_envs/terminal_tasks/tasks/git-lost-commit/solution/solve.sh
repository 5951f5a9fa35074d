#!/bin/bash
set -eu
cd /work/limiter
lost=$(git reflog --format='%H %gs' | grep 'commit (amend): Add token bucket limiter' | head -1 | cut -d' ' -f1)
git cherry-pick "$lost"
