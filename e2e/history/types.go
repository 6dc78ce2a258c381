package history

import (
	"encoding/json"
	"os"
	"strings"
)

// KV is a key in an answer or an event.
type KV struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Create  int64  `json:"create"`
	Mod     int64  `json:"mod"`
	Version int64  `json:"version"`
	Lease   int64  `json:"lease,omitempty"`
}

// Compare is one condition: the key's mod revision (0: it is absent), or its value if ByValue.
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

// Read reads a key or, with Prefix, all keys that begin with it. It sees the writes of its own operation.
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

// Op is one operation: if all Compares hold, the Writes are done; then Read is answered. Gets, puts, lists and
// transactions have this form.
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
	Changed   bool  `json:"changed,omitempty"`   // it put something, or deleted an existing key
	KVs       []KV  `json:"kvs,omitempty"`       // the result of Read
}

// known reports whether the operation was answered.
func (o *Op) known() bool { return o.Fault == "" }

// wrote reports whether the operation was acknowledged and made a revision.
func (o *Op) wrote() bool { return o.known() && o.Succeeded && o.Changed }

// linearizable reports whether the operation promises the newest state.
func (o *Op) linearizable() bool { return o.Read == nil || !o.Read.Serializable && o.Read.At == 0 }

// Event is one change that a watcher received. With Progress it says that all events up to Revision were delivered.
type Event struct {
	Revision int64 `json:"revision"`
	Seen     int64 `json:"seen"`
	Endpoint int   `json:"endpoint"`
	Progress bool  `json:"progress,omitempty"`
	Delete   bool  `json:"delete,omitempty"`
	KV       KV    `json:"kv"`
	Prev     *KV   `json:"prev,omitempty"`
}

// Watcher holds all events of one watcher, from revision 1 on, in order.
type Watcher struct {
	Name   string  `json:"name"`
	Events []Event `json:"events"`
}

// Lease is the time until which a lease had to live.
type Lease struct {
	ID int64 `json:"id"`
	// Until is the earliest time at which the lease may end: the TTL after the request of its last acknowledged grant
	// or keep-alive, or the request of its revocation.
	Until int64 `json:"until"`
	// Renewals are its keep-alives, to investigate a fault.
	Renewals []Renewal `json:"renewals,omitempty"`
}

// Renewal is one keep-alive. TTL is the answer's, in seconds; 0: no answer.
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
	// End is the revision of the last write; every watcher must have received it.
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
