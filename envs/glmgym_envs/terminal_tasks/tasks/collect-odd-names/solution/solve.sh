#!/bin/bash
set -eu
cat > /work/collect.sh <<'EOF'
#!/bin/bash
set -u
export LC_ALL=C
if [ $# -ne 2 ] || [ ! -d "$1" ]; then
    echo "usage: collect.sh SOURCE TARGET" >&2
    exit 2
fi
source=$1 target=$2
case $source in /*) ;; *) source=./$source ;; esac
case $target in /*) ;; *) target=./$target ;; esac
mkdir -p -- "$target" || exit 1
count=0
while IFS= read -r -d '' name; do
    [ "$source/$name" -ef "$target" ] && continue
    flat=${name//%/%25}
    flat=${flat//\//%2F}
    cp -- "$source/$name" "$target/$flat" && count=$((count + 1))
done < <(find "$source/" -samefile "$target" -prune -o -type f -iname '*.log' -printf '%P\0')
echo "$count"
EOF
chmod +x /work/collect.sh
