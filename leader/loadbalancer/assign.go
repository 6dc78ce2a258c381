package loadbalancer

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/balsahq/balsa/leader/workqueue"
)

// Reasons of the condition.
const (
	ReasonAssigned = "AddressAssigned"
	ReasonFull     = "PoolExhausted"
	ReasonTaken    = "AddressInUse"
	ReasonOutside  = "AddressNotInPool"
	ReasonNoPool   = "NoPool"
	ReasonInvalid  = "InvalidAddress"
)

// request is the request of one Service for addresses.
type request struct {
	key     workqueue.Key
	created time.Time
	held    []netip.Addr
	// want has one entry for each family the Service has, in its order.
	want  []wish
	fault error // what it asks for cannot be understood
}

// wish is for one address.
type wish struct {
	v4       bool
	address  netip.Addr // this one; the zero value is any
	optional bool       // nothing is missing where no pool has the family
}

// grant is the result for one Service: addresses in the order of its families, and why some are missing.
type grant struct {
	addresses []netip.Addr
	reason    string
	problem   error
}

// world is the state on which grants depend, beside the requests.
type world struct {
	pools Pools
	// unknown says why the pools are not known; then nothing is given, and nothing taken back.
	unknown error
	used    map[netip.Addr]string // by whom, for people: addresses that are no Service's
}

// assignment is one run of assign.
type assignment struct {
	world
	holders map[netip.Addr]workqueue.Key
	next    []netip.Addr  // by span: nothing before it is free
	left    map[bool]bool // by family (true: IPv4) whether a free address may be left
}

// assign decides for all Services at once. The grants are in the order of the requests; leaving are addresses not yet
// free. It is a function of its arguments alone, whatever their order.
func assign(w world, requests []request, leaving []netip.Addr) []grant {
	a := &assignment{world: w, holders: map[netip.Addr]workqueue.Key{}, left: map[bool]bool{true: true, false: true}}
	for _, s := range w.pools {
		a.next = append(a.next, s.first)
	}
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return older(&requests[i], &requests[j]) })
	// An address stays with its Service until a read has shown that it is gone from there.
	for _, addr := range leaving {
		a.holders[addr] = workqueue.Key{}
	}
	for _, i := range order {
		for _, addr := range requests[i].held {
			if _, ok := a.holders[addr]; !ok {
				a.holders[addr] = requests[i].key
			}
		}
	}
	// Services that ask for a certain address come first, or another Service might get it.
	grants := make([]grant, len(requests))
	for _, named := range []bool{true, false} {
		for _, i := range order {
			a.serve(&requests[i], &grants[i], named)
		}
	}
	for i := range grants {
		grants[i].addresses = slices.DeleteFunc(grants[i].addresses, func(a netip.Addr) bool { return !a.IsValid() })
		if grants[i].problem == nil {
			grants[i].reason = ReasonAssigned
		}
	}
	return grants
}

func older(a, b *request) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
}

// serve fills in the wishes with a name, or those without.
func (a *assignment) serve(r *request, g *grant, named bool) {
	if g.addresses == nil {
		g.addresses = make([]netip.Addr, len(r.want))
	}
	for i, w := range r.want {
		if r.fault != nil {
			g.addresses[i], g.reason, g.problem = a.keeps(r, w.v4), ReasonInvalid, r.fault
			continue
		}
		if w.address.IsValid() != named {
			continue
		}
		addr, reason, err := a.one(r, w)
		g.addresses[i] = addr
		if err != nil && g.problem == nil {
			g.reason, g.problem = reason, err
		}
	}
}

// one returns the address for a wish. The Service keeps its current address if no better one is available.
func (a *assignment) one(r *request, w wish) (netip.Addr, string, error) {
	kept := a.keeps(r, w.v4)
	if w.address.IsValid() {
		if kept == w.address {
			return kept, "", nil
		}
		reason, err := a.mayHave(r.key, w.address)
		if err != nil {
			return kept, reason, err
		}
		a.holders[w.address] = r.key
		return w.address, "", nil
	}
	if kept.IsValid() {
		return kept, "", nil
	}
	if a.unknown != nil {
		return kept, ReasonNoPool, a.unknown
	}
	if !a.pools.has(w.v4) {
		if w.optional {
			return kept, "", nil
		}
		return kept, ReasonNoPool, fmt.Errorf("no pool has %s addresses: add some to the pools", familyName(w.v4))
	}
	addr := a.free(w.v4)
	if !addr.IsValid() {
		return kept, ReasonFull, fmt.Errorf("all %s addresses of the pools are in use: add addresses, or delete Services that need theirs no more", familyName(w.v4))
	}
	a.holders[addr] = r.key
	return addr, "", nil
}

var errNoPool = errors.New("no pool of addresses is configured: give servers --load-balancer-pool, or make the ConfigMap " +
	ConfigNamespace + "/" + ConfigName + " with the key " + ConfigKey)

// keeps is the address of the family that the Service has and may go on to have.
func (a *assignment) keeps(r *request, v4 bool) netip.Addr {
	for _, addr := range r.held {
		if addr.Is4() != v4 || a.holders[addr] != r.key {
			continue
		}
		if a.unknown != nil || a.pools.Contains(addr) && a.used[addr] == "" {
			return addr
		}
	}
	return netip.Addr{}
}

func (a *assignment) mayHave(who workqueue.Key, addr netip.Addr) (reason string, err error) {
	if a.unknown != nil {
		return ReasonNoPool, a.unknown
	}
	if !a.pools.Contains(addr) {
		return ReasonOutside, fmt.Errorf("%s is in none of the pools: ask for another, or add it to the pools", addr)
	}
	if by := a.used[addr]; by != "" {
		return ReasonTaken, fmt.Errorf("%s is an address of %s: ask for another", addr, by)
	}
	if holder, ok := a.holders[addr]; ok && holder != who {
		if holder.Name == "" {
			return ReasonTaken, fmt.Errorf("%s is being given back by another Service", addr)
		}
		return ReasonTaken, fmt.Errorf("%s is in use by the Service %s: ask for another, or wait until it is free", addr, holder)
	}
	return "", nil
}

// free returns the first free address of the family. Addresses before next are skipped, because none becomes free during a run.
func (a *assignment) free(v4 bool) netip.Addr {
	if !a.left[v4] {
		return netip.Addr{}
	}
	for i, s := range a.pools {
		for s.first.Is4() == v4 && s.contains(a.next[i]) {
			addr := a.next[i]
			a.next[i] = addr.Next()
			if _, taken := a.holders[addr]; !taken && a.used[addr] == "" {
				return addr
			}
		}
	}
	a.left[v4] = false
	return netip.Addr{}
}

func familyName(v4 bool) string {
	if v4 {
		return "IPv4"
	}
	return "IPv6"
}
