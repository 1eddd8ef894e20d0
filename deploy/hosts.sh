#!/bin/sh
# Lets other hosts join the cluster of this one, by ssh (docs/cluster.md):
#   ray start --head && deploy/hosts.sh join 10.0.0.1:6379 ada@10.0.0.2 ada@10.0.0.3
#   deploy/hosts.sh leave ada@10.0.0.2
# Each host needs chaski with the extra `cluster` in the folder CHASKI_VENV of its user (default: .venv). The
# token goes over standard input, so that it is not visible in a list of processes.
set -eu

usage() { echo "usage: $0 join HEAD:PORT HOST... | leave HOST..." >&2; exit 2; }

bin="${CHASKI_VENV:-.venv}/bin"
action="${1-}"
[ $# -ge 2 ] || usage
shift
case "$action" in
join)
  head="$1"
  shift
  [ $# -ge 1 ] || usage
  token="${RAY_AUTH_TOKEN:-$(cat ~/.ray/auth_token)}"
  command="read -r RAY_AUTH_TOKEN && export RAY_AUTH_TOKEN RAY_AUTH_MODE=token && $bin/ray start --address $head"
  ;;
leave)
  token=""
  command="read -r nothing; $bin/ray stop"
  ;;
*) usage ;;
esac

failed=""
for host; do
  echo "$action: $host" >&2
  printf '%s\n' "$token" | ssh "$host" "$command" || failed="$failed $host"
done
[ -z "$failed" ] || { echo "these hosts did not $action:$failed" >&2; exit 1; }
