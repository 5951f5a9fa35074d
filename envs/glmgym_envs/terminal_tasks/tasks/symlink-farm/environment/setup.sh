#!/bin/bash
# A store of programs and a directory of links, most of them broken.
set -eu
mkdir -p /work/apps/bin
cd /work/apps
program() {
    mkdir -p "store/$1-$2/bin"
    printf '#!/bin/sh\necho %s %s\n' "$1" "$2" > "store/$1-$2/bin/$1"
    chmod 755 "store/$1-$2/bin/$1"
}
for version in 1.2 1.9 1.10; do program grow "$version"; done
for version in 2.0 3.0; do program shrink "$version"; done
program turn 0.4
program wave 5
program wave 5.0.1
program new-tool 7.1
cd bin
ln -s /opt/store/grow-1.9/bin/grow grow
ln -s ../store/grow-1.2/bin/grow grow-1.2
ln -s /opt/store/grow-1.8/bin/grow grow-old
ln -s /opt/store/shrink-1.0/bin/shrink shrink
ln -s shrink-2 shrink-stable
ln -s /work/apps/store/shrink-2.0/bin/shrink shrink-2
ln -s /opt/store/lost-3.1/bin/lost lost
ln -s round-b round-a
ln -s round-a round-b
ln -s ../bin/turn-alias turn
ln -s ../../apps/store/turn-0.4/bin/turn turn-alias
ln -s lost lost-alias
ln -s grow-old elder
ln -s /opt/store/wave-4/bin/wave "wave (beta)"
printf '#!/bin/sh\necho local\n' > local-script
