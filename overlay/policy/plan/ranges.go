package plan

import (
	"fmt"
	"net/netip"
	"slices"

	networking "k8s.io/api/networking/v1"
	netutils "k8s.io/utils/net"
)

// Range is the addresses from From to To, both of one family and both included.
type Range struct{ From, To netip.Addr }

func (r Range) contains(a netip.Addr) bool {
	return a.BitLen() == r.From.BitLen() && r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0
}

// rangesOf returns the address ranges of a block. If any part is invalid it returns an error and no ranges, because the
// exceptions are not known.
func rangesOf(b *networking.IPBlock) ([]Range, error) {
	whole, err := parseNetwork(b.CIDR)
	if err != nil {
		return nil, err
	}
	left := []Range{whole}
	for _, text := range b.Except {
		hole, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("except: %w", err)
		}
		left = subtract(left, hole)
	}
	return left, nil
}

// parseNetwork parses a network as API servers have always done, with leading zeros allowed.
func parseNetwork(text string) (Range, error) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return Range{}, fmt.Errorf("%q is no network", text)
	}
	first, ok := netip.AddrFromSlice(network.IP)
	ones, bits := network.Mask.Size()
	if first.Is4In6() {
		first, ones, bits = first.Unmap(), ones-96, 32
	}
	if !ok || bits != first.BitLen() || ones < 0 {
		return Range{}, fmt.Errorf("%q is no network", text)
	}
	last := first.AsSlice()
	for i := ones; i < bits; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return Range{first, to}, nil
}

// subtract removes the range hole from ranges.
func subtract(from []Range, hole Range) []Range {
	var left []Range
	for _, r := range from {
		if r.From.BitLen() != hole.From.BitLen() || hole.To.Less(r.From) || r.To.Less(hole.From) {
			left = append(left, r)
			continue
		}
		if r.From.Less(hole.From) {
			left = append(left, Range{r.From, hole.From.Prev()})
		}
		if hole.To.Less(r.To) {
			left = append(left, Range{hole.To.Next(), r.To})
		}
	}
	return left
}

// merge sorts ranges and joins those that overlap or touch.
func merge(list []Range) []Range {
	slices.SortFunc(list, func(a, b Range) int { return a.From.Compare(b.From) })
	var out []Range
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].From.BitLen() == r.From.BitLen() &&
			(!out[n-1].To.Less(r.From) || out[n-1].To.Next() == r.From) {
			if out[n-1].To.Less(r.To) {
				out[n-1].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}
