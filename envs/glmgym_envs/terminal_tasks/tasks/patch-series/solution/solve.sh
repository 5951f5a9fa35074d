#!/bin/bash
set -eu
cd /work/project
sed 's/$/\r/' ../patches/04-win.patch | sed -E '/^(---|\+\+\+|@@)/s/\r$//' > /tmp/04-win.patch
grep -v '^#' ../patches/series | while read -r name options; do
    strip=-p1 reverse= directory=.
    set -- $options
    while [ $# -gt 0 ]; do
        case $1 in
            -p*) strip=$1 ;;
            -R) reverse=-R ;;
            -d) directory=$2; shift ;;
        esac
        shift
    done
    file=/work/patches/$name
    [ ! -e "/tmp/$name" ] || file=/tmp/$name
    (cd "$directory" && git apply $strip $reverse "$file")
done
