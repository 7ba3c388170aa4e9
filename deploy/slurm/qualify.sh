#!/bin/sh
# Qualifies a node: Prolog, Epilog and HealthCheckProgram of slurmd, by the name of the link that it is called by.
#
#   ln -s qualify.sh prolog; ln -s qualify.sh epilog; ln -s qualify.sh health_check
#
# Runs the site's own check, /etc/nightshift/qualify, with that name as its argument; without one, `nvidia-smi -L`
# must answer. A prolog or epilog that fails makes slurmctld drain the node, and put the job back into the queue.
# Slurm ignores what a health check returns, so this drains the node, unless it is out of use already.
set -u
what=$(basename "$0")
hook=${NIGHTSHIFT_QUALIFY:-/etc/nightshift/qualify}
if [ -e "$hook" ]; then set -- "$hook" "$what"; else set -- nvidia-smi -L; fi
said=$(timeout -k 2 "${NIGHTSHIFT_QUALIFY_S:-50}" "$@" 2>&1) && exit 0
code=$?
[ $code -ne 124 ] || said="no answer in time"
why=$(printf '%s' "$said" | tail -n 1 | tr -d "\"'\\\\" | tr -s '[:cntrl:]' ' ' | cut -c 1-150)
echo "$what: $1 ended with $code: $why" >&2
[ "$what" = health_check ] || exit 1
state=$(scontrol --oneliner show node "$SLURMD_NODENAME" | sed -n 's/.* State=\([^ ]*\) .*/\1/p')
case $state in
  '' | *DRAIN* | *DOWN* | *FAIL* | *MAINT* | *REBOOT*) ;;
  *) scontrol update nodename="$SLURMD_NODENAME" state=drain reason="Health check failed: $why ($code)" ;;
esac
exit 1
