package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/filesystem"
)

// How often the file is read when the kernel reports no change, and how long the plug-ins of a new configuration may
// take to answer before it is left for the next attempt.
const (
	configLook  = time.Minute
	pluginsWait = 10 * time.Second
)

// ErrNotStarted: nothing can be read or written before Start has read the configuration.
var ErrNotStarted = errors.New("the encryption configuration has not been read yet")

// Config says what is encrypted, and gives access to the stored objects.
type Config struct {
	Settings
	// Scan calls fn with every stored value whose key starts with prefix, in key order, until fn returns false.
	Scan func(prefix string, fn func(key string, stored []byte) bool)
	// Prefix starts every object's key.
	Prefix string
	// Locate returns the resource of a key's object and its "namespace/name" or "name"; ok is false for keys without an
	// object.
	Locate func(key string) (gr schema.GroupResource, name string, ok bool)
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once, those of the file too.
func (c Config) Validate() error {
	var errs []error
	if c.Scan == nil || c.Locate == nil || c.Prefix == "" {
		errs = append(errs, errors.New("encryption: Config.Scan, Locate and Prefix must be set"))
	}
	return errors.Join(append(errs, c.Settings.Validate())...)
}

// Encryption encrypts and decrypts for one server. Its methods are safe for concurrent use.
type Encryption struct {
	cfg     Config
	log     *slog.Logger
	current atomic.Pointer[generation]

	mu     sync.Mutex
	faults map[unreadable]error
	looked time.Time // when the faults were last checked again
	unused error     // why a changed file is not used
}

// generation is one configuration in use.
type generation struct {
	transformers encryptionconfig.StaticTransformers
	checks       []healthz.HealthChecker
	hash         string
	grace        time.Duration // how long requests may still use it after it was replaced
	cancel       context.CancelFunc
}

// New checks the configuration. It starts nothing and calls no plug-in.
func New(cfg Config) (*Encryption, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Encryption{cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default()), faults: map[unreadable]error{}}
	if cfg.File == "" {
		e.current.Store(&generation{cancel: func() {}})
	}
	return e, nil
}

// On reports whether a configuration file is set.
func (e *Encryption) On() bool { return e.cfg.File != "" }

// Start reads the configuration. Everything that it starts ends with ctx. A plug-in that does not answer is not an
// error: its objects cannot be read or written until it answers.
func (e *Encryption) Start(ctx context.Context) error {
	if !e.On() {
		return nil
	}
	g, err := e.load(ctx)
	if err != nil {
		return fmt.Errorf("encryption: %w", err)
	}
	e.current.Store(g)
	return nil
}

// Run follows the file until ctx ends, if Settings.Reload is set.
func (e *Encryption) Run(ctx context.Context) error {
	if e.On() && e.cfg.Reload {
		filesystem.WatchUntil(ctx, configLook, e.cfg.File, func() { e.reload(ctx) }, func(err error) {
			e.log.Warn("cannot watch the encryption configuration file; it is read once a minute instead", "err", err)
		})
	}
	<-ctx.Done()
	return nil
}

func (e *Encryption) load(ctx context.Context) (*generation, error) {
	if err := e.cfg.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, e.cfg.File, true, "balsa")
	if err != nil {
		cancel()
		return nil, err
	}
	return &generation{transformers: c.Transformers, checks: c.HealthChecks, hash: c.EncryptionFileContentHash,
		grace: c.KMSCloseGracePeriod, cancel: cancel}, nil
}

// reload uses a changed file if it is valid and its plug-ins answer. Otherwise the former configuration stays, and
// readiness says why.
func (e *Encryption) reload(ctx context.Context) {
	before := e.current.Load()
	if hash, err := encryptionconfig.GetEncryptionConfigHash(e.cfg.File); err == nil && hash == before.hash {
		e.refuse(nil)
		return
	}
	g, err := e.load(ctx)
	if err != nil {
		e.refuse(err)
		return
	}
	if err := g.answers(ctx); err != nil {
		g.cancel()
		e.refuse(err)
		return
	}
	e.current.Store(g)
	e.refuse(nil)
	e.log.Info("the encryption configuration has changed", "hash", g.hash)
	time.AfterFunc(before.grace, before.cancel)
	e.Look(ctx)
}

// refuse records why a changed file is not used; nil: it is used.
func (e *Encryption) refuse(err error) {
	e.mu.Lock()
	told := e.unused
	e.unused = err
	e.mu.Unlock()
	if err != nil && (told == nil || told.Error() != err.Error()) {
		e.log.Error("the changed encryption configuration is not used; the former one stays", "err", err)
	}
}

// answers waits until every plug-in has answered.
func (g *generation) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(pluginsWait, g.grace))
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		err := g.check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-look.C:
		}
	}
}

func (g *generation) check(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz/kms-providers", nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range g.checks {
		errs = append(errs, c.Check(req))
	}
	return errors.Join(errs...)
}

// Plugins is a readiness check: every KMS plug-in answers and has a key to encrypt with. It calls the plug-ins, at most
// every few seconds.
func (e *Encryption) Plugins(req *http.Request) error {
	g := e.current.Load()
	if g == nil {
		return ErrNotStarted
	}
	return g.check(req.Context())
}

// For returns the transformer of a resource's stored bytes. An encrypted value is bound to its key: under another key
// it cannot be decrypted.
func (e *Encryption) For(gr schema.GroupResource) value.Transformer {
	return &transformer{e: e, gr: gr}
}
