package dns

import (
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// ttl is how long, in seconds, an answer from the zone may be kept.
const ttl = 5

// specVersion is what a TXT query for "dns-version" is told: the version of the Kubernetes DNS specification.
const specVersion = "1.1.0"

// Answer is what the zone says about a question.
type Answer struct {
	// Ours is false for a name outside the zone; all other fields are empty then.
	Ours bool
	// Exists is false when there is no such name (NXDOMAIN).
	Exists  bool
	Records []dns.RR
	Extra   []dns.RR
	// Alias is the name outside the zone that the question leads to (ExternalName); the server resolves it through another
	// resolver.
	Alias string

	soa dns.RR // the zone's SOA record, for the authority section of an answer without records
}

// Answer answers a question. The name may be in any case; the answer repeats it as it was asked.
func (z *Zone) Answer(q dns.Question) Answer {
	a := z.answer(q)
	if a.Ours && a.soa == nil && len(a.Records) == 0 {
		a.soa = z.soa(z.domain)
	}
	return a
}

func (z *Zone) answer(q dns.Question) Answer {
	name := strings.ToLower(q.Name)
	if strings.HasSuffix(name, ".in-addr.arpa.") || strings.HasSuffix(name, ".ip6.arpa.") {
		return z.reverse(q, name)
	}
	if name != z.domain && !strings.HasSuffix(name, "."+z.domain) {
		return Answer{}
	}
	labels := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, z.domain), "."), ".")
	z.mu.RLock()
	defer z.mu.RUnlock()
	last := len(labels) - 1
	switch {
	case labels[0] == "": // the domain itself
		return z.apex(q)
	case last == 0 && labels[0] == "dns-version":
		return z.version(q)
	case labels[last] == "svc":
		return z.service(q, labels[:last])
	case labels[last] == "pod":
		return z.pod(q, labels[:last])
	case labels[last] == "dns" && last <= 1:
		return z.nameServer(q, labels[:last])
	}
	return Answer{Ours: true}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// soa is a zone's start of authority; its Minttl bounds how long a resolver may cache a negative answer.
func (z *Zone) soa(zone string) dns.RR {
	return &dns.SOA{
		Hdr: header(zone, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func (z *Zone) apex(q dns.Question) Answer {
	a := Answer{Ours: true, Exists: true}
	switch q.Qtype {
	case dns.TypeSOA:
		a.Records = []dns.RR{z.soa(q.Name)}
	case dns.TypeNS:
		a.Records = []dns.RR{&dns.NS{Hdr: header(q.Name, dns.TypeNS), Ns: "ns.dns." + z.domain}}
	}
	return a
}

// nameServer answers for "ns.dns", which the zone names as its server.
func (z *Zone) nameServer(q dns.Question, labels []string) Answer {
	a := Answer{Ours: true, Exists: len(labels) == 0 || labels[0] == "ns"}
	if len(labels) == 0 || !a.Exists {
		return a
	}
	for _, ip := range z.servers {
		a.Records = appendAddress(a.Records, q, ip)
	}
	return a
}

func (z *Zone) version(q dns.Question) Answer {
	a := Answer{Ours: true, Exists: true}
	if q.Qtype == dns.TypeTXT {
		a.Records = []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{specVersion}}}
	}
	return a
}

// service answers for labels before ".svc": [_port _protocol] [host] name namespace.
func (z *Zone) service(q dns.Question, labels []string) Answer {
	switch len(labels) {
	case 0:
		return Answer{Ours: true, Exists: true}
	case 1:
		return Answer{Ours: true, Exists: z.namespaces[labels[0]] > 0}
	}
	n := len(labels)
	r := z.records[labels[n-1]+"/"+labels[n-2]]
	if r == nil {
		return Answer{Ours: true}
	}
	rest := labels[:n-2]
	switch {
	case len(rest) == 0 && r.external != "":
		return Answer{Ours: true, Exists: true, Alias: r.external,
			Records: []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: r.external}}}
	case len(rest) == 0:
		return z.whole(q, r)
	case len(rest) == 1 && !strings.HasPrefix(rest[0], "_"):
		return host(q, r, rest[0])
	case len(rest) == 1:
		return Answer{Ours: true, Exists: r.hasProtocol(strings.TrimPrefix(rest[0], "_"))}
	case len(rest) == 2 && strings.HasPrefix(rest[0], "_") && strings.HasPrefix(rest[1], "_"):
		return z.srv(q, r, rest[0][1:], rest[1][1:])
	}
	return Answer{Ours: true}
}

// whole answers for a service's own name: its cluster addresses, or the addresses of all its endpoints.
func (z *Zone) whole(q dns.Question, r *record) Answer {
	a := Answer{Ours: true, Exists: true}
	if q.Qtype == dns.TypeSRV {
		a.Records, a.Extra = z.srvRecords(q.Name, r, func(port) bool { return true })
		return a
	}
	if r.headless() {
		for _, e := range r.endpoints {
			a.Records = appendAddress(a.Records, q, e.address)
		}
		a.Exists = len(r.endpoints) > 0
		return a
	}
	for _, ip := range r.clusterIPs {
		a.Records = appendAddress(a.Records, q, ip)
	}
	return a
}

