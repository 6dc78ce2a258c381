package dns

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

const (
	headerSize = 12
	aliases    = 8 // the longest chain of aliases that is followed
)

// parse parses a message. For one that cannot be parsed it returns the refusal to send, or nil if the message is no query.
func parse(data []byte) (r, refusal *dns.Msg) {
	if len(data) < headerSize {
		return nil, nil
	}
	r = new(dns.Msg)
	err := r.Unpack(data)
	switch {
	case r.Response:
		return nil, nil
	case err != nil:
		return nil, &dns.Msg{MsgHdr: dns.MsgHdr{Id: r.Id, Response: true, Opcode: r.Opcode, RecursionDesired: r.RecursionDesired, Rcode: dns.RcodeFormatError}}
	}
	return r, nil
}

// pack returns an answer of at most size bytes; records that do not fit are left out, and the answer is marked as truncated.
func pack(m *dns.Msg, size int) ([]byte, error) {
	wire, err := m.Pack()
	if err == nil && len(wire) <= size {
		return wire, nil
	}
	m.Truncate(size)
	return m.Pack()
}

// datagramSize returns the size of the largest answer that the client accepts in a datagram.
func datagramSize(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		return int(min(max(opt.UDPSize(), dns.MinMsgSize), packetSize))
	}
	return dns.MinMsgSize
}

// Reply returns the answer to a message; nil when it gets none.
func (s *Server) Reply(ctx context.Context, r *dns.Msg) *dns.Msg {
	return s.reply(ctx, netip.Addr{}, r)
}

func (s *Server) reply(ctx context.Context, client netip.Addr, r *dns.Msg) *dns.Msg {
	m, ask := s.begin(r)
	if ask.Name != "" {
		answer, err := s.forward.ask(ctx, client, ask)
		s.finish(m, ask, answer, err)
	}
	return m
}

// begin answers as far as the zone can. ask has a name when another resolver must give the rest, which finish adds.
func (s *Server) begin(r *dns.Msg) (m *dns.Msg, ask dns.Question) {
	if r.Response {
		return nil, ask
	}
	m = new(dns.Msg)
	m.SetReply(r)
	m.Compress, m.RecursionAvailable = true, true
	opt := r.IsEdns0()
	if opt != nil {
		m.SetEdns0(packetSize, false)
	}
	switch {
	case r.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
	case len(r.Question) != 1:
		m.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() != 0:
		m.Rcode = dns.RcodeBadVers
	case r.Question[0].Qclass != dns.ClassINET:
		m.Rcode = dns.RcodeRefused
	default:
		ask = s.fill(m, r.Question[0])
	}
	return m, ask
}

// fill adds the zone's records for a question, and for the names to which aliases lead.
func (s *Server) fill(m *dns.Msg, q dns.Question) (ask dns.Question) {
	for range aliases {
		a := s.cfg.Zone.Answer(q)
		if !a.Ours {
			return q
		}
		m.Authoritative = true
		m.Answer, m.Extra = append(m.Answer, shuffled(a.Records)...), append(m.Extra, a.Extra...)
		if a.Alias != "" && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA) {
			q.Name = a.Alias
			continue
		}
		if !a.Exists {
			m.Rcode = dns.RcodeNameError
		}
		if len(a.Records) == 0 {
			m.Ns = append(m.Ns, a.soa)
		}
		return ask
	}
	m.Rcode = dns.RcodeServerFailure // the aliases are a loop
	return ask
}

// finish adds the answer of another resolver to ask.
func (s *Server) finish(m *dns.Msg, ask dns.Question, answer *dns.Msg, err error) {
	if err != nil {
		s.cfg.Logger.Debug("cannot forward a DNS query; the client gets SERVFAIL", "name", ask.Name, "err", err)
		m.Rcode = dns.RcodeServerFailure
		return
	}
	for _, rr := range answer.Answer { // the answer repeats the name in the case in which the client asked
		if h := rr.Header(); strings.EqualFold(h.Name, ask.Name) {
			h.Name = ask.Name
		}
	}
	m.Rcode, m.Answer, m.Ns = answer.Rcode, append(m.Answer, answer.Answer...), append(m.Ns, answer.Ns...)
}

// shuffled returns the records in random order, because many clients take the first address.
func shuffled(list []dns.RR) []dns.RR {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
