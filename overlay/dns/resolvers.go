package dns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/balsahq/balsa/fault"
)

const (
	// resolveTime is how long all resolvers together may take: less than clients wait before they ask again.
	resolveTime = 4 * time.Second
	// attemptTime is how long one resolver may take; after hedgeTime the next is asked beside it.
	attemptTime = 2 * time.Second
	hedgeTime   = 250 * time.Millisecond
	rounds      = 2 // how often each resolver is asked, because datagrams get lost
	// slowTime is how long a resolver that did not answer is asked last.
	slowTime = 10 * time.Second
	// hostTime is how long the host's resolv.conf is cached.
	hostTime   = 5 * time.Second
	packetSize = 1232 // bytes that pass every path (DNS flag day 2020)
)

// resolvers asks other DNS servers. It is safe for concurrent use.
type resolvers struct {
	host func() []string // returns the host's resolvers, "address:port"
	// dial opens a socket in the right network namespace.
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	running *sync.WaitGroup

	mu        sync.Mutex
	slowUntil map[string]time.Time // the time at which the resolver is no longer slow
	hosts     []string
	hostAt    time.Time
}

// list returns the resolvers to ask about a name in lower case; those that did not answer lately come last.
func (r *resolvers) list(name string, settings *Settings) []string {
	list, hosts := settings.resolvers(name)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if hosts {
		if now.Sub(r.hostAt) > hostTime {
			r.hosts, r.hostAt = r.host(), now
		}
		list = r.hosts
	}
	var quick, slow []string
	for _, at := range list {
		if now.Before(r.slowUntil[at]) {
			slow = append(slow, at)
		} else {
			quick = append(quick, at)
		}
	}
	return append(quick, slow...)
}

// noteSpeed notes whether a resolver answered.
func (r *resolvers) noteSpeed(at string, answers bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answers {
		delete(r.slowUntil, at)
		return
	}
	if len(r.slowUntil) >= 64 { // the settings may have replaced the resolvers
		clear(r.slowUntil)
	}
	r.slowUntil[at] = time.Now().Add(slowTime)
}

type attempt struct {
	msg *dns.Msg
	err error
}

// resolve asks one resolver after another. It asks the next one when an answer takes longer than hedgeTime, and returns the
// first good answer.
func (r *resolvers) resolve(ctx context.Context, q dns.Question, settings *Settings) (*dns.Msg, error) {
	list := r.list(q.Name, settings)
	if len(list) == 0 {
		return nil, errNoUpstream
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	results := make(chan attempt, rounds*len(list))
	next := time.NewTimer(0)
	defer next.Stop()
	var err error
	for asked, answered := 0, 0; ; {
		select {
		case <-next.C:
			if asked == rounds*len(list) {
				continue
			}
			at := list[asked%len(list)]
			asked++
			r.running.Go(func() {
				var a attempt
				if err := fault.Do("overlay/dns", func() { a = r.askOnce(ctx, q, at) }); err != nil {
					a = attempt{err: err}
				}
				results <- a
			})
			next.Reset(hedgeTime)
		case a := <-results:
			if a.err == nil {
				return a.msg, nil
			}
			if answered++; answered == rounds*len(list) {
				return nil, errors.Join(err, a.err)
			}
			err = a.err
			next.Reset(0)
		case <-ctx.Done():
			return nil, fmt.Errorf("resolvers %v: %w", list, ctx.Err())
		}
	}
}

// askOnce asks one resolver once, with a datagram, and then over TCP when the answer does not fit.
func (r *resolvers) askOnce(ctx context.Context, q dns.Question, at string) attempt {
	m := new(dns.Msg)
	m.SetQuestion(q.Name, q.Qtype)
	m.SetEdns0(packetSize, false)
	for _, network := range []string{"udp", "tcp"} {
		began := time.Now()
		answer, err := r.exchange(ctx, m, network, at)
		if err != nil {
			if time.Since(began) > hedgeTime || ctx.Err() == nil {
				r.noteSpeed(at, false)
			}
			return attempt{err: fmt.Errorf("resolver %s: %w", at, err)}
		}
		if answer.Truncated && network == "udp" {
			continue
		}
		r.noteSpeed(at, true)
		if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
			return attempt{err: fmt.Errorf("resolver %s: %s", at, dns.RcodeToString[answer.Rcode])}
		}
		return attempt{msg: answer}
	}
	return attempt{err: fmt.Errorf("resolver %s: its answer by TCP is truncated", at)}
}

// exchange sends a question from a new port and returns the answer that belongs to it.
func (r *resolvers) exchange(ctx context.Context, m *dns.Msg, network, at string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	conn, err := r.dial(ctx, network, at)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	m.Id = dns.Id()
	c := &dns.Conn{Conn: conn, UDPSize: packetSize}
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		answer, err := c.ReadMsg()
		var malformed *dns.Error
		switch {
		case errors.As(err, &malformed) && network == "udp": // a forged datagram may come from any host
			continue
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, err
		case belongs(answer, m):
			return answer, nil
		case network == "tcp":
			return nil, errors.New("it answered another question")
		}
	}
}

// belongs tells whether an answer is the answer to the question, and not an attacker's guess.
func belongs(answer, m *dns.Msg) bool {
	if answer.Id != m.Id || !answer.Response || len(answer.Question) > 1 {
		return false
	}
	if len(answer.Question) == 0 { // some servers leave it out when they refuse
		return answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError
	}
	got, want := answer.Question[0], m.Question[0]
	return strings.EqualFold(got.Name, want.Name) && got.Qtype == want.Qtype && got.Qclass == want.Qclass
}

// Resolvers returns the nameservers of a resolv.conf, without the addresses of this DNS server.
func Resolvers(path string, own []netip.Addr) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var servers []string
	for s := bufio.NewScanner(file); s.Scan() && len(servers) < resolversAtMost; {
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
