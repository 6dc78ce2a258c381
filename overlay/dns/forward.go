package dns

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	upstreamTimeout  = 2 * time.Second
	cacheSize        = 2048
	cacheTTL         = 30 * time.Second
	negativeCacheTTL = 5 * time.Second
	forwardsAtOnce   = 256
)

var (
	errNoUpstream = errors.New("no resolver to ask")
	errBusy       = errors.New("too many queries are being forwarded")
)

// forwarder asks the host's resolvers. It is safe for concurrent use.
type forwarder struct {
	upstreams func() []string // "address:port"
	// dial opens a socket in the right network namespace.
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	now   func() time.Time
	slots chan struct{}

	mu    sync.Mutex
	cache map[dns.Question]cached
}

type cached struct {
	msg     *dns.Msg
	stored  time.Time
	expires time.Time
}

// ask answers the request from the cache or from the first resolver that answers.
func (f *forwarder) ask(ctx context.Context, r *dns.Msg) (*dns.Msg, error) {
	q := r.Question[0]
	q.Name = strings.ToLower(q.Name)
	if m := f.lookup(q); m != nil {
		return m, nil
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, errBusy
	}
	err := errNoUpstream
	for _, upstream := range f.upstreams() {
		var m *dns.Msg
		if m, err = f.exchange(ctx, q, upstream); err == nil && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError) {
			f.store(q, m)
			return m, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if err == nil {
		err = errors.New("no resolver has an answer")
	}
	return nil, err
}

// exchange asks one resolver by datagram, and again by TCP when the answer does not fit.
func (f *forwarder) exchange(ctx context.Context, q dns.Question, upstream string) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetQuestion(q.Name, q.Qtype)
	m.SetEdns0(1232, false)
	for _, network := range []string{"udp", "tcp"} {
		answer, err := f.once(ctx, m, network, upstream)
		if err != nil || !answer.Truncated || network == "tcp" {
			return answer, err
		}
	}
	return nil, errNoUpstream
}

func (f *forwarder) once(ctx context.Context, m *dns.Msg, network, upstream string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	conn, err := f.dial(ctx, network, upstream)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := &dns.Client{Net: network, Timeout: upstreamTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn, UDPSize: 1232})
	return answer, err
}

func (f *forwarder) lookup(q dns.Question) *dns.Msg {
	f.mu.Lock()
	c, ok := f.cache[q]
	f.mu.Unlock()
	now := f.now()
	if !ok || !now.Before(c.expires) {
		return nil
	}
	age := uint32(now.Sub(c.stored) / time.Second)
	m := c.msg.Copy()
	for _, list := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range list {
			if h := rr.Header(); h.Ttl > age {
				h.Ttl -= age
			} else {
				h.Ttl = 1
			}
		}
	}
	return m
}

func (f *forwarder) store(q dns.Question, m *dns.Msg) {
	keep := cacheTTL
	if len(m.Answer) == 0 {
		keep = negativeCacheTTL
	}
	for _, rr := range m.Answer {
		keep = min(keep, time.Duration(rr.Header().Ttl)*time.Second)
	}
	if keep <= 0 {
		return
	}
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cache) >= cacheSize {
		f.shrink(now)
	}
	f.cache[q] = cached{m.Copy(), now, now.Add(keep)}
}

// shrink drops what has expired; if nothing has, a quarter of all, whichever comes first.
func (f *forwarder) shrink(now time.Time) {
	for q, c := range f.cache {
		if !now.Before(c.expires) {
			delete(f.cache, q)
		}
	}
	for q := range f.cache {
		if len(f.cache) < cacheSize*3/4 {
			return
		}
		delete(f.cache, q)
	}
}

// Resolvers reads the nameservers of a resolv.conf, except those addresses that are our own.
func Resolvers(path string, own []netip.Addr) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var servers []string
	for s := bufio.NewScanner(file); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if err == nil && !slices.Contains(own, a.Unmap()) {
			servers = append(servers, netip.AddrPortFrom(a, 53).String())
		}
	}
	return servers, nil
}
