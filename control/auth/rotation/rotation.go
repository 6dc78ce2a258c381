package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Phase is how far a rotation is.
type Phase string

// Phases, in order.
const (
	Trust  Phase = "trust"
	Issue  Phase = "issue"
	Retire Phase = "retire"
	Done   Phase = "done"
)

// DefaultGrace is how long old tokens count after every pod has a new one: client-go reads the file of a token again after
// a minute at the latest.
const DefaultGrace = 90 * time.Second

// Change is one key that is replaced by another. Old and New are the pins of CAs, or the IDs of token keys; the PEM is of
// their certificates or public keys.
type Change struct {
	Old    string `json:"old"`
	New    string `json:"new"`
	OldPEM []byte `json:"oldPEM"`
	NewPEM []byte `json:"newPEM"`
}

// Record is a rotation as the store keeps it. The last one stays when it is done: members that were off read it.
type Record struct {
	Number   int64     `json:"number"` // counts the rotations of the cluster
	Phase    Phase     `json:"phase"`
	Started  time.Time `json:"started"`
	Changed  time.Time `json:"changed"` // since when it is in this phase
	CA       *Change   `json:"ca,omitempty"`
	TokenKey *Change   `json:"tokenKey,omitempty"`
	// Links and Retired are certificates of CAs, PEM, as pki.KeySet has them; both newest first.
	Links   []byte `json:"links,omitempty"`
	Retired []byte `json:"retired,omitempty"`
	// Sealed are the new private keys, encrypted with the recovery key, which only servers have. It goes when all is done.
	Sealed []byte `json:"sealed,omitempty"`
	// Grace is how long old tokens count after Refreshed, which is when every pod and every Secret had a new one.
	Grace     time.Duration `json:"grace"`
	Refreshed time.Time     `json:"refreshed,omitzero"`
	// PassedOver names what an administrator does not wait for any more: see Wait.Name.
	PassedOver []string `json:"passedOver,omitempty"`
}

// Running reports whether a rotation is under way. r may be nil.
func (r *Record) Running() bool { return r != nil && r.Phase != Done }

// Holds is what a member says of itself in its record.
type Holds struct {
	Trusts   []string `json:"trusts,omitempty"`   // pins of the CAs whose certificates count for it
	IssuedBy string   `json:"issuedBy,omitempty"` // pin of the CA that signed all its certificates
	Verifies []string `json:"verifies,omitempty"` // servers: IDs of the keys whose tokens count
	Signs    string   `json:"signs,omitempty"`    // servers: ID of the key that signs tokens
	PodsHold string   `json:"podsHold,omitempty"` // ID of the key that signed all tokens of its pods
}

// Equal reports whether both say the same.
func (h Holds) Equal(o Holds) bool {
	return slices.Equal(h.Trusts, o.Trusts) && h.IssuedBy == o.IssuedBy && slices.Equal(h.Verifies, o.Verifies) && h.Signs == o.Signs && h.PodsHold == o.PodsHold
}

// Member is a server or an agent on record.
type Member struct {
	Name   string // of its node
	Server bool
	Holds  Holds
}

// waitName is what PassedOver calls a member.
func (m Member) waitName() string {
	if m.Server {
		return "server " + m.Name
	}
	return "agent " + m.Name
}

// Facts are all that decides about the next step.
type Facts struct {
	Members []Member
	// StaleSecrets names token Secrets that the new key has not signed, as far as it is known; only phase Issue looks at it.
	StaleSecrets []string
	Now          time.Time
}

// Wait is one thing that a rotation waits for.
type Wait struct {
	Name string // unique; "server NAME", "agent NAME", "secret NAMESPACE/NAME" or "grace"
	Text string // what is missing, for people
}

// String is one line for people.
func (w Wait) String() string { return w.Name + ": " + w.Text }

// Next returns the record that follows r now, or what has to be waited for. Both are empty when r is done.
func (r *Record) Next(f Facts) (next *Record, waits []Wait) {
	if !r.Running() {
		return nil, nil
	}
	waits = r.waits(f)
	if len(waits) > 0 {
		return nil, waits
	}
	out := *r
	switch r.Phase {
	case Trust:
		out.Phase = Issue
	case Issue:
		if r.TokenKey != nil && !slices.Contains(r.PassedOver, graceName) {
			if r.Refreshed.IsZero() {
				out.Refreshed = f.Now.UTC()
				return &out, nil
			}
			if until := r.Refreshed.Add(r.Grace); f.Now.Before(until) {
				return nil, []Wait{{graceName, "programs in pods read the file of their token again; old tokens count until " + until.UTC().Format(time.TimeOnly) + " UTC"}}
			}
		}
		out.Phase = Retire
	case Retire:
		out.Phase, out.Sealed = Done, nil
	}
	out.Changed = f.Now.UTC()
	return &out, nil
}

