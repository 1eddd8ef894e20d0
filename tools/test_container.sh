#!/bin/sh
# test_container.sh: builds the Dockerfile's image with buildah, without a daemon. Checks in a container that
# the guide answers, that the server passes the health check of deploy/compose.yaml, and that it does not
# start without a key. The base is Debian's image, or debootstrap's output if no image registry can be
# reached. DEBIAN_MIRROR names another mirror for debootstrap.
set -eu
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
base=docker.io/library/debian:bookworm-slim
authorities=/etc/ssl/certs/ca-certificates.crt

if ! command -v buildah > /dev/null; then
    echo "test-container: skipped, there is no buildah (Debian: apt install buildah)"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "test-container: skipped, it needs root"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir -p build/containers
export BUILDAH_ISOLATION=chroot
in_store() { command=$1; shift; buildah --storage-driver vfs --root "$PWD/build/containers" \
    --runroot "$work/run" "$command" "$@"; }

if ! in_store pull --policy missing "$base" > "$work/pull.log" 2>&1; then
    cat "$work/pull.log"
    echo "debootstrap makes the base"
    debootstrap --variant=minbase bookworm "$work/root" "$mirror" > "$work/debootstrap.log"
    container=$(in_store from scratch)
    in_store add --quiet "$container" "$work/root" / > /dev/null
    in_store commit --quiet "$container" "$base" > /dev/null
    in_store rm "$container" > /dev/null
fi

# On networks with their own certificate authorities, the host lists these; pip in the container needs them.
mkdir "$work/network"
touch "$work/network/pip.conf"
if [ -e "$authorities" ]; then
    cp "$authorities" "$work/network/authorities.pem"
    printf '[global]\ncert = /network/authorities.pem\n' > "$work/network/pip.conf"
fi
in_store build --pull-never --tag chaski \
    --volume "$work/network:/network:ro" --volume "$work/network/pip.conf:/etc/pip.conf:ro" .

container=$(in_store from --pull-never chaski)
run() { in_store run "$@"; }
run "$container" -- chaski run guide "how do I use fewer cores?"
if run --env OLLAMA_HOST=0.0.0.0:11498 "$container" -- chaski serve; then
    echo "the server starts open to everybody"
    exit 1
fi
run --env CHASKI_OPEN=1 --env OLLAMA_HOST=0.0.0.0:11434 "$container" -- timeout 60 chaski serve &
server=$!
check='import urllib.request as r; r.urlopen("http://127.0.0.1:11434/", timeout=5)'
until run "$container" -- python -c "$check" 2> /dev/null; do
    kill -0 "$server" || { echo "the server ended"; exit 1; }
    sleep 1
done
kill "$server"
wait "$server" || true
in_store rm "$container" > /dev/null
echo "the container answers and serves"
