#!/bin/bash
set -eu
cd /work/inbox
convert() {
    iconv -f "$2" -t UTF-8 "$1.txt" | sed '1s/^\xef\xbb\xbf//; s/\r$//' > /tmp/out
    cat /tmp/out > "$1.txt"
}
convert menu WINDOWS-1252
convert letter ISO-8859-1
convert poem UTF-16
convert labels UTF-16
convert cities WINDOWS-1250
convert export UTF-8
iconv -f UTF-8 -t WINDOWS-1252 names.txt > /tmp/names
cat /tmp/names > names.txt
