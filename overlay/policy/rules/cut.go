package rules

import (
	"encoding/binary"
	"net/netip"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Flow is a connection as its packets show it when they are forwarded in the direction in which it began.
type Flow struct {
	From, To         netip.Addr
	Protocol         plan.Protocol
	FromPort, ToPort uint16
}

// Cut adds connections to those whose packets are dropped in both directions unless the kernel knows the connection.
func (t *Tables) Cut(flows []Flow) error {
	var change nft.Change
	t.addCut(&change, flows)
	return t.apply(&change, "cut connections")
}

// CutOnly cuts exactly these connections; all others pass again.
func (t *Tables) CutOnly(flows []Flow) error {
	var change nft.Change
	for _, l := range t.layouts {
		change.EmptySet(l.table, cutSet)
	}
	t.addCut(&change, flows)
	return t.apply(&change, "cut connections")
}

func (t *Tables) addCut(change *nft.Change, flows []Flow) {
	for _, l := range t.layouts {
		change.SetElements(l.table, cutSet, nft.Elements{Add: l.flows(flows[:min(len(flows), cutLimit)])})
	}
}

func (l *layout) flows(flows []Flow) []nft.Element {
	var list []nft.Element
	for _, f := range flows {
		if l.family.Has(f.From) {
			key := append(f.From.AsSlice(), f.To.AsSlice()...)
			list = append(list, nft.Element{Key: portKey(key, f.Protocol, f.FromPort, f.ToPort)})
		}
	}
	return list
}

// Flows returns the connections that were cut.
func (t *Tables) Flows() ([]Flow, error) {
	var flows []Flow
	var list []nft.Element
	for _, l := range t.layouts {
		var err error
		if list, err = t.conn.ReadElements(l.table, cutSet, &nft.Arena{}, list); err != nil {
			return nil, err
		}
		size := int(4 * l.family.AddressWords())
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
