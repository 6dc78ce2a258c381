package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/lan"
)

const (
	// apart is the time between two changes. Upstream gathers changes for up to a second before it writes again;
	// changes that are further apart are written at once.
	apart = 1200 * time.Millisecond
	// quiet is the time without a commit after which a full sync counts as done.
	quiet = 3 * time.Second
	// calmed is the CPU time a second below which a router counts as idle.
	calmed = 10 * time.Millisecond
	// longest is the limit of one change.
	longest = 10 * time.Minute
	// manyAtOnce is how many Services a burst changes.
	manyAtOnce = 100
)

// router is a program that routes Services to endpoints, on its own host.
type router struct {
	side    figures.Side
	name    string
	on      *node
	process *lan.Process
	start   func() (*lan.Process, error)
	seen    *sightings
	client  *pod
	server  *server
	news    *news
	service string // address of a Service whose endpoint is the server's pod
	direct  string // address of the server's pod
}

// measureScale compares the routers with rising numbers of Services.
func measureScale(ctx context.Context, b *bench) (err error) {
	hosts := 1
	if b.proxy != "" {
		hosts = 2
	}
	l, err := newLab(ctx, b, hosts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	routers, err := l.routers(ctx)
	defer func() {
		for _, r := range routers {
			if r.server != nil {
				err = errors.Join(err, r.server.close())
			}
		}
	}()
	if err != nil {
		return err
	}
	heard, err := l.listen(ctx)
	if err != nil {
		return err
	}
	defer heard.close()
	for _, r := range routers {
		r.news = heard
	}
	crowd := &crowded{lab: l}
	for _, size := range b.sizes {
		b.progress("%d Services", size)
		if err := crowd.grow(ctx, size); err != nil {
			return err
		}
		b.table.Section(fmt.Sprintf("%d Services with %d endpoints each; peer: kube-proxy in nftables mode", size, endpointsEach))
		if err := b.measureSize(ctx, crowd, routers); err != nil {
			return fmt.Errorf("%d Services: %w", size, err)
		}
	}
	b.flatness(routers)
	return ctx.Err()
}

// routers returns the two routers, each with a client pod and a server pod.
func (l *lab) routers(ctx context.Context) ([]*router, error) {
	var out []*router
	for i, on := range l.hosts {
		r := &router{side: figures.Side(i), on: on, name: "balsa"}
		out = append(out, r)
		r.start = func() (*lan.Process, error) { return on.overlay("auto") }
		plug := on.plugOverlay
		if r.side == figures.Theirs {
			r.name = "kube-proxy"
			r.start = func() (*lan.Process, error) { return on.kubeProxy() }
			plug = func(ctx context.Context) (*pod, error) { return on.plugPlain(ctx, 1500) }
			if err := on.plainBridge(ctx); err != nil {
				return out, err
			}
		} else { // its bridge has to exist before the pods
			first, err := r.start()
			if err != nil {
				return out, err
			}
			if err := errors.Join(on.ready(ctx), first.Kill9()); err != nil {
				return out, err
			}
		}
		var err error
		if r.client, err = plug(ctx); err != nil {
			return out, err
		}
		far, err := plug(ctx)
		if err != nil {
			return out, err
		}
		if r.server, err = far.serve(ctx); err != nil {
			return out, err
		}
		svc, err := l.service(ctx, "real-"+r.name, far.addr)
		if err != nil {
			return out, err
		}
		port := strconv.Itoa(echoPort)
		r.service, r.direct = net.JoinHostPort(svc.Spec.ClusterIP, port), net.JoinHostPort(far.addr.String(), port)
	}
	return out, nil
}

// kubeProxy starts upstream's proxy with its default settings, except that it leaves the limits of connection tracking
// alone, which belong to the whole machine.
func (n *node) kubeProxy() (*lan.Process, error) {
	return n.Start(lan.Program{Path: n.lab.b.proxy, Log: n.dir("kube-proxy.log"), Args: []string{
		"--kubeconfig=" + n.lab.kubeconfig, "--hostname-override=" + n.name, "--proxy-mode=nftables", "--cluster-cidr=" + podNetwork,
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}})
}

// measureSize measures both routers with the present Services. They are stopped between their turns, and ended
// afterwards.
func (b *bench) measureSize(ctx context.Context, c *crowded, routers []*router) (err error) {
	defer func() {
		for _, r := range routers {
			if r.process != nil {
				err = errors.Join(err, r.process.Kill9(), r.on.dropRules())
			}
		}
	}()
	for _, r := range routers {
		if err := b.fullSync(ctx, c, r); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	const turns = 2
	for range turns {
		for _, r := range routers {
			if err := b.takeTurn(ctx, c, r, max(1, b.changes/turns)); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for range min(b.rounds, 3) {
		for _, r := range routers {
			if err := b.connect(ctx, c, r); err != nil {
				return fmt.Errorf("%s: connections: %w", r.name, err)
			}
		}
	}
	for _, r := range routers {
		if err := b.restart(ctx, c, r); err != nil {
			return fmt.Errorf("%s: restart: %w", r.name, err)
		}
	}
	return nil
}

// connect opens connections through a Service and directly to its pod, in turns. The load of the machine affects both
// alike, so their ratio shows the effect of the number of Services.
func (b *bench) connect(ctx context.Context, c *crowded, r *router) error {
	const turns = 4
	var through, straight float64
	for range turns {
		rate, err := connections(ctx, r.client.place, r.service, b.window/turns)
		if err != nil {
			return fmt.Errorf("connections through a Service: %w", err)
		}
		through += rate / turns
		if rate, err = connections(ctx, r.client.place, r.direct, b.window/turns); err != nil {
			return fmt.Errorf("connections to the pod: %w", err)
		}
		straight += rate / turns
	}
	b.add(r.side, atSize(c, newConnections), "/s", "", through)
	b.add(r.side, atSize(c, newConnectionsRatio), "times", "", through/straight)
	return nil
}

// atSize returns the name of a figure.
func atSize(c *crowded, what string) string { return fmt.Sprintf("%d: %s", len(c.slices), what) }

const (
	faster         = "1/5 of peer"
	oneChanged     = "one endpoint changed, from the request until the kernel has it"
	oneChangedNews = "one endpoint changed, from the API's event until the kernel has it"
	oneChangedCPU  = "one endpoint changed, CPU"
	newConnections = "new TCP connections through a Service"
	// newConnectionsRatio does not depend on how busy the machine is.
	newConnectionsRatio = "new TCP connections through a Service, by those straight to the pod"
)

// fullSync starts a router on a kernel without tables.
func (b *bench) fullSync(ctx context.Context, c *crowded, r *router) error {
	b.progress("%d Services: full sync of %s", len(c.slices), r.name)
	if err := r.on.dropRules(); err != nil {
		return err
	}
	took, cpu, err := r.sync(ctx, func() error {
		n, err := r.on.entries()
		if err == nil && n < len(c.slices) {
			err = fmt.Errorf("%d of %d Services are in the kernel", n, len(c.slices))
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add(r.side, atSize(c, "full sync, empty kernel, from its start"), "s", faster, took.Seconds())
	b.add(r.side, atSize(c, "full sync, empty kernel, CPU"), "s", "", cpu.Seconds())
	if err := r.calm(ctx); err != nil {
		return err
	}
	return r.process.Pause()
}

// sync starts the router and waits until it has nothing more to write.
func (r *router) sync(ctx context.Context, there func() error) (took, cpu time.Duration, err error) {
	g, err := r.on.generation()
	if err != nil {
		return 0, 0, err
	}
	defer g.close()
	began := time.Now()
	if r.process, err = r.start(); err != nil {
		return 0, 0, err
	}
	at, err := g.settled(ctx, 5*time.Minute, quiet, there)
	if err != nil {
		return 0, 0, err
	}
	return at.Sub(began), cpuTime(r.process.PID), nil
}

// takeTurn changes endpoints while the router runs and the others are stopped.
func (b *bench) takeTurn(ctx context.Context, c *crowded, r *router, changes int) (err error) {
	b.progress("%d Services: changes, %s", len(c.slices), r.name)
	if err := r.process.Resume(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.process.Pause()) }()
	if r.seen, err = r.on.watchRules(); err != nil {
		return err
	}
	defer r.seen.close()
	if _, _, err := r.change(ctx, c, 0); err != nil { // also handles the changes made while it was stopped
		return err
	}
	if err := r.calm(ctx); err != nil {
		return err
	}
	before := cpuTime(r.process.PID)
	for i := range changes {
		fromRequest, fromNews, err := r.change(ctx, c, i*7919%len(c.slices))
		if err != nil {
			return err
		}
		b.add(r.side, atSize(c, oneChanged), "ms", faster, float64(fromRequest)/1e6)
		b.add(r.side, atSize(c, oneChangedNews), "ms", faster, float64(fromNews)/1e6)
		pause(ctx, apart-fromRequest)
	}
	used := cpuTime(r.process.PID) - before
	b.add(r.side, atSize(c, oneChangedCPU), "ms", faster, float64(used)/1e6/float64(changes))
	if err := b.burst(ctx, c, r); err != nil {
		return err
	}
	mib, err := figures.PSS([]int{r.process.PID})
	if err != nil {
		return err
	}
	b.add(r.side, atSize(c, "memory after this, PSS"), "MiB", "", mib)
	peak, err := peakMemory(r.process.PID)
	b.add(r.side, atSize(c, "memory at most, RSS"), "MiB", "", peak)
	return err
}

// calm waits until the router uses almost no CPU.
func (r *router) calm(ctx context.Context) error {
	pause(ctx, quiet)
	before := cpuTime(r.process.PID)
	return until(ctx, 5*time.Minute, func() error {
		pause(ctx, time.Second)
		now := cpuTime(r.process.PID)
		used := now - before
		if before = now; used > calmed {
			return fmt.Errorf("%s does not become idle: it used %s of a second", r.name, used)
		}
		return nil
	})
}

// change changes an endpoint. It returns the time from the request, and from the watch's event, to the commit in the
// kernel.
func (r *router) change(ctx context.Context, c *crowded, service int) (fromRequest, fromNews time.Duration, err error) {
	to := c.address()
	r.seen.look(to)
	began := time.Now()
	if err := c.change(ctx, service, to); err != nil {
		return 0, 0, err
	}
	at, err := r.seen.wait(ctx, to, longest)
	if err != nil {
		return 0, 0, err
	}
	heard, err := r.news.of(ctx, c.slices[service].ResourceVersion)
	return at.Sub(began), at.Sub(heard), err
}

// burst changes one endpoint of each of many Services, one right after the other.
func (b *bench) burst(ctx context.Context, c *crowded, r *router) error {
	pause(ctx, apart)
	before, began := cpuTime(r.process.PID), time.Now()
	last := c.address()
	for i := range min(manyAtOnce, len(c.slices)) {
		last = c.address()
		r.seen.look(last)
		if err := c.change(ctx, (i*7919+1)%len(c.slices), last); err != nil {
			return err
		}
	}
	sent := time.Now()
	at, err := r.seen.wait(ctx, last, longest)
	if err != nil {
		return err
	}
	pause(ctx, apart)
	b.add(r.side, atSize(c, fmt.Sprintf("%d Services changed at once, the last until the kernel has it", manyAtOnce)), "ms", "", float64(at.Sub(sent))/1e6)
	b.add(r.side, atSize(c, fmt.Sprintf("%d Services changed at once, CPU", manyAtOnce)), "ms", "", float64(cpuTime(r.process.PID)-before)/1e6)
	b.progress("  %d changes in %s", manyAtOnce, sent.Sub(began).Round(time.Millisecond))
	return nil
}

// restart kills a router, changes an endpoint and starts the router again. The kernel still has the other endpoints.
func (b *bench) restart(ctx context.Context, c *crowded, r *router) error {
	b.progress("%d Services: restart of %s", len(c.slices), r.name)
	if err := r.process.Kill9(); err != nil {
		return err
	}
	if err := c.change(ctx, 0, c.address()); err != nil {
		return err
	}
	took, cpu, err := r.sync(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	b.add(r.side, atSize(c, "full sync after kill -9, from its start"), "s", faster, took.Seconds())
	b.add(r.side, atSize(c, "full sync after kill -9, CPU"), "s", "", cpu.Seconds())
	return r.process.Pause()
}

// flatness adds rows that say how much figures grew with the number of Services.
func (b *bench) flatness(routers []*router) {
	least, most := b.sizes[0], b.sizes[len(b.sizes)-1]
	if least == most {
		return
	}
	b.table.Section(fmt.Sprintf("%d Services by %d", most, least))
	for _, what := range []string{oneChanged, oneChangedNews, oneChangedCPU, newConnections, newConnectionsRatio} {
		for _, r := range routers {
			ratio := b.table.Median(r.side, fmt.Sprintf("%d: %s", most, what)) / b.table.Median(r.side, fmt.Sprintf("%d: %s", least, what))
			b.add(r.side, "growth: "+what, "times", "1", ratio)
		}
	}
}
