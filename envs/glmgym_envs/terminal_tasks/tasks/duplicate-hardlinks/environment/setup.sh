#!/bin/bash
# Files with equal contents, equal sizes and different contents, links, and odd names.
set -eu
mkdir -p /work/photos
cd /work/photos
mkdir -p a b/originals "c d" e originals
clock=1700000000
put() {
    clock=$((clock + 100))
    printf '%s' "$2" > "$1"
    chmod "${3:-644}" "$1"
    touch -d "@$clock" "$1"
}
put b/two.jpg 'picture one, ten times'
put a/one.jpg 'picture one, ten times'
put "c d/copy of one.jpg" 'picture one, ten times'
put $'c d/new\nline.jpg' 'picture one, ten times'
put e/same-size.jpg 'picture two, ten times'
put e/E.jpg 'picture two, ten times'
put a/private.jpg 'picture one, ten times' 600
put b/private.jpg 'picture one, ten times' 600
put a/only.jpg 'alone'
put a/empty1 ''
put b/empty2 ''
put originals/one.jpg 'picture one, ten times'
put b/originals/three.jpg 'picture three'
put e/three.jpg 'picture three'
put e/-dash 'dash content'
put "e/ space" 'dash content'
put "e/originals" 'dash content'
put e/linked1 'linked already'
ln e/linked1 a/linked2
put b/linked3 'linked already'
ln -s one.jpg a/symlink.jpg
ln -s two.jpg b/symlink.jpg