func host(q dns.Question, r *record, label string) Answer {
	a := Answer{Ours: true}
	for _, e := range r.endpoints {
		if e.host == label {
			a.Exists = true
			a.Records = appendAddress(a.Records, q, e.address)
		}
	}
	return a
}

func (r *record) hasProtocol(protocol string) bool {
	for _, p := range r.allPorts() {
		if p.name != "" && p.protocol == protocol {
			return true
		}
	}
	return false
}

func (r *record) allPorts() []port {
	if !r.headless() {
		return r.ports
	}
	var all []port
	for _, e := range r.endpoints {
		all = append(all, e.ports...)
	}
	return all
}

func (z *Zone) srv(q dns.Question, r *record, name, protocol string) Answer {
	match := func(p port) bool { return p.name != "" && p.name == name && p.protocol == protocol }
	records, extra := z.srvRecords(q.Name, r, match)
	if len(records) == 0 {
		return Answer{Ours: true}
	}
	a := Answer{Ours: true, Exists: true}
	if q.Qtype == dns.TypeSRV {
		a.Records, a.Extra = records, extra
	}
	return a
}

// srvRecords makes the SRV records of the ports that match, with the addresses of their targets.
func (z *Zone) srvRecords(owner string, r *record, match func(port) bool) (records, extra []dns.RR) {
	seen := make(map[string]struct{})
	add := func(target string, p port, ips ...netip.Addr) {
		records = append(records, &dns.SRV{
			Hdr: header(owner, dns.TypeSRV), Priority: 0, Weight: 100, Port: p.number, Target: target,
		})
		if _, ok := seen[target]; ok {
			return
		}
		seen[target] = struct{}{}
		for _, ip := range ips {
			kind := dns.TypeAAAA
			if ip.Is4() {
				kind = dns.TypeA
			}
			extra = appendAddress(extra, dns.Question{Name: target, Qtype: kind}, ip)
		}
	}
	if !r.headless() {
		for _, p := range r.ports {
			if match(p) {
				add(z.serviceName(r), p, r.clusterIPs...)
			}
		}
		return records, extra
	}
	for _, e := range r.endpoints {
		for _, p := range e.ports {
			if match(p) {
				add(e.host+"."+z.serviceName(r), p, e.address)
			}
		}
	}
	return records, extra
}

// pod answers for "a-b-c-d.namespace" before ".pod": the address is in the name.
func (z *Zone) pod(q dns.Question, labels []string) Answer {
	if len(labels) < 2 {
		return Answer{Ours: true, Exists: len(labels) == 0 || z.namespaces[labels[0]] > 0}
	}
	if len(labels) > 2 {
		return Answer{Ours: true}
	}
	ip, ok := dashed(labels[0])
	if !ok {
		return Answer{Ours: true}
	}
	return Answer{Ours: true, Exists: true, Records: appendAddress(nil, q, ip)}
}

func dashed(label string) (netip.Addr, bool) {
	for _, separator := range []string{".", ":"} {
		if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator)); err == nil {
			return a.Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// appendAddress adds the address if the question asks for its family.
func appendAddress(list []dns.RR, q dns.Question, a netip.Addr) []dns.RR {
	switch {
	case q.Qtype == dns.TypeA && a.Is4():
		return append(list, &dns.A{Hdr: header(q.Name, dns.TypeA), A: net.IP(a.AsSlice())})
	case q.Qtype == dns.TypeAAAA && a.Is6():
		return append(list, &dns.AAAA{Hdr: header(q.Name, dns.TypeAAAA), AAAA: net.IP(a.AsSlice())})
	}
	return list
}

// reverse answers a question for the name of an address. An unknown address is left to other resolvers, except in the
// cluster's networks, whose addresses no other resolver knows.
func (z *Zone) reverse(q dns.Question, name string) Answer {
	ip, ok := parseReverse(name)
	if !ok {
		return Answer{}
	}
	z.mu.RLock()
	defer z.mu.RUnlock()
	pointers := z.addresses[ip]
	if len(pointers) == 0 {
		for _, n := range z.networks {
			if n.Contains(ip) {
				return Answer{Ours: true, soa: z.soa(reverseZone(n, name))}
			}
		}
		return Answer{}
	}
	a := Answer{Ours: true, Exists: true}
	if q.Qtype == dns.TypePTR {
		for _, p := range pointers {
			a.Records = append(a.Records, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: p.name})
		}
	}
	return a
}

// reverseZone is the part of an address's name in lower case that all addresses of its network share, or a little more.
func reverseZone(n netip.Prefix, name string) string {
	labels, each := dns.SplitDomainName(name), 8
	if n.Addr().Is6() {
		each = 4
	}
	shared := min((n.Bits()+each-1)/each+2, len(labels)) // two labels more for in-addr.arpa
	return strings.Join(labels[len(labels)-shared:], ".") + "."
}

func parseReverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return a, err == nil
	}
	digits := strings.Split(strings.TrimSuffix(name, ".ip6.arpa."), ".")
	if len(digits) != 32 {
		return netip.Addr{}, false
	}
	var b strings.Builder
	for i := 31; i >= 0; i-- {
		if len(digits[i]) != 1 {
			return netip.Addr{}, false
		}
		b.WriteString(digits[i])
		if i%4 == 0 && i > 0 {
			b.WriteByte(':')
		}
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}
