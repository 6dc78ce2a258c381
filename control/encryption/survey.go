package encryption

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// maxFaults bounds the recorded objects that cannot be decrypted: one for each resource and key.
const maxFaults = 64

// lookAgain is how long a fault is reported before Check tries the object again.
const lookAgain = time.Second

// unreadable is an object that cannot be decrypted here.
type unreadable struct {
	gr   schema.GroupResource
	with Header
}

// note records that data could not be decrypted, and returns err as a LockedError.
func (e *Encryption) note(gr schema.GroupResource, data []byte, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrNotStarted) {
		return err
	}
	locked := &LockedError{Resource: gr, With: HeaderOf(data), Err: err}
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := (unreadable{gr, locked.With}); len(e.faults) < maxFaults {
		e.faults[f] = locked
	}
	return locked
}

// Check is a readiness check: every stored object can be decrypted, and a changed configuration is in use. It costs
// nothing as long as no fault is recorded.
func (e *Encryption) Check(req *http.Request) error {
	e.mu.Lock()
	again := len(e.faults) > 0 && time.Since(e.looked) > lookAgain
	e.mu.Unlock()
	if again {
		e.Look(req.Context())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	errs := make([]error, 0, len(e.faults)+1)
	for _, f := range slices.SortedFunc(maps.Keys(e.faults), compareFaults) {
		errs = append(errs, e.faults[f])
	}
	return errors.Join(append(errs, e.unused)...)
}

func compareFaults(a, b unreadable) int {
	return cmp.Or(cmp.Compare(a.gr.String(), b.gr.String()), cmp.Compare(a.with.String(), b.with.String()))
}

// Look decrypts one object of each resource and key, and records those that cannot be decrypted.
func (e *Encryption) Look(ctx context.Context) {
	found := map[unreadable]error{}
	for _, s := range e.Survey(ctx) {
		if s.Error != "" && len(found) < maxFaults {
			gr := schema.ParseGroupResource(s.Resource)
			found[unreadable{gr, s.With}] = &LockedError{Resource: gr, With: s.With, Err: errors.New(s.Error)}
		}
	}
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for f := range found {
		if _, known := e.faults[f]; !known {
			e.log.Error("cannot decrypt stored objects; requests for them fail", "err", found[f])
		}
	}
	e.faults, e.looked = found, time.Now()
}

// Share counts the objects of a resource that are stored in the same way.
type Share struct {
	Resource string `json:"resource"` // "secrets", "deployments.apps"
	With     Header `json:"with"`
	Objects  int    `json:"objects"`
	// Stale: if these objects were written now, they would be stored in another way.
	Stale bool `json:"stale,omitempty"`
	// Error says why these objects cannot be decrypted, or why no object of the resource can be encrypted.
	Error string `json:"error,omitempty"`
}

// Survey reads the header of every stored object, and decrypts one object of each resource and header.
func (e *Encryption) Survey(ctx context.Context) []Share {
	shares := map[unreadable]*Share{}
	type sample struct {
		key    string
		stored []byte
	}
	samples := map[unreadable]sample{}
	e.cfg.Scan(e.cfg.Prefix, func(key string, stored []byte) bool {
		gr, _, ok := e.cfg.Locate(key)
		if !ok {
			return ctx.Err() == nil
		}
		f := unreadable{gr, HeaderOf(stored)}
		s := shares[f]
		if s == nil {
			s = &Share{Resource: gr.String(), With: f.with}
			shares[f], samples[f] = s, sample{key, stored}
		}
		s.Objects++
		return ctx.Err() == nil
	})
	now := e.writers(ctx)
	var out []Share
	for _, f := range slices.SortedFunc(maps.Keys(shares), compareFaults) {
		s, t := shares[f], &transformer{e: e, gr: f.gr}
		if _, _, err := t.open(ctx, samples[f].stored, value.DefaultContext(samples[f].key)); err != nil {
			s.Error = err.Error()
		} else if with, err := now(f.gr); err != nil {
			s.Error = err.Error()
		} else {
			s.Stale = with != f.with
		}
		out = append(out, *s)
	}
	return out
}

// writers returns a function that gives the header of newly written objects; it encrypts once for each resource.
func (e *Encryption) writers(ctx context.Context) func(schema.GroupResource) (Header, error) {
	type answer struct {
		Header
		error
	}
	known := map[schema.GroupResource]answer{}
	return func(gr schema.GroupResource) (Header, error) {
		a, ok := known[gr]
		if !ok {
			stored, err := (&transformer{e: e, gr: gr}).TransformToStorage(ctx, []byte("k"), value.DefaultContext("/"))
			a = answer{HeaderOf(stored), err}
			known[gr] = a
		}
		return a.Header, a.error
	}
}

// Stale is a page of the objects that should be rewritten.
type Stale struct {
	// Names are "namespace/name" or "name".
	Names []string `json:"names"`
	// Last is the start of the next page; empty on the last page.
	Last string `json:"last,omitempty"`
}

// stale lists the objects of a resource, after a key, that are not stored as they would be now.
func (e *Encryption) stale(ctx context.Context, gr schema.GroupResource, after string, limit int) (Stale, error) {
	with, err := e.writers(ctx)(gr)
	if err != nil {
		return Stale{}, err
	}
	page, last := Stale{Names: []string{}}, ""
	e.cfg.Scan(e.cfg.Prefix, func(key string, stored []byte) bool {
		own, name, ok := e.cfg.Locate(key)
		if !ok || own != gr || key <= after || HeaderOf(stored) == with {
			return ctx.Err() == nil
		}
		if len(page.Names) == limit {
			page.Last = last
			return false
		}
		page.Names, last = append(page.Names, name), key
		return ctx.Err() == nil
	})
	return page, ctx.Err()
}

// Status is the answer of Handler.
type Status struct {
	// Configuration is the file's checksum, to compare servers; empty without one.
	Configuration string  `json:"configuration,omitempty"`
	Unused        string  `json:"unused,omitempty"` // why a changed file is not used
	Shares        []Share `json:"shares"`
}

// Path is the URL path of Handler. RBAC decides which users may read it (nonResourceURLs).
const Path = "/balsa/encryption"

// maxPage bounds a page of stale objects.
const maxPage = 1000

// Handler answers GET with a Status, and GET with ?stale=RESOURCE (and &after= and &limit=) with a Stale.
func (e *Encryption) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
			return
		}
		var answer any
		if q := r.URL.Query(); q.Get("stale") != "" {
			limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "500"))
			if err != nil || limit < 1 || limit > maxPage {
				http.Error(w, "limit must be from 1 to "+strconv.Itoa(maxPage), http.StatusBadRequest)
				return
			}
			page, err := e.stale(r.Context(), schema.ParseGroupResource(q.Get("stale")), q.Get("after"), limit)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			answer = page
		} else {
			answer = e.status(r.Context())
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func (e *Encryption) status(ctx context.Context) Status {
	s := Status{Shares: e.Survey(ctx)}
	if g := e.current.Load(); g != nil {
		s.Configuration = g.hash
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unused != nil {
		s.Unused = e.unused.Error()
	}
	return s
}
