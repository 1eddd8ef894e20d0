#!/bin/sh
# test_debian.sh WHEEL: checks in a fresh Debian 12 without a compiler that pip installs the wheel, the guide
# answers, and the server shows its page. Prints the time of each step, and fails if they take more than 60 s
# together. DEBIAN_MIRROR names another mirror; pip's variables (PIP_INDEX_URL, PIP_CERT) are passed on.
set -eu
wheel=$(realpath "$1")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
authorities=/etc/ssl/certs/ca-certificates.crt

for tool in debootstrap unshare; do
    command -v "$tool" > /dev/null && continue
    echo "test-debian: skipped, there is no $tool (Debian: apt install debootstrap)"
    exit 0
done
if [ "$(id -u)" != 0 ]; then
    echo "test-debian: skipped, it needs root for a chroot"
    exit 0
fi

root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
echo "debootstrap; the log is $root.log"
debootstrap --variant=minbase --include=ca-certificates,python3-venv \
    bookworm "$root" "$mirror" > "$root.log" 2>&1
rm "$root.log"
if [ -e "$authorities" ]; then cp "$authorities" "$root$authorities"; fi
cp /etc/resolv.conf "$root/etc/"
mkdir "$root/trial"
cp "$wheel" "$root/trial/"

cat > "$root/trial/steps.sh" <<'STEPS'
set -eu
cd /trial
for compiler in cc gcc g++ clang; do
    if command -v "$compiler"; then echo "there is a compiler"; exit 1; fi
done

now() { date +%s%3N; }
total=0
step() {
    name=$1; shift
    begun=$(now)
    "$@" > step.log 2>&1 || { cat step.log; echo "$name failed"; exit 1; }
    took=$(($(now) - begun))
    total=$((total + took))
    printf '%-12s %3d.%d s\n' "$name" $((took / 1000)) $((took % 1000 / 100))
}
page() {
    chaski-env/bin/chaski serve &
    deadline=$(($(now) + 60000))
    until python3 -c 'from urllib.request import Request, urlopen
page = urlopen(Request("http://127.0.0.1:11499/", headers={"Accept": "text/html"})).read()
assert b"<!doctype html>" in page.lower()' 2> page.log; do
        if ! kill -0 $! || [ "$(now)" -gt "$deadline" ]; then cat page.log; return 1; fi
        sleep 0.1
    done
}

export HOME=/root OLLAMA_HOST=127.0.0.1:11499
step "venv" python3 -m venv chaski-env
step "pip install" chaski-env/bin/pip install ./chaski_llm-*.whl
step "run guide" chaski-env/bin/chaski run guide "how do I use fewer cores?"
cat step.log
step "serve, page" page
printf '%-12s %3d.%d s\n' "together" $((total / 1000)) $((total % 1000 / 100))
test "$total" -le 60000 || { echo "more than 60 s"; exit 1; }
STEPS

# The mounts and all processes end with the namespaces.
unshare --mount --pid --fork --kill-child sh -eu -c '
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    chroot "$1" sh /trial/steps.sh' steps "$root"
