#!/bin/bash
set -eu
cd /work/apps/bin
declare -A place
highest() {
    ls ../store | grep -E "^$1-[0-9.]+$" | sort -V | tail -1
}
for name in *; do
    [ -L "$name" ] || continue
    end=$name
    for _ in 1 2 3 4 5; do
        [ -L "$end" ] || break
        target=$(readlink "$end")
        case $target in ../bin/*) target=${target#../bin/} ;; esac
        end=$target
    done
    case $end in */store/*/bin/*) ;; *) rm "$name"; continue ;; esac
    release=${end#*/store/}
    release=${release%%/*}
    program=${end##*/}
    [ -d "../store/$release" ] || release=$(highest "$program")
    place[$name]=${release:+../store/$release/bin/$program}
done
for name in "${!place[@]}"; do
    rm -f "$name"
    if [ -n "${place[$name]}" ]; then
        ln -s "${place[$name]}" "$name"
    fi
done
for path in ../store/*/bin/*; do
    program=${path##*/}
    [ -e "$program" ] || ln -s "../store/$(highest "$program")/bin/$program" "$program"
done
