package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/balsahq/balsa/e2e/figures"
)

// road is a connection between a pod on one host and a pod on another.
type road struct {
	from, to *pod
	srv      *server
	cells    []cell // the table's cells for its figures
}

// cell is one side of a way's rows.
type cell struct {
	side figures.Side
	row  string
}

// tracked returns the name of rows whose peer tracks connections.
func tracked(way string) string { return way + ", peer with tracking" }

// measurePaths compares the ways between the pods of two hosts.
func measurePaths(ctx context.Context, b *bench) error {
	for _, ways := range [][]way{
		{
			{"VXLAN", "by hand, checksums computed in software as the overlay has it", "vxlan", "ethtool -K plain-vxlan tx off", nil},
			{"VXLAN, offloaded", "by hand, as the kernel makes it", "vxlan", "", []string{"-offload"}},
		},
		{{"host gateway", "by hand on two more hosts", "host-gw", "", nil}},
	} {
		b.progress("pods on two hosts, %s", ways[0].mode)
		if err := b.measureWays(ctx, ways); err != nil {
			return fmt.Errorf("%s: %w", ways[0].mode, err)
		}
	}
	return nil
}

// measureWays measures in turns. Each way has two hosts with the overlay and four without it; two of these track
// connections, as hosts with Services have to.
func (b *bench) measureWays(ctx context.Context, ways []way) (err error) {
	const hosts = 6 // for each way
	l, err := newLab(ctx, b, hosts*len(ways))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	var roads []*road
	defer func() {
		for _, r := range roads {
			err = errors.Join(err, r.srv.close())
		}
	}()
	for i, w := range ways {
		three, err := l.roadsOf(ctx, w, l.hosts[hosts*i:])
		roads = append(roads, three...)
		if err != nil {
			return err
		}
	}
	for _, w := range ways {
		b.table.Section(w.name + ": pods on two hosts; peer: " + w.peer)
		b.announce(w.name, aimed)
		b.table.Section(w.name + ": the same; peer: by hand as well, with one rule that asks for the state of connections")
		b.announce(tracked(w.name), nil)
	}
	for range b.rounds {
		for _, r := range roads {
			if err := b.measureRoad(ctx, r); err != nil {
				return fmt.Errorf("from %s to %s: %w", r.from.addr, r.to.addr, err)
			}
		}
	}
	return ctx.Err()
}

// way is a kind of connection between hosts. For the overlay it has flags; the hand-made peer runs a script after the
// mode's.
type way struct {
	name, peer, mode, script string
	flags                    []string
}

// roadsOf returns the road over the overlay and the hand-made ones, each on its own hosts.
func (l *lab) roadsOf(ctx context.Context, w way, hosts []*node) (roads []*road, err error) {
	ours, err := l.overlayRoad(ctx, w, hosts[0], hosts[1])
	if err != nil {
		return nil, err
	}
	ours.cells = []cell{{figures.Ours, w.name}, {figures.Ours, tracked(w.name)}}
	roads = append(roads, ours)
	for i, row := range []string{w.name, tracked(w.name)} {
		a, b := hosts[2*i+2], hosts[2*i+3]
		plain, err := l.plainRoad(ctx, w, a, b)
		if err != nil {
			return roads, err
		}
		plain.cells = []cell{{figures.Theirs, row}}
		roads = append(roads, plain)
		if i > 0 {
			if err := errors.Join(a.track(), b.track()); err != nil {
				return roads, err
			}
		}
	}
	return roads, nil
}

// overlayRoad returns the road over the overlay.
func (l *lab) overlayRoad(ctx context.Context, w way, a, b *node) (*road, error) {
	for _, n := range []*node{a, b} {
		if _, err := n.overlay(w.mode, w.flags...); err != nil {
			return nil, err
		}
	}
	r := &road{}
	for _, end := range []struct {
		on  *node
		pod **pod
	}{{a, &r.from}, {b, &r.to}} {
		if err := end.on.ready(ctx); err != nil {
			return nil, err
		}
		var err error
		if *end.pod, err = end.on.plugOverlay(ctx); err != nil {
			return nil, err
		}
	}
	return r, r.open(ctx)
}

// plainRoad returns the hand-made road.
func (l *lab) plainRoad(ctx context.Context, w way, a, b *node) (*road, error) {
	r, mtu := &road{}, 1500
	for _, end := range []struct {
		on, other *node
		pod       **pod
	}{{a, b, &r.from}, {b, a, &r.to}} {
		lead := end.on.plainRoute
		if w.mode == "vxlan" {
			lead, mtu = end.on.plainVXLAN, 1450
		}
		if err := errors.Join(end.on.plainBridge(ctx), lead(ctx, end.other), end.on.do(ctx, w.script)); err != nil {
			return nil, err
		}
		var err error
		if *end.pod, err = end.on.plugPlain(ctx, mtu); err != nil {
			return nil, err
		}
	}
	return r, r.open(ctx)
}

// open starts the server at the far end and waits until it answers.
func (r *road) open(ctx context.Context) (err error) {
	if r.srv, err = r.to.serve(ctx); err != nil {
		return err
	}
	err = until(ctx, patience, func() error {
		c, err := r.from.dial(ctx, "tcp", r.at(echoPort))
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		return errors.Join(err, r.srv.close())
	}
	return nil
}

func (r *road) at(port int) string { return net.JoinHostPort(r.to.addr.String(), strconv.Itoa(port)) }

// loads are the measurements of a road.
var loads = []figures.Figure{
	{Name: "TCP, one stream", Unit: "Gbit/s"},
	{Name: "TCP, 4 streams", Unit: "Gbit/s"},
	{Name: "UDP, 64 bytes", Unit: "k/s"},
	{Name: "TCP round trip of a byte, p50", Unit: "µs"},
	{Name: "TCP round trip of a byte, p99", Unit: "µs"},
	{Name: "new TCP connections", Unit: "/s"},
}

// aimed are the aims of the first loads.
var aimed = []string{"98 % of peer", "98 % of peer", "98 % of peer", "1/0.98 of peer"}

// announce adds the rows of a way, so that they stay together.
func (b *bench) announce(name string, aims []string) {
	for i, f := range loads {
		if i < len(aims) {
			f.Aim = aims[i]
		}
		b.add(figures.Ours, name+": "+f.Name, f.Unit, f.Aim)
	}
}

// measureRoad measures one window of each load.
func (b *bench) measureRoad(ctx context.Context, r *road) error {
	to := r.to.addr.String()
	one, err := stream(ctx, r.from.place, to, 1, b.window)
	if err != nil {
		return err
	}
	four, err := stream(ctx, r.from.place, to, 4, b.window)
	if err != nil {
		return err
	}
	small, err := datagrams(ctx, r.from.place, to, b.window)
	if err != nil {
		return err
	}
	p50, p99, err := roundTrips(ctx, r.from.place, r.at(echoPort), b.window)
	if err != nil {
		return err
	}
	fresh, err := connections(ctx, r.from.place, r.at(echoPort), b.window)
	if err != nil {
		return err
	}
	for i, figure := range []float64{one, four, small, p50, p99, fresh} {
		for _, c := range r.cells {
			b.add(c.side, c.row+": "+loads[i].Name, loads[i].Unit, "", figure)
		}
	}
	return nil
}
