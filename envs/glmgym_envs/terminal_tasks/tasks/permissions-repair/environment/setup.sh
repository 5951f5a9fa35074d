#!/bin/bash
# Files in a project with wrong modes, some of them only reachable through a symlink.
set -eu
mkdir -p /work/project /srv/outside
cd /work/project
mkdir -p src/deep .hidden private/sub "with space" $'new\nline'
printf 'int main;\n' > src/main.c
printf '#!/bin/sh\necho hi\n' > src/run
printf '#!/usr/bin/env python3\n' > "with space/tool.py"
printf ' #!/bin/sh\n' > "with space/not-a-script.sh"
printf 'plain\n' > $'new\nline/a\nb.txt'
printf 'key\n' > src/deep/server.key
printf '#!pem\n' > .hidden/cert.pem
printf 'h\n' > .hidden/.dotfile
printf 'secret\n' > private/notes
printf '#!/bin/sh\n' > private/sub/job
printf '#' > src/deep/short
: > src/deep/empty
printf 'out\n' > /srv/outside/target
ln -s /srv/outside/target src/link
ln -s /srv/outside linkdir
ln -s src/run alias
chmod 777 src "with space" src/main.c $'new\nline/a\nb.txt'
chmod 644 src/run "with space/tool.py" private/notes src/deep/server.key
chmod 755 "with space/not-a-script.sh" private private/sub .hidden $'new\nline' src/deep/short
chmod 666 .hidden/cert.pem private/sub/job
chmod 4755 src/deep/empty
chmod 1777 src/deep
chmod 640 /srv/outside/target
chmod 750 /srv/outside
