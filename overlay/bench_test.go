package overlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// BenchmarkEventToKernel is one endpoint replaced among many services, from the event of the watch until the kernel tells its
// listeners of the new backend. The processor's time is that of all of it, the kernel's included.
func BenchmarkEventToKernel(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchEvent(b, size) })
	}
}

func benchEvent(b *testing.B, size int) {
	ns := newSpace(b)
	objects := []runtime.Object{&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: v1.NodeSpec{PodCIDR: "10.244.0.0/24"}}}
	for i := range size {
		objects = append(objects, benchService(i), benchSlice(i, 0))
	}
	client := fake.NewClientset(objects...)
	events := watch.NewRaceFreeFake()
	client.PrependWatchReactor("endpointslices", func(clienttesting.Action) (bool, watch.Interface, error) { return true, events, nil })
	factory := informers.NewSharedInformerFactory(client, 0)
	dir := b.TempDir()
	n, err := New(Config{
		NodeName: "node", NetNS: ns.Path, CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"), Informers: factory,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		ResolvConf: "/dev/null", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	started := time.Now()
	go func() { ended <- n.Run(ctx) }()
	<-n.Ready()
	b.ReportMetric(float64(time.Since(started).Milliseconds()), "start-ms")
	var kernel *nl.NetlinkSocket
	if err := ns.Do(func() (err error) {
		kernel, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer kernel.Close()
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	turn := 0
	for b.Loop() {
		turn++
		s := benchSlice(size/2, turn)
		events.Modify(s)
		waitBackend(b, kernel, netip.MustParseAddr(s.Endpoints[0].Addresses[0]))
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/1000/float64(turn), "cpu-µs/op")
	cancel()
	<-ended
	factory.Shutdown()
}

func benchService(i int) *v1.Service {
	ip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", i)},
		Spec: v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Name: "web", Port: 80, Protocol: v1.ProtocolTCP}}}}
}

func benchSlice(i, turn int) *discovery.EndpointSlice {
	s := slice(fmt.Sprint("s", i), []string{"x", "x", "x", "x", "x"})
	s.Ports = s.Ports[:1]
	for e := range s.Endpoints {
		n := i*5 + e
		s.Endpoints[e].Addresses = []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)}
	}
	if turn > 0 {
		s.Endpoints[0].Addresses = []string{fmt.Sprintf("10.200.%d.%d", turn>>8&255, turn&255)}
	}
	return s
}

func waitBackend(b *testing.B, kernel *nl.NetlinkSocket, ip netip.Addr) {
	value := binary.BigEndian.AppendUint16(ip.AsSlice(), 8080)
	for {
		messages, _, err := kernel.Receive()
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM && bytes.Contains(m.Data, value) {
				return
			}
		}
	}
}
