package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ErrOwned says that a table of our name belongs to another program, for which the kernel protects it (NFT_TABLE_F_OWNER).
var ErrOwned = errors.New("the nftables table belongs to another program: end that program, or have it use another name")

const (
	// elementsLimit bounds the elements of one message, in bytes: the length of an attribute has 16 bits.
	elementsLimit = 60 << 10
	// elementGuess is how many bytes most elements come to.
	elementGuess = 48
	// splitElements is from how many elements on a replacement may be cut into several transactions, splitInto how many
	// elements are then replaced together; they fit one message.
	splitElements, splitInto = 500, 400
)

// Apply carries out all steps of the change in one transaction, or none of them.
func (c *Conn) Apply(change *Change) error { return c.apply(change, 0) }

// ApplyInParts carries out the steps in order, in one transaction unless they are more than PartLimit bytes. After an error
// the kernel may hold a part of them.
func (c *Conn) ApplyInParts(change *Change) error { return c.apply(change, c.PartLimit) }

func (c *Conn) apply(change *Change, limit int) error {
	if change.Empty() {
		return nil
	}
	r := &renderer{conn: c, limit: limit}
	r.begin()
	for _, step := range change.steps {
		if step(r); r.err != nil {
			return r.err
		}
	}
	r.commit()
	return r.err
}

