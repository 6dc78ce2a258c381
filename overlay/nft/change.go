package nft

// Change is a list of steps that bring tables from one state to another, in order. The zero value changes nothing. Building
// one touches no kernel; Conn.Apply carries it out.
type Change struct{ steps []func(r *renderer) }

func (c *Change) add(step func(r *renderer)) { c.steps = append(c.steps, step) }

// ReplaceTable makes the table with its sets and chains, in place of one that may be there.
func (c *Change) ReplaceTable(t *Table) {
	c.add(func(r *renderer) { r.replaceTable(t) })
}

// DeleteTable deletes the table with all that is in it.
func (c *Change) DeleteTable(t *Table) {
	c.add(func(r *renderer) { r.deleteTable(t) })
}

// AddSet makes an empty set.
func (c *Change) AddSet(t *Table, s Set) {
	c.add(func(r *renderer) { r.addSet(t, &s) })
}

// DeleteSet deletes a set that no rule refers to.
func (c *Change) DeleteSet(t *Table, name string) {
	c.add(func(r *renderer) { r.deleteSet(t, name) })
}

// AddChain makes a chain with its rules. Chains and sets that the rules lead to must be there.
func (c *Change) AddChain(t *Table, chain Chain) {
	c.add(func(r *renderer) {
		r.addChain(t, &chain)
		r.addRules(t, &chain)
		r.cut()
	})
}

// ReplaceRules gives a chain that is there these rules, in place of those that it has.
func (c *Change) ReplaceRules(t *Table, chain Chain) {
	c.add(func(r *renderer) {
		r.deleteRules(t, chain.Name)
		r.addRules(t, &chain)
	})
}

// DeleteChains deletes chains that nothing else leads to. All of their rules go first, because these may lead to each
// other's chains.
func (c *Change) DeleteChains(t *Table, names []string) {
	c.add(func(r *renderer) {
		for _, name := range names {
			r.deleteRules(t, name)
		}
		for _, name := range names {
			r.deleteChain(t, name)
		}
	})
}

// SetElements deletes and adds elements of a set or map.
func (c *Change) SetElements(t *Table, set string, e Elements) {
	if len(e.Delete)+len(e.Add) > 0 {
		c.add(func(r *renderer) { r.setElements(t, set, e) })
	}
}

// EmptySet deletes all elements of a set.
func (c *Change) EmptySet(t *Table, set string) {
	c.add(func(r *renderer) { r.emptySet(t, set) })
}

// Empty tells whether there is nothing to do.
func (c *Change) Empty() bool { return len(c.steps) == 0 }
