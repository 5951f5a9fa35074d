#!/bin/bash
set -eu
cd /work/project
mode() {
    find "$1" -type d -exec chmod "$2" {} +
    find "$1" -type f -exec chmod "$3" {} +
    find "$1" -type f -exec bash -c 'for file; do
        [ "$(head -c 2 -- "$file" | tr -d "\0")" = "#!" ] && chmod "$0" -- "$file"; done; true' "$4" {} +
}
mode . 2775 664 775
mode private 2700 600 700
find . -type f \( -name '*.key' -o -name '*.pem' \) -exec chmod 600 {} +