const graceName = "grace"

// waits lists what is missing in this phase and not passed over.
func (r *Record) waits(f Facts) (waits []Wait) {
	add := func(name string, missing []string) {
		if len(missing) > 0 && !slices.Contains(r.PassedOver, name) {
			waits = append(waits, Wait{name, strings.Join(missing, ", ")})
		}
	}
	for _, m := range f.Members {
		add(m.waitName(), r.missing(m, f.Members))
	}
	if r.Phase == Issue && r.TokenKey != nil && len(waits) == 0 {
		for _, name := range f.StaleSecrets {
			add("secret "+name, []string{"its token is to be signed with the new key"})
		}
	}
	return waits
}

// missing says what a member has not confirmed.
func (r *Record) missing(m Member, all []Member) (list []string) {
	need := func(ok bool, text string) {
		if !ok {
			list = append(list, text)
		}
	}
	switch r.Phase {
	case Trust:
		need(r.CA == nil || slices.Contains(m.Holds.Trusts, r.CA.New), "does not trust the new CA yet")
		need(r.TokenKey == nil || !m.Server || slices.Contains(m.Holds.Verifies, r.TokenKey.New), "does not verify tokens of the new key yet")
	case Issue:
		if !m.Server && !r.serversIssue(all) {
			return nil // it is not asked before
		}
		need(r.CA == nil || m.Holds.IssuedBy == r.CA.New, "has certificates of the old CA")
		need(r.TokenKey == nil || !m.Server || m.Holds.Signs == r.TokenKey.New, "signs tokens with the old key")
		if len(list) == 0 && r.serversIssue(all) {
			need(r.TokenKey == nil || m.Holds.PodsHold == r.TokenKey.New, "has pods with tokens of the old key")
		}
	case Retire:
		need(r.CA == nil || !slices.Contains(m.Holds.Trusts, r.CA.Old), "still trusts the old CA")
		need(r.TokenKey == nil || !slices.Contains(m.Holds.Verifies, r.TokenKey.Old), "still verifies tokens of the old key")
	}
	return list
}

// serversIssue reports whether every server signs with the new keys, so that any of them may be asked for certificates and
// tokens.
func (r *Record) serversIssue(members []Member) bool {
	for _, m := range members {
		if !m.Server || slices.Contains(r.PassedOver, m.waitName()) {
			continue
		}
		if r.CA != nil && m.Holds.IssuedBy != r.CA.New || r.TokenKey != nil && m.Holds.Signs != r.TokenKey.New {
			return false
		}
	}
	return true
}

// Wanted are the keys that agents are to have.
type Wanted struct {
	IssuedBy string // pin of the CA; empty: any
	PodsHold string // ID of the token key; empty: any
}

// ForAgents returns what agents are to have now. r may be nil.
func (r *Record) ForAgents(members []Member) (w Wanted) {
	if r == nil || r.Phase == Trust || r.Phase == Issue && !r.serversIssue(members) {
		return w
	}
	if r.CA != nil {
		w.IssuedBy = r.CA.New
	}
	if r.TokenKey != nil {
		w.PodsHold = r.TokenKey.New
	}
	return w
}

// Summary is one line for people. r may be nil.
func (r *Record) Summary() string {
	if r == nil {
		return "no rotation has been made"
	}
	var what []string
	if r.CA != nil {
		what = append(what, "the cluster CA")
	}
	if r.TokenKey != nil {
		what = append(what, "the service-account key")
	}
	return fmt.Sprintf("rotation %d of %s: %s since %s UTC", r.Number, strings.Join(what, " and "), r.Phase.text(), r.Changed.UTC().Format(time.DateTime))
}

func (p Phase) text() string {
	switch p {
	case Trust:
		return "phase 1 of 3, every member learns to trust the new keys,"
	case Issue:
		return "phase 2 of 3, everything gets certificates and tokens of the new keys,"
	case Retire:
		return "phase 3 of 3, the old keys are retired,"
	}
	return "done"
}