// DeleteTables deletes the tables of this name in both families. It is no error if there are none.
func (c *Conn) DeleteTables(name string) error {
	var errs []error
	for _, family := range Families {
		var change Change
		change.DeleteTable(&Table{Family: family, Name: name})
		if err := c.Apply(&change); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// renderer writes the steps of a change as netlink messages, and commits them. After the first error it commits nothing.
type renderer struct {
	wire
	conn  *Conn
	limit int    // of one transaction, in bytes; 0: everything is in one
	setID uint32 // of the last set made; unique in a transaction
	err   error
}

func (r *renderer) begin() {
	r.raw(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
}

func (r *renderer) commit() {
	if r.err != nil {
		return
	}
	r.raw(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	r.finish()
	err := r.conn.transact(r.buf)
	if errors.Is(err, unix.EPERM) {
		err = errors.Join(ErrOwned, err)
	}
	r.err = err
}

// cut ends the transaction here and begins another, if it may be cut and is large already.
func (r *renderer) cut() {
	if r.limit > 0 && r.err == nil && len(r.buf) > r.limit-2*elementsLimit {
		r.commit()
		r.wire = wire{}
		r.begin()
	}
}

// about begins a message about a table or something in it.
func (r *renderer) about(t *Table, kind, flags uint16) {
	r.message(t.Family, kind, flags)
	r.text(tableAttribute, t.Name)
}

func (r *renderer) replaceTable(t *Table) {
	r.about(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE) // so that there is one to delete
	r.deleteTable(t)
	r.about(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	for i := range t.Sets {
		r.addSet(t, &t.Sets[i])
	}
	for i := range t.Chains {
		r.addChain(t, &t.Chains[i])
	}
	for i := range t.Chains {
		r.addRules(t, &t.Chains[i])
		r.cut()
	}
}

func (r *renderer) deleteTable(t *Table) { r.about(t, unix.NFT_MSG_DELTABLE, 0) }

// verdictType is NFT_DATA_VERDICT.
const verdictType = 0xffffff00

func (r *renderer) addSet(t *Table, s *Set) {
	r.setID++
	r.about(t, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	r.text(unix.NFTA_SET_NAME, s.Name)
	r.u32(unix.NFTA_SET_FLAGS, uint32(s.Flags))
	r.u32(unix.NFTA_SET_KEY_TYPE, s.Key.GetNFTMagic())
	r.u32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen()))
	if s.Flags&Map != 0 {
		kind := s.Data.GetNFTMagic()
		if s.HoldsVerdicts() {
			kind = verdictType
		}
		r.u32(unix.NFTA_SET_DATA_TYPE, kind)
		r.u32(unix.NFTA_SET_DATA_LEN, uint32(s.DataLen()))
	}
	r.describe(s)
	if s.Expires > 0 {
		r.u64(unix.NFTA_SET_TIMEOUT, uint64(s.Expires.Milliseconds()))
	}
	r.u32(unix.NFTA_SET_ID, r.setID)
}

// describe adds what the kernel wants to know about a set to choose how it keeps the elements.
func (r *renderer) describe(s *Set) {
	const concat, fieldLength = 2, 1 // NFTA_SET_DESC_CONCAT, NFTA_SET_FIELD_LEN
	if s.Limit == 0 && len(s.Parts) == 0 {
		return
	}
	at := r.nest(unix.NFTA_SET_DESC)
	if s.Limit > 0 {
		r.u32(unix.NFTA_SET_DESC_SIZE, s.Limit)
	}
	if len(s.Parts) > 0 {
		parts := r.nest(concat)
		for _, size := range s.Parts {
			part := r.nest(unix.NFTA_LIST_ELEM)
			r.u32(fieldLength, size)
			r.unnest(part)
		}
		r.unnest(parts)
	}
	r.unnest(at)
}

func (r *renderer) deleteSet(t *Table, name string) {
	r.about(t, unix.NFT_MSG_DELSET, 0)
	r.text(unix.NFTA_SET_NAME, name)
}

// addChain makes the chain without its rules, or does nothing if it is there.
func (r *renderer) addChain(t *Table, c *Chain) {
	r.about(t, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	r.text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook == nil {
		return
	}
	at := r.nest(unix.NFTA_CHAIN_HOOK)
	r.u32(unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hook.Number))
	r.u32(unix.NFTA_HOOK_PRIORITY, uint32(*c.Hook.Priority))
	r.unnest(at)
	r.u32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
	r.text(unix.NFTA_CHAIN_TYPE, string(c.Hook.Type))
}

func (r *renderer) deleteChain(t *Table, name string) {
	r.about(t, unix.NFT_MSG_DELCHAIN, 0)
	r.text(unix.NFTA_CHAIN_NAME, name)
}

func (r *renderer) addRules(t *Table, c *Chain) {
	for _, rule := range c.Rules {
		body, err := rule.expressions(t.Family)
		if err != nil {
			r.err = fmt.Errorf("rule of chain %s: %w", c.Name, err)
			return
		}
		r.about(t, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		r.text(unix.NFTA_RULE_CHAIN, c.Name)
		at := r.nest(unix.NFTA_RULE_EXPRESSIONS)
		for _, e := range body {
			r.attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
		}
		r.unnest(at)
		r.attr(unix.NFTA_RULE_USERDATA, tag(body))
	}
}

func (r *renderer) deleteRules(t *Table, chain string) {
	r.about(t, unix.NFT_MSG_DELRULE, 0)
	r.text(unix.NFTA_RULE_CHAIN, chain)
}

// setElements deletes and adds elements. An element that is replaced goes and comes in one transaction.
func (r *renderer) setElements(t *Table, set string, e Elements) {
	both := Elements{Delete: e.Delete, Add: e.Add}
	write := func() {
		r.elements(t, set, unix.NFT_MSG_DELSETELEM, both.Delete)
		r.elements(t, set, unix.NFT_MSG_NEWSETELEM, both.Add)
		r.cut()
	}
	if r.limit == 0 || len(e.Delete) == 0 || len(e.Add) == 0 || len(e.Delete)+len(e.Add) < splitElements {
		write()
		return
	}
	gone := make(map[string]Element, len(e.Delete))
	for _, d := range e.Delete {
		gone[string(d.Key)] = d
	}
	both = Elements{}
	for _, a := range e.Add {
		if old, ok := gone[string(a.Key)]; ok {
			both.Delete = append(both.Delete, old)
			delete(gone, string(a.Key))
		}
		if both.Add = append(both.Add, a); len(both.Add) == splitInto {
			write()
			both = Elements{}
		}
	}
	for _, d := range gone {
		both.Delete = append(both.Delete, d)
	}
	write()
}

// elements adds messages of one kind, as many as it takes.
func (r *renderer) elements(t *Table, set string, kind uint16, list []Element) {
	var flags uint16
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	r.buf = slices.Grow(r.buf, len(list)*elementGuess)
	for len(list) > 0 {
		r.about(t, kind, flags)
		r.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		at := r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(list) > 0 && len(r.buf)-at < elementsLimit {
			r.element(&list[0])
			list = list[1:]
		}
		r.unnest(at)
	}
}

func (r *renderer) emptySet(t *Table, set string) {
	r.about(t, unix.NFT_MSG_DELSETELEM, 0)
	r.text(unix.NFTA_SET_ELEM_LIST_SET, set)
}
