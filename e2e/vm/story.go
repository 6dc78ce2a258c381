package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// story is one run: the steps, in order, and their machines.
type story struct {
	opts  options
	work  string
	image image
	began time.Time

	machines []*machine
	before   string // inventory of the last machine before the installation
}

func (s *story) say(format string, args ...any) {
	fmt.Printf("%7.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) end() {
	for _, m := range s.machines {
		m.off()
	}
}

func (s *story) tell(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.boot, s.installFirst} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	var steps []func(context.Context) error
	if s.opts.agents > 0 {
		steps = append(steps, s.joinAgents)
	}
	if s.opts.pods {
		steps = append(steps, s.pods, s.upgrade)
	}
	if s.opts.clock {
		steps = append(steps, s.clock)
	}
	steps = append(steps, s.crash)
	if s.opts.servers > 1 {
		steps = append(steps, s.join)
	}
	var faults []error
	for _, step := range append(steps, s.uninstall) {
		if err := step(ctx); err != nil {
			s.say("NOT SO: %v", err)
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// await is a shell function in every script: await SECONDS WHAT CONDITION. If the condition does not hold in time, it
// prints WHAT and the server's log. It measures time by the machine's uptime, because clocks jump here.
const await = `set -eu
uptime_s() { cut -d. -f1 /proc/uptime; }
await() {
	limit=$(($(uptime_s) + $1))
	while ! eval "$3"; do
		[ "$(uptime_s)" -lt $limit ] || {
			echo "gave up after $1 s: $2"
			journalctl -u balsa-server -u balsa-agent -n 8 -o cat --no-pager
			exit 1
		}
		sleep 0.3
	done
}
`

// on runs a script that has to succeed within the time limit of a step.
func (s *story) on(ctx context.Context, m *machine, script string) (string, error) {
	return m.run(ctx, s.opts.patience, await+script)
}

// boot starts all machines at once.
func (s *story) boot(ctx context.Context) error {
	s.machines = make([]*machine, s.opts.servers+s.opts.agents)
	faults := make([]error, len(s.machines))
	var all sync.WaitGroup
	for i := range s.machines {
		all.Go(func() {
			began := time.Now()
			if s.machines[i], faults[i] = boot(ctx, s.opts, s.image, s.work, i+1); faults[i] == nil {
				s.say("%s runs Debian under systemd, after %.0f s", s.machines[i].name, time.Since(began).Seconds())
			}
		})
	}
	all.Wait()
	s.machines = slices.DeleteFunc(s.machines, func(m *machine) bool { return m == nil })
	if err := errors.Join(faults...); err != nil {
		return err
	}
	var err error
	s.before, err = s.on(ctx, s.last(), inventory)
	return err
}

func (s *story) last() *machine { return s.machines[len(s.machines)-1] }

func (s *story) installFirst(ctx context.Context) error {
	began := time.Now()
	out, err := s.on(ctx, s.machines[0], "sh /mnt/install.sh --server --first --binary /mnt/balsa --wait 1200"+s.flags())
	fmt.Print(indent(out))
	if err != nil {
		return err
	}
	s.say("install.sh --server: a ready server after %.0f s", time.Since(began).Seconds())
	ready := `balsa kubectl get node vm1 -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' | grep -q True`
	if !s.opts.pods {
		ready = ""
	}
	out, err = s.on(ctx, s.machines[0], ready+`
balsa kubectl get nodes -o wide
balsa kubectl create configmap ledger --from-literal=written=first
systemctl show balsa-server -p Type,KillMode,LimitNOFILE,LimitNPROC,TasksMax,Delegate,OOMScoreAdjust,Restart
grep -q '^-999$' /proc/$(systemctl show -p MainPID --value balsa-server)/oom_score_adj
balsa members`)
	fmt.Print(indent(out))
	return err
}

// flags returns the servers' installation flags beside those in the README.
func (s *story) flags() string {
	if s.opts.pods {
		return ""
	}
	return " --disable-agent"
}

// hellos lists the processes of the demonstration's containers.
const hellos = `pidof hello | tr ' ' '\n' | sort -n | tr '\n' ' '`

func (s *story) pods(ctx context.Context) error {
	began := time.Now()
	out, err := s.on(ctx, s.machines[0], `
balsa kubectl create deployment web --image=balsahq/hello:1 --replicas=3 --port=8080
balsa kubectl rollout status deployment web --timeout=540s
`+hellos)
	fmt.Print(indent(out))
	s.say("three pods after %.0f s", time.Since(began).Seconds())
	return err
}

// upgrade: a second installation of the same version changes nothing, and a restart does not restart containers.
func (s *story) upgrade(ctx context.Context) error {
	out, err := s.on(ctx, s.machines[0], `
sh /mnt/install.sh --server --binary /mnt/balsa | grep 'runs already, with just this'
before=$(`+hellos+`) pid=$(systemctl show -p MainPID --value balsa-server)
sh /mnt/install.sh --server --binary /mnt/balsa --max-pods=100 | grep 'runs on as it was started'
[ "$pid" = "$(systemctl show -p MainPID --value balsa-server)" ]
sh /mnt/install.sh --server --binary /mnt/balsa --max-pods=99 --restart --wait 1200
[ "$pid" != "$(systemctl show -p MainPID --value balsa-server)" ]
after=$(`+hellos+`)
[ -n "$before" ] && [ "$before" = "$after" ] || { echo "containers before: $before, after: $after"; exit 1; }
balsa kubectl get configmap ledger -o jsonpath='{.data.written}' | grep -q first`)
	if err != nil {
		fmt.Print(indent(out))
		return err
	}
	s.say("upgrade in place: the server restarted, its containers did not")
	return nil
}

// crash: systemd restarts a killed server.
func (s *story) crash(ctx context.Context) error {
	began := time.Now()
	_, err := s.on(ctx, s.machines[0], `
before=$(`+hellos+`)
systemctl kill --kill-whom=main -s KILL balsa-server
await 120 "systemd starts the server again" '[ "$(systemctl show -p NRestarts --value balsa-server)" != 0 ]'
await 400 "the server is ready again" 'systemctl is-active --quiet balsa-server'
[ "$before" = "$(`+hellos+`)" ]`)
	if err == nil {
		s.say("killed: systemd has it ready again after %.0f s, containers untouched", time.Since(began).Seconds())
	}
	return err
}

// join adds the other servers with the command that the first one prints.
func (s *story) join(ctx context.Context) error {
	for _, m := range s.machines[1:s.opts.servers] {
		began := time.Now()
		printed, err := s.on(ctx, s.machines[0], "balsa token create --role server --print-command")
		if err != nil {
			return err
		}
		args, ok := strings.CutPrefix(strings.TrimSpace(printed), "balsa server ")
		if !ok {
			return fmt.Errorf("no command for the next server: %q", printed)
		}
		out, err := s.on(ctx, m, "sh /mnt/install.sh --server --binary /mnt/balsa --wait 1200 "+args+s.flags()+`
[ ! -e /etc/balsa/join-token ]`)
		if err != nil {
			fmt.Print(indent(out))
			return err
		}
		s.say("%s has joined, after %.0f s", m.name, time.Since(began).Seconds())
	}
	out, err := s.on(ctx, s.machines[0], `
await 400 "three voters" '[ "$(balsa members | grep -c " voter *alive ")" = 3 ]'
balsa members; balsa kubectl get nodes`)
	fmt.Print(indent(out))
	return err
}

// agents returns the machines without a server.
func (s *story) agents() []*machine { return s.machines[s.opts.servers:] }

// joinAgents adds the agents with the command that the first server prints.
func (s *story) joinAgents(ctx context.Context) error {
	for _, m := range s.agents() {
		began := time.Now()
		printed, err := s.on(ctx, s.machines[0], "balsa token create --role agent --print-command")
		if err != nil {
			return err
		}
		args, ok := strings.CutPrefix(strings.TrimSpace(printed), "balsa agent ")
		if !ok {
			return fmt.Errorf("no command for an agent: %q", printed)
		}
		if out, err := s.on(ctx, m, "sh /mnt/install.sh --agent --binary /mnt/balsa --wait 1200 "+args); err != nil {
			fmt.Print(indent(out))
			return err
		}
		s.say("%s has joined as an agent, after %.0f s", m.name, time.Since(began).Seconds())
	}
	return nil
}

// inventory lists everything that an installation makes on a machine.
const inventory = `
ip -o link | awk '{ print "link", $2 }'
ip route show table all type unicast | sed 's/^/route /'
awk '{ print "mount", $5 }' /proc/self/mountinfo
find /etc /usr/local /var/lib /var/log /opt -xdev ! -path '/var/log/journal*' ! -path '/var/lib/systemd/*' | sed 's/^/file /'
for key in fs.inotify.max_user_instances fs.inotify.max_user_watches kernel.pid_max vm.max_map_count net.ipv4.ip_forward; do
	echo "sysctl $key $(cat /proc/sys/$(echo $key | tr . /))"
done
ls -d /sys/fs/cgroup/*/ | sed 's/^/cgroup /'
ls /run | sed 's/^/run /'
ps -eo args | grep -E '[b]alsa|[c]ontainerd|[p]ause|[h]ello' | sed 's/^/process /'
true`

func (s *story) uninstall(ctx context.Context) error {
	m, began := s.last(), time.Now()
	out, err := s.on(ctx, m, "sh /mnt/install.sh --uninstall --purge")
	fmt.Print(indent(out))
	if err != nil {
		return err
	}
	after, err := s.on(ctx, m, inventory)
	if err != nil {
		return err
	}
	was, is := strings.Split(s.before, "\n"), strings.Split(after, "\n")
	var odd []string
	for _, line := range is {
		if !slices.Contains(was, line) && !harmless(line) {
			odd = append(odd, "left behind: "+line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) && !harmless(line) {
			odd = append(odd, "taken away: "+line)
		}
	}
	if len(odd) > 0 {
		return fmt.Errorf("%s is not as it was:\n%s", m.name, strings.Join(odd, "\n"))
	}
	s.say("uninstalled in %.0f s, and %s is as it was", time.Since(began).Seconds(), m.name)
	if len(s.machines) == 1 {
		return nil
	}
	out, err = s.on(ctx, s.machines[0], "balsa members; balsa kubectl get configmap ledger")
	fmt.Print(indent(out))
	return err
}

// harmless reports whether a line of the inventory changes by itself.
func harmless(line string) bool {
	for _, part := range []string{"run writer", "file /etc/resolv.conf", "file /var/lib/dbus", "file /var/lib/apt/daily_lock", "pilot", "mount /run/user", "mount /run/credentials", "cgroup /sys/fs/cgroup/dev-"} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

func indent(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString("          | " + strings.TrimRight(line, "\n") + "\n")
	}
	return out.String()
}
