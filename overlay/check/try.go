package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
)

const (
	// tryTime is how long one attempt may take; a target counts as broken after that many failed attempts.
	tryTime  = 1200 * time.Millisecond
	attempts = 3
	// outsideTime is how long the cluster's DNS may take to find that no resolver answers.
	outsideTime = 5 * time.Second
	// settle bounds the time that a new API object takes to reach the kernel of each node.
	settle      = 5 * time.Second
	settleAgain = 200 * time.Millisecond
)

// method describes how a kind is tried.
type method struct {
	fromHost bool
	once     bool // one attempt is enough, because it takes long
	settles  bool // may fail until the API object has reached the nodes
	try      func(p *probe, ctx context.Context, from host.Namespace, t Target, r *Result) error
}

var methods = map[Kind]method{
	Node:     {fromHost: true, try: (*probe).connect},
	PodNode:  {try: (*probe).connect},
	NodePod:  {fromHost: true, try: (*probe).stream},
	Pod:      {try: (*probe).stream},
	PodUDP:   {try: (*probe).datagram},
	Service:  {settles: true, try: (*probe).stream},
	NodePort: {fromHost: true, settles: true, try: (*probe).stream},
	MTU:      {once: true, try: (*probe).sizes},
	DNS:      {try: (*probe).resolve},
	Outside:  {once: true, try: (*probe).resolve},
	Admitted: {settles: true, try: (*probe).connect},
	Denied:   {settles: true, try: (*probe).refused},
}

// try tries all targets, and reports those for which there was no time.
func (p *probe) try(ctx context.Context, targets []Target) []Result {
	results := make([]Result, len(targets))
	slots := make(chan struct{}, triesAtOnce)
	var running sync.WaitGroup
	for i := range targets {
		t, r := targets[i], &results[i]
		r.Kind, r.To = t.Kind, t.To
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			r.Error = "not tried: the time of the check was over"
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			if err := fault.Do("overlay/check", func() { p.tryOne(ctx, t, r) }); err != nil {
				r.OK, r.Error = false, err.Error()
			}
		})
	}
	running.Wait()
	return results
}

func (p *probe) tryOne(ctx context.Context, t Target, r *Result) {
	m := methods[t.Kind]
	from := p.pod
	if m.fromHost {
		from = host.Namespace{}
	}
	if t.Kind == Pod {
		r.HostRoute = routeTo(t.Address.Addr())
	}
	began := time.Now()
	for n := 1; ; n++ {
		at := time.Now()
		err := m.try(p, ctx, from, t, r)
		r.Millis = float64(time.Since(at).Microseconds()) / 1000
		if r.OK = err == nil; r.OK {
			r.Error = ""
			return
		}
		r.Error = reason(err)
		switch {
		case ctx.Err() != nil, m.once, !m.settles && n >= attempts, m.settles && time.Since(began) > settle:
			return
		}
		if !pause(ctx, settleAgain) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errSilence says that there was no answer at all.
var errSilence = errors.New("no answer")

// reason returns an error in few words.
func reason(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, errSilence), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return errSilence.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to host"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network is unreachable"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	}
	return err.Error()
}

func dial(ctx context.Context, from host.Namespace, network string, to netip.AddrPort) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	err = from.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, to.String())
		return err
	})
	if err == nil {
		err = c.SetDeadline(time.Now().Add(tryTime))
	}
	return c, err
}

// connect only opens a connection.
func (p *probe) connect(ctx context.Context, from host.Namespace, t Target, _ *Result) error {
	c, err := dial(ctx, from, "tcp", t.Address)
	if err == nil {
		c.Close()
	}
	return err
}

// refused expects that connect fails.
func (p *probe) refused(ctx context.Context, from host.Namespace, t Target, r *Result) error {
	if p.connect(ctx, from, t, r) == nil {
		return errors.New("connected, although the policy denies it")
	}
	return nil
}

// stream asks a probe for its node, over TCP.
func (p *probe) stream(ctx context.Context, from host.Namespace, t Target, r *Result) error {
	c, err := dial(ctx, from, "tcp", t.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s\n", p.run, p.node); err != nil {
		return err
	}
	line := make([]byte, 512)
	n, err := c.Read(line)
	if err != nil {
		return err
	}
	r.By, r.Seen, _ = strings.Cut(strings.TrimSpace(string(line[:n])), " ")
	return p.expect(t, r)
}

func (p *probe) expect(t Target, r *Result) error {
	if r.By != t.To {
		return fmt.Errorf("answered by %q", r.By)
	}
	r.By = ""
	return nil
}

// datagram is stream over UDP.
func (p *probe) datagram(ctx context.Context, from host.Namespace, t Target, r *Result) error {
	c, err := dial(ctx, from, "udp", t.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	return p.echo(c, t, r, 0, tryTime)
}

// echo sends a datagram of a size, 0 for a small one, and waits for its answer.
func (p *probe) echo(c net.Conn, t Target, r *Result, size int, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	number := fmt.Sprint(deadline.UnixNano())
	payload := []byte(fmt.Sprintf("%s %s %s ", p.run, p.node, number))
	if size > len(payload) {
		payload = append(payload, make([]byte, size-len(payload))...)
	}
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := c.Write(payload); err != nil {
		return err
	}
	answer := make([]byte, 512)
	for {
		n, err := c.Read(answer)
		if err != nil {
			return err
		}
		words := strings.Fields(string(answer[:n]))
		if len(words) == 4 && words[0] == p.run && words[3] == number {
			r.By, r.Seen = words[1], words[2]
			return p.expect(t, r)
		}
	}
}

// resolve asks DNS for the address of a name.
func (p *probe) resolve(ctx context.Context, from host.Namespace, t Target, _ *Result) error {
	c, err := dial(ctx, from, "udp", t.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(t.Name), dns.TypeA)
	client := dns.Client{Timeout: tryTime}
	if t.Kind == Outside {
		client.Timeout = outsideTime
	}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: c})
	switch {
	case err != nil:
		return err
	case answer.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("answer %s", dns.RcodeToString[answer.Rcode])
	case len(answer.Answer) == 0:
		return errors.New("no address")
	}
	return nil
}

// isDefault reports whether a destination is the default route. The default route is never a route to pods.
func isDefault(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	bits, _ := to.Mask.Size()
	return bits == 0
}

// routeTo returns the host's route to an address.
func routeTo(a netip.Addr) *HostRoute {
	to := net.IP(a.AsSlice())
	// The first request returns the matching route of the table; the second, below, resolves it for this address.
	if match, err := netlink.RouteGetWithOptions(to, &netlink.RouteGetOptions{FIBMatch: true}); err == nil && len(match) > 0 && isDefault(match[0].Dst) {
		return &HostRoute{Missing: true}
	}
	routes, err := netlink.RouteGet(to)
	if err != nil || len(routes) == 0 || routes[0].Type == unix.RTN_UNREACHABLE || routes[0].Type == unix.RTN_BLACKHOLE {
		return &HostRoute{Missing: true}
	}
	w := &HostRoute{}
	if gw, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		w.Gateway = gw.Unmap().String()
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return w
	}
	w.Link, w.Type, w.MTU = link.Attrs().Name, link.Type(), link.Attrs().MTU
	if v, ok := link.(*netlink.Vxlan); ok {
		w.Port = v.Port
	}
	return w
}
