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

// How often the configuration is read when the kernel tells of no change, and how long plug-ins of a new one may take to
// answer before it is left for later.
const (
	configLook  = time.Minute
	pluginsWait = 10 * time.Second
)

// ErrNotStarted: the configuration is read by Start, and nothing can be read or written before.
var ErrNotStarted = errors.New("the encryption configuration has not been read yet")

// Config says what is encrypted, and where the encrypted objects are.
type Config struct {
	Settings
	// Scan calls fn with every stored value whose key starts with prefix, in order, until fn returns false.
	Scan func(prefix string, fn func(key string, stored []byte) bool)
	// Prefix starts every object's key.
	Prefix string
	// Locate says of which resource a key's object is, and its "namespace/name" or "name"; ok is false for keys that
	// hold no object.
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

// Encryption encrypts and decrypts for one server. Safe for concurrent use.
type Encryption struct {
	cfg     Config
	log     *slog.Logger
	current atomic.Pointer[generation]

	mu     sync.Mutex
	faults map[unreadable]error
	looked time.Time // when the faults were last looked at again
	unused error     // why a changed file is not used
}

// generation is one configuration in use.
type generation struct {
	transformers encryptionconfig.StaticTransformers
	checks       []healthz.HealthChecker
	hash         string
	grace        time.Duration // how long requests may still use it after it has been replaced
	cancel       context.CancelFunc
}

// New checks the configuration. It asks nobody and starts nothing.
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

// On reports whether there is a configuration.
func (e *Encryption) On() bool { return e.cfg.File != "" }

// Start reads the configuration. What it starts ends with ctx. A plug-in that does not answer is no error: its objects
// cannot be read or written until it does.
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

// Run follows the file, if it is to be followed, until ctx ends.
func (e *Encryption) Run(ctx context.Context) error {
	if e.On() && e.cfg.Reload {
		filesystem.WatchUntil(ctx, configLook, e.cfg.File, func() { e.reload(ctx) }, func(err error) {
			e.log.Warn("changes of the encryption configuration are looked for once a minute", "err", err)
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

// reload takes a changed file when it is good and its plug-ins answer. Otherwise what was before stays, and readiness
// says why.
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

// refuse notes why a changed file is not used, nil when it is.
func (e *Encryption) refuse(err error) {
	e.mu.Lock()
	told := e.unused
	e.unused = err
	e.mu.Unlock()
	if err != nil && (told == nil || told.Error() != err.Error()) {
		e.log.Error("the changed encryption configuration is not used", "err", err)
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

// Plugins is a readiness check: every KMS plug-in answers and has a key to encrypt with. It asks them, at most every few
// seconds.
func (e *Encryption) Plugins(req *http.Request) error {
	g := e.current.Load()
	if g == nil {
		return ErrNotStarted
	}
	return g.check(req.Context())
}

// For is what is applied to a resource's bytes. A value is bound to its key: elsewhere it cannot be read.
func (e *Encryption) For(gr schema.GroupResource) value.Transformer {
	return &transformer{e: e, gr: gr}
}
