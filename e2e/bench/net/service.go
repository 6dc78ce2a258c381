package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/e2e/figures"
)

// patience is the limit for what should happen within a moment.
const patience = 30 * time.Second

// measureService compares connections through a Service with direct ones.
func measureService(ctx context.Context, b *bench) (err error) {
	b.progress("through a Service")
	l, err := newLab(ctx, b, 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	r, err := l.overlayRoad(ctx, way{mode: "vxlan"}, l.hosts[0], l.hosts[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.srv.close()) }()
	far, err := l.service(ctx, "far", r.to.addr)
	if err != nil {
		return err
	}
	b.table.Section("through a Service to a pod on another host; peer: to the pod's address")
	if err := b.compare(ctx, "ClusterIP", r.from.place, r.to.addr.String(), far.Spec.ClusterIP, nil); err != nil {
		return fmt.Errorf("ClusterIP: %w", err)
	}
	outside := l.net.Client
	from, err := machinePlace(outside)
	if err != nil {
		return err
	}
	defer from.ns.Close()
	if err := from.do(ctx, fmt.Sprintf("ip route add 10.244.%d.0/24 via %s", l.hosts[1].number, l.hosts[1].Addr)); err != nil {
		return err
	}
	ports := map[int]int{}
	for _, p := range far.Spec.Ports {
		ports[int(p.Port)] = int(p.NodePort)
	}
	b.table.Section("from outside through a node port of the pod's host; peer: to the pod's address, routed by that host")
	if err := b.compare(ctx, "NodePort", from, r.to.addr.String(), l.hosts[1].Addr.String(), ports); err != nil {
		return fmt.Errorf("NodePort: %w", err)
	}
	return ctx.Err()
}

// service creates a Service for one pod and all its ports.
func (l *lab) service(ctx context.Context, name string, to netip.Addr) (*corev1.Service, error) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
	slice := sliceOf(name, to)
	slice.Ports = nil
	for _, port := range []int32{echoPort, webPort, iperfPort} {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "p" + strconv.Itoa(int(port)), Port: port})
		slice.Ports = append(slice.Ports, discovery.EndpointPort{Name: &svc.Spec.Ports[len(svc.Spec.Ports)-1].Name, Port: &port})
	}
	if _, err := l.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return l.client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{})
}

// compare measures a pod's address and another address of the same pod, in turns; ports maps the pod's ports to those
// of the other address, where they differ.
func (b *bench) compare(ctx context.Context, what string, from place, direct, through string, ports map[int]int) error {
	at := func(side figures.Side, port int) string {
		if side == figures.Theirs {
			return net.JoinHostPort(direct, strconv.Itoa(port))
		}
		if other, ok := ports[port]; ok {
			port = other
		}
		return net.JoinHostPort(through, strconv.Itoa(port))
	}
	for side := range figures.Theirs + 1 {
		err := until(ctx, patience, func() error {
			c, err := from.dial(ctx, "tcp", at(side, echoPort))
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for range b.rounds {
		for side := range figures.Theirs + 1 {
			if err := b.compareOnce(ctx, what, from, side, func(port int) string { return at(side, port) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareOnce measures one window of each load.
func (b *bench) compareOnce(ctx context.Context, what string, from place, side figures.Side, at func(port int) string) error {
	const aim = "95 % of peer"
	for _, load := range []struct {
		name, unit, aim string
		measure         func() (float64, error)
	}{
		{"HTTP, kept connections", "/s", aim, func() (float64, error) { return requests(ctx, from, at(webPort), b.window, false) }},
		{"HTTP, a connection each", "/s", aim, func() (float64, error) { return requests(ctx, from, at(webPort), b.window, true) }},
		{"new TCP connections", "/s", "", func() (float64, error) { return connections(ctx, from, at(echoPort), b.window) }},
	} {
		rate, err := load.measure()
		if err != nil {
			return fmt.Errorf("%s: %w", load.name, err)
		}
		b.add(side, what+": "+load.name, load.unit, load.aim, rate)
	}
	p50, p99, err := roundTrips(ctx, from, at(echoPort), b.window)
	if err != nil {
		return err
	}
	b.add(side, what+": TCP round trip of a byte, p50", "µs", aim, p50)
	b.add(side, what+": TCP round trip of a byte, p99", "µs", "", p99)
	return nil
}
