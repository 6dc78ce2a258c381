#!/bin/sh
# Runs what comes through the port, one script a line in base64, and answers with
# its exit code and what it printed.
exec 3<>/dev/virtio-ports/pilot
echo ready >&3
while IFS= read -r line <&3; do
	printf '%s' "$line" | base64 -d >/run/pilot.sh
	code=0
	sh /run/pilot.sh >/run/pilot.out 2>&1 </dev/null 3<&- || code=$?
	echo "$code $(base64 -w0 </run/pilot.out)" >&3
done
