package main

import (
	"context"
	"fmt"
	"time"
)

// clock lets the first machine's clock jump, while somebody writes: a number
// into the ledger, each only after the last was acknowledged.
func (s *story) clock(ctx context.Context) error {
	m := s.machines[0]
	if _, err := s.on(ctx, m, `
cat >/run/writer.sh <<'END'
n=0
while [ ! -e /run/writer.stop ]; do
	if balsa kubectl patch configmap ledger --type=merge -p "{\"data\":{\"n\":\"$((n+1))\"}}" >/dev/null 2>/run/writer.err; then
		n=$((n+1)); echo $n >/run/writer.n
	else
		echo "$(date -u +%F) $(head -n 1 /run/writer.err)" >>/run/writer.failed
	fi
done
END
echo 0 >/run/writer.n
systemd-run --quiet --unit=writer sh /run/writer.sh
while [ "$(cat /run/writer.n)" -lt 1 ]; do sleep 0.2; done`); err != nil {
		return err
	}
	for _, jump := range []string{"+400 days", "-1 day"} {
		began := time.Now()
		out, err := s.on(ctx, m, `
pid=$(systemctl show -p MainPID --value balsa-server)
at=$(cat /run/writer.n)
date -u -s "`+jump+`" >/dev/null
while [ "$(cat /run/writer.n)" -lt $((at+2)) ]; do sleep 0.2; done
[ "$pid" = "$(systemctl show -p MainPID --value balsa-server)" ] || echo "the server has restarted"
balsa kubectl get nodes
date -u`)
		if err != nil {
			out, _ = s.on(ctx, m, "date -u; cat /run/writer.err; tail -n 3 /run/writer.failed; ls -l /var/lib/balsa/server/tls; journalctl -u balsa-server -n 40 -o cat --no-pager")
			fmt.Print(indent(out))
			return err
		}
		fmt.Print(indent(out))
		s.say("the clock jumped by %s: two more writes after %.0f s", jump, time.Since(began).Seconds())
	}
	out, err := s.on(ctx, m, `
touch /run/writer.stop
while systemctl is-active --quiet writer; do sleep 0.2; done
[ "$(balsa kubectl get configmap ledger -o jsonpath='{.data.n}')" = "$(cat /run/writer.n)" ]
balsa kubectl get configmap ledger -o jsonpath='{.data.written}' | grep -q first
echo "writes: $(cat /run/writer.n) acknowledged; failed: $(cat /run/writer.failed 2>/dev/null | wc -l)"
tail -n 2 /run/writer.failed 2>/dev/null || true
ls -l --time-style=long-iso /var/lib/balsa/server/tls
! balsa kubectl get deployment web 2>/dev/null || {
	balsa kubectl rollout restart deployment web
	balsa kubectl rollout status deployment web --timeout=540s
}`)
	fmt.Print(indent(out))
	if err == nil {
		s.say("no acknowledged write is lost")
	}
	return err
}
