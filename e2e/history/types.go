package history

import (
	"encoding/json"
	"os"
	"strings"
)

// KV is a key as an answer or an event shows it.
type KV struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Create  int64  `json:"create"`
	Mod     int64  `json:"mod"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease,omitempty"`
}

// Compare is one condition: the key's mod revision (0: it is absent), or its
// value if ByValue.
type Compare struct {
	Key     string `json:"key"`
	Mod     int64  `json:"mod,omitempty"`
	Value   string `json:"value,omitempty"`
	ByValue bool   `json:"byValue,omitempty"`
}

// Write puts a value, or deletes the key. Values are unique in a history.
type Write struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Lease  int64  `json:"lease,omitempty"`
	Delete bool   `json:"delete,omitempty"`
}

// Read is a key or, with Prefix, all keys that begin with it. It comes after
// the writes of its operation and sees them.
type Read struct {
	Key    string `json:"key"`
	Prefix bool   `json:"prefix,omitempty"`
	At     int64  `json:"at,omitempty"` // an older revision; 0: the present
	// Serializable reads may be old, but never torn.
	Serializable bool `json:"serializable,omitempty"`
}

func (r *Read) covers(key string) bool {
	return key == r.Key || r.Prefix && strings.HasPrefix(key, r.Key)
}

// Op is one operation: if all Compares hold, Writes happen; then Read is
// answered. Gets, puts, lists and transactions are all of this form.
type Op struct {
	Client   int       `json:"client"`
	Endpoint int       `json:"endpoint"`
	Compares []Compare `json:"compares,omitempty"`
	Writes   []Write   `json:"writes,omitempty"`
	Read     *Read     `json:"read,omitempty"`

	Call   int64  `json:"call"`
	Return int64  `json:"return,omitempty"`
	Fault  string `json:"fault,omitempty"` // not empty: the outcome is unknown

	Revision  int64 `json:"revision,omitempty"`  // of the answer's header
	Succeeded bool  `json:"succeeded,omitempty"` // the conditions held, or there were none
	Changed   bool  `json:"changed,omitempty"`   // it put something, or deleted what was there
	KVs       []KV  `json:"kvs,omitempty"`       // what Read found
}

// known says that the operation was answered.
func (o *Op) known() bool { return o.Fault == "" }

// wrote says that the operation was acknowledged and made a revision.
func (o *Op) wrote() bool { return o.known() && o.Succeeded && o.Changed }

// linearizable says that the operation promises the newest state.
func (o *Op) linearizable() bool { return o.Read == nil || !o.Read.Serializable && o.Read.At == 0 }

// Event is one change as a watcher saw it, or a promise of progress: with
// Progress, everything up to Revision has been delivered.
type Event struct {
	Revision int64 `json:"revision"`
	Seen     int64 `json:"seen"`
	Endpoint int   `json:"endpoint"`
	Progress bool  `json:"progress,omitempty"`
	Delete   bool  `json:"delete,omitempty"`
	KV       KV    `json:"kv"`
	Prev     *KV   `json:"prev,omitempty"`
}

// Watcher is everything one watcher saw, from revision 1 on, in order.
type Watcher struct {
	Name   string  `json:"name"`
	Events []Event `json:"events"`
}

// Lease is one lease's life: until when, at least, it had to live.
type Lease struct {
	ID int64 `json:"id"`
	// Until is when it may end: the TTL after its last acknowledged grant or
	// keep-alive was asked for, or when its revocation was asked for.
	Until int64 `json:"until"`
	// Renewals is what was asked for, for those who look into a fault.
	Renewals []Renewal `json:"renewals,omitempty"`
}

// Renewal is one keep-alive; TTL is what the answer said, in seconds, 0 if
// there was none.
type Renewal struct {
	Endpoint int   `json:"endpoint"`
	Call     int64 `json:"call"`
	Return   int64 `json:"return"`
	TTL      int64 `json:"ttl"`
}

// History is one run.
type History struct {
	Ops      []Op      `json:"ops"`
	Watchers []Watcher `json:"watchers"`
	Leases   []Lease   `json:"leases,omitempty"`
	// End is the revision of a last write, after which nobody wrote; every
	// watcher has to have seen it.
	End int64 `json:"end"`
}

// Save writes the history as JSON.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(h)
}

// Load reads what Save wrote.
func Load(path string) (*History, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	h := &History{}
	return h, json.Unmarshal(raw, h)
}
