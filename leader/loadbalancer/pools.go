package loadbalancer

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// mostEntries bounds what the text of pools may cost.
const mostEntries = 1024

// Pools are the addresses to give out, in this order.
type Pools []span

// span is from first to last, both included.
type span struct{ first, last netip.Addr }

func (s span) contains(a netip.Addr) bool {
	return a.BitLen() == s.first.BitLen() && s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0
}

func (s span) overlaps(p netip.Prefix) bool {
	q := spanOf(p)
	return q.first.BitLen() == s.first.BitLen() && s.first.Compare(q.last) <= 0 && q.first.Compare(s.last) <= 0
}

// Contains tells whether the address is one of the pools'.
func (p Pools) Contains(a netip.Addr) bool {
	for _, s := range p {
		if s.contains(a) {
			return true
		}
	}
	return false
}

// has tells whether there are addresses of the family.
func (p Pools) has(v4 bool) bool {
	for _, s := range p {
		if s.first.Is4() == v4 {
			return true
		}
	}
	return false
}

// ParsePools reads pools from text: entries divided by commas or space, each an address, a range such as
// 10.0.0.200-10.0.0.220, or a prefix such as 192.168.7.0/28 or 2001:db8::/120. Of a prefix the addresses that are not a
// host's are left out: the first and last of IPv4, the first of IPv6; a range is taken as it is. taken are networks no
// pool may touch, by what people call them. Every fault is reported at once.
func ParsePools(text string, taken map[string]netip.Prefix) (Pools, error) {
	entries := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })
	if len(entries) > mostEntries {
		return nil, fmt.Errorf("%d entries are more than %d: write neighbouring addresses as ranges or prefixes", len(entries), mostEntries)
	}
	var pools Pools
	var errs []error
	for _, e := range entries {
		s, err := parseSpan(e)
		if err == nil {
			err = s.usable(taken)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("pool %q: %w", e, err))
			continue
		}
		pools = append(pools, s)
	}
	return pools, errors.Join(errs...)
}

func parseSpan(entry string) (span, error) {
	const form = "give an address, a range such as 10.0.0.200-10.0.0.220, or a prefix such as 192.168.7.0/28"
	if first, last, ok := strings.Cut(entry, "-"); ok {
		a, errA := netip.ParseAddr(first)
		b, errB := netip.ParseAddr(last)
		switch {
		case errA != nil || errB != nil || a.Is4() != b.Is4():
			return span{}, errors.New(form)
		case a.Compare(b) > 0:
			return span{}, fmt.Errorf("the range ends before it begins: write %s-%s", b, a)
		}
		return span{a, b}, nil
	}
	if strings.Contains(entry, "/") {
		p, err := netip.ParsePrefix(entry)
		if err != nil {
			return span{}, errors.New(form)
		}
		return hosts(p), nil
	}
	a, err := netip.ParseAddr(entry)
	if err != nil {
		return span{}, errors.New(form)
	}
	return span{a, a}, nil
}

// usable tells why addresses of the span could never reach a Service.
func (s span) usable(taken map[string]netip.Prefix) error {
	for _, a := range []netip.Addr{s.first, s.last} {
		if a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			return fmt.Errorf("%s is no address that a host of a LAN can have", a)
		}
	}
	for _, p := range []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "fe80::/10", "ff00::/8"} {
		if q := netip.MustParsePrefix(p); s.overlaps(q) {
			return fmt.Errorf("it reaches into %s, whose addresses no host of a LAN can have", q)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		if p := taken[name]; s.overlaps(p) {
			return fmt.Errorf("it overlaps %s, the %s: choose addresses of the LAN that no DHCP server or other program assigns", p, name)
		}
	}
	return nil
}

func spanOf(p netip.Prefix) span {
	p = p.Masked()
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return span{p.Addr(), last}
}

func hosts(p netip.Prefix) span {
	s := spanOf(p)
	if p.Addr().BitLen()-p.Bits() < 2 {
		return s
	}
	s.first = s.first.Next()
	if s.last.Is4() {
		s.last = s.last.Prev()
	}
	return s
}
