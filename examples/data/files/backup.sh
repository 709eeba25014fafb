#!/bin/sh
# Keep the last seven archives of a folder.
set -eu

source_dir="${1:?usage: backup.sh FOLDER TARGET}"
target_dir="${2:?usage: backup.sh FOLDER TARGET}"
stamp="$(date +%Y%m%d-%H%M%S)"

mkdir -p "$target_dir"
tar -czf "$target_dir/backup-$stamp.tar.gz" -C "$source_dir" .

ls -1t "$target_dir"/backup-*.tar.gz | tail -n +8 | while read -r old; do
    rm -f "$old"
    echo "removed $old"
done
