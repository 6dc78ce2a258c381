package nft

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Contents is what the kernel holds of a table, beside the elements of its sets.
type Contents struct {
	family Family
	chains map[string]*foundChain
	sets   map[string]Set // without types
}

type foundChain struct {
	hook string   // where it hooks in, as text; "": it does not
	tags []string // of its rules, in order
}

// Chains are the names of the chains, with the number of rules each has.
func (c *Contents) Chains() map[string]int {
	out := make(map[string]int, len(c.chains))
	for name, chain := range c.chains {
		out[name] = len(chain.tags)
	}
	return out
}

// Sets are the names of the sets and maps.
func (c *Contents) Sets() []string {
	var out []string
	for name := range c.sets {
		out = append(out, name)
	}
	return out
}

// Holds tells whether all sets and chains of the table are there and as they should be. There may be more.
func (c *Contents) Holds(t *Table) bool {
	for i := range t.Sets {
		if !c.holdsSet(&t.Sets[i]) {
			return false
		}
	}
	for i := range t.Chains {
		if !c.HoldsChain(&t.Chains[i]) {
			return false
		}
	}
	return true
}

func (c *Contents) holdsSet(s *Set) bool {
	have, ok := c.sets[s.Name]
	return ok && have.Flags == s.Flags && int(have.Key.Bytes) == s.KeyLen() && (s.HoldsVerdicts() || int(have.Data.Bytes) == s.DataLen())
}

// HoldsChain tells whether the chain is there, hooks in where it should, and has these rules and no others.
func (c *Contents) HoldsChain(chain *Chain) bool {
	have, ok := c.chains[chain.Name]
	if !ok || have.hook != chain.Hook.text() || len(have.tags) != len(chain.Rules) {
		return false
	}
	for i, rule := range chain.Rules {
		body, err := rule.expressions(c.family)
		if err != nil || string(tag(body)) != have.tags[i] {
			return false
		}
	}
	return true
}

// ErrUnstable says that what the kernel listed cannot be: RetryRead reads again.
var ErrUnstable = errors.New("nftables: the listing contradicts itself")

// The kernel lists a map whose hash table it is about to enlarge with some elements twice and some not at all. It does so for
// a moment after many came.
const (
	readTries = 4
	readPause = 25 * time.Millisecond
)

// RetryRead calls read again after a pause, four times in all, while it returns ErrUnstable, or ENOENT because the table went
// away while it was read. It returns the last error.
func RetryRead(read func() error) error {
	for try := 1; ; try++ {
		err := read()
		if try == readTries || !errors.Is(err, ErrUnstable) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		time.Sleep(readPause)
	}
}

// ReadTable returns what the kernel holds of the table; nil when there is none, or a dormant one. A table that belongs to
// another program is ErrOwned.
func (c *Conn) ReadTable(t *Table) (*Contents, error) {
	exists, err := c.exists(t)
	if err != nil || !exists {
		return nil, err
	}
	found := &Contents{family: t.Family}
	if err := c.readChains(t, found); err != nil {
		return nil, err
	}
	if err := c.readRules(t, found); err != nil {
		return nil, err
	}
	return found, c.readSets(t, found)
}

// tableAttribute is the name of the table in messages of every kind (NFTA_…_TABLE).
const tableAttribute = 1

// list is a listing of what is in a table.
func list(t *Table, kind uint16) listing {
	return listing{kind: kind, family: t.Family, request: func(w *wire) { w.text(tableAttribute, t.Name) }}
}

func (c *Conn) exists(t *Table) (yes bool, err error) {
	const flags, owner = 2, 7       // NFTA_TABLE_FLAGS, NFTA_TABLE_OWNER
	const dormant, owned = 0x1, 0x2 // NFT_TABLE_F_…
	var foreign bool
	err = c.dump(listing{kind: unix.NFT_MSG_GETTABLE, family: t.Family}, func() { yes, foreign = false, false }, func(family Family, body []byte) {
		if family == t.Family && findText(body, tableAttribute) == t.Name {
			yes = findU32(body, flags)&dormant == 0
			foreign = findU32(body, flags)&owned != 0 && findU32(body, owner) != c.port
		}
	})
	if err == nil && foreign {
		err = ErrOwned
	}
	return yes, err
}

func (c *Conn) readChains(t *Table, into *Contents) error {
	return c.dump(list(t, unix.NFT_MSG_GETCHAIN), func() { into.chains = map[string]*foundChain{} }, func(family Family, body []byte) {
		if family == t.Family && findText(body, tableAttribute) == t.Name {
			into.chains[findText(body, unix.NFTA_CHAIN_NAME)] = &foundChain{hook: foundHook(body)}
		}
	})
}

func (c *Conn) readRules(t *Table, into *Contents) error {
	forget := func() {
		for _, chain := range into.chains {
			chain.tags = nil
		}
	}
	return c.dump(list(t, unix.NFT_MSG_GETRULE), forget, func(_ Family, body []byte) {
		if chain := into.chains[findText(body, unix.NFTA_RULE_CHAIN)]; chain != nil && findText(body, tableAttribute) == t.Name {
			chain.tags = append(chain.tags, string(find(body, unix.NFTA_RULE_USERDATA)))
		}
	})
}

func (c *Conn) readSets(t *Table, into *Contents) error {
	return c.dump(list(t, unix.NFT_MSG_GETSET), func() { into.sets = map[string]Set{} }, func(_ Family, body []byte) {
		if findText(body, tableAttribute) == t.Name {
			s := Set{Name: findText(body, unix.NFTA_SET_NAME), Flags: SetFlags(findU32(body, unix.NFTA_SET_FLAGS))}
			s.Key.Bytes, s.Data.Bytes = findU32(body, unix.NFTA_SET_KEY_LEN), findU32(body, unix.NFTA_SET_DATA_LEN)
			into.sets[s.Name] = s
		}
	})
}

// ReadElements returns the elements of a set. Their memory is the arena's; the list is into, from its beginning.
func (c *Conn) ReadElements(t *Table, set string, mem *Arena, into []Element) ([]Element, error) {
	elements := list(t, unix.NFT_MSG_GETSETELEM)
	elements.request = func(w *wire) {
		w.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		w.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	}
	err := c.dump(elements, func() { into = into[:0] }, func(_ Family, body []byte) {
		attributes(find(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, value []byte) bool {
			into = append(into, parseElement(value, mem))
			return true
		})
	})
	return into, err
}

// foundHook is where a listed chain hooks in, as text.
func foundHook(body []byte) string {
	hook := find(body, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return ""
	}
	return hookText(findText(body, unix.NFTA_CHAIN_TYPE), findU32(hook, unix.NFTA_HOOK_HOOKNUM), findU32(hook, unix.NFTA_HOOK_PRIORITY),
		findU32(body, unix.NFTA_CHAIN_POLICY))
}

// text is where a chain hooks in; "" for nil.
func (h *Hook) text() string {
	if h == nil {
		return ""
	}
	return hookText(string(h.Type), uint32(*h.Number), uint32(*h.Priority), uint32(nftables.ChainPolicyAccept))
}

func hookText(kind string, numbers ...uint32) string {
	raw := slices.Grow([]byte(kind), 4*len(numbers))
	for _, n := range numbers {
		raw = binary.BigEndian.AppendUint32(raw, n)
	}
	return string(raw)
}
