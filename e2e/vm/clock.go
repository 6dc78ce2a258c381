package main

import (
	"context"
	"fmt"
	"time"
)

// jumps are the clock changes, one after the other; the last one restores the time.
var jumps = []string{"+400 days", "-1 day", "-399 days"}

// clock makes the clocks of the first server and of the agents jump while a client writes numbers to the ledger, each
// after the former was acknowledged. Nothing is restarted.
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
await 120 "a first write" '[ "$(cat /run/writer.n)" -ge 1 ]'`); err != nil {
		return err
	}
	for _, jump := range jumps {
		if err := s.jump(ctx, jump); err != nil {
			return err
		}
	}
	out, err := s.on(ctx, m, `
touch /run/writer.stop
await 60 "the writer ends" '! systemctl is-active --quiet writer'
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

// jump changes the clocks. It waits for two more writes, and for every agent's heartbeat and kubelet API at the new
// time.
func (s *story) jump(ctx context.Context, by string) error {
	m, began := s.machines[0], time.Now()
	out, err := s.on(ctx, m, `
pid=$(systemctl show -p MainPID --value balsa-server)
at=$(cat /run/writer.n)
date -u -s "`+by+`" >/dev/null
await 120 "two more writes" '[ "$(cat /run/writer.n)" -ge $((at+2)) ]'
[ "$pid" = "$(systemctl show -p MainPID --value balsa-server)" ] || { echo "the server has restarted"; exit 1; }
balsa kubectl get nodes
date -u`)
	fmt.Print(indent(out))
	if err != nil {
		out, _ = s.on(ctx, m, "date -u; cat /run/writer.err; tail -n 3 /run/writer.failed; ls -l /var/lib/balsa/server/tls; journalctl -u balsa-server -n 40 -o cat --no-pager")
		fmt.Print(indent(out))
		return err
	}
	s.say("the clock jumped by %s: two more writes after %.0f s", by, time.Since(began).Seconds())
	for _, a := range s.agents() {
		if err := s.jumpAgent(ctx, a, by); err != nil {
			return err
		}
	}
	return nil
}

// jumpAgent changes an agent's clock like the server's, and waits until the agent writes heartbeats and its kubelet API
// answers.
func (s *story) jumpAgent(ctx context.Context, a *machine, by string) error {
	began := time.Now()
	out, err := s.on(ctx, a, `pid=$(systemctl show -p MainPID --value balsa-agent)
date -u -s "`+by+`" >/dev/null
echo $pid`)
	if err != nil {
		fmt.Print(indent(out))
		return err
	}
	out, err = s.on(ctx, s.machines[0], `
since=$(date -u +%s)
beat() { date -u -d "$(balsa kubectl get lease -n kube-node-lease `+a.name+` -o jsonpath='{.spec.renewTime}')" +%s; }
await 200 "a heartbeat of `+a.name+`" '[ "$(beat)" -ge $((since-5)) ]'
await 60 "the kubelet API of `+a.name+`" 'balsa kubectl get --raw /api/v1/nodes/`+a.name+`/proxy/healthz'`)
	fmt.Print(indent(out))
	if err != nil {
		out, _ = s.on(ctx, a, "date -u; ls -l --time-style=long-iso /var/lib/balsa/agent; journalctl -u balsa-agent -n 40 -o cat --no-pager")
		fmt.Print(indent(out))
		return err
	}
	s.say("the clock of %s jumped by %s: a heartbeat and its kubelet API after %.0f s", a.name, by, time.Since(began).Seconds())
	return nil
}
