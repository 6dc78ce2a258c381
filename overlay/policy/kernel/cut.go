package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"

	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Flow is a connection as its packets show it when they are forwarded in the direction in which it began.
type Flow struct {
	From, To         netip.Addr
	Protocol         plan.Protocol
	FromPort, ToPort uint16
}

// Cut keeps connections from going on, in both directions, once the kernel has forgotten that they were allowed. anew: only
// these, not those of before.
func (t *Tables) Cut(flows []Flow, anew bool) error {
	flows = flows[:min(len(flows), cutLimit)]
	for _, table := range t.tables {
		var list []nftables.SetElement
		for _, f := range flows {
			if table.ofFamily(f.From) {
				key := append(f.From.AsSlice(), f.To.AsSlice()...)
				list = append(list, nftables.SetElement{Key: portKey(key, f.Protocol, f.FromPort, f.ToPort)})
			}
		}
		if anew {
			t.conn.FlushSet(table.cut())
		}
		if err := t.each(list, table.cut(), t.conn.SetAddElements); err != nil {
			return err
		}
	}
	return t.flush("cut connections")
}

// Flows are those that are kept from going on.
func (t *Tables) Flows() ([]Flow, error) {
	var flows []Flow
	for _, table := range t.tables {
		list, err := t.conn.GetSetElements(table.cut())
		if err != nil {
			return nil, err
		}
		size := int(4 * table.words())
		for _, e := range list {
			if len(e.Key) < 2*size+12 {
				continue
			}
			from, _ := netip.AddrFromSlice(e.Key[:size])
			to, _ := netip.AddrFromSlice(e.Key[size : 2*size])
			rest := e.Key[2*size:]
			flows = append(flows, Flow{from, to, plan.Protocol(rest[0]), binary.BigEndian.Uint16(rest[4:]), binary.BigEndian.Uint16(rest[8:])})
		}
	}
	return flows, nil
}
