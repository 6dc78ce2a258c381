package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

// How often the configuration is read when the kernel reports no change, how long the issuers of a new one may take to
// answer before it is left for the next attempt, and how long requests may still use the former one.
const (
	configLook   = time.Minute
	issuersWait  = time.Minute
	issuersGrace = time.Minute
)

// issuers verifies the tokens of other issuers, according to the newest valid configuration. Before run it accepts
// none.
type issuers struct {
	settings  Settings
	own       []string // the cluster's own issuers, which no configured issuer may claim to be
	audiences authenticator.Audiences
	log       *slog.Logger

	current atomic.Pointer[generation]
	initial *apiserver.AuthenticationConfiguration
	data    string // content of the file that was checked last
}

// generation holds the issuers of one configuration.
type generation struct {
	authenticator.Token
	health []func() error
	cancel context.CancelFunc
}

// AuthenticateToken implements authenticator.Token.
func (i *issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	g := i.current.Load()
	if g == nil {
		return nil, false, nil
	}
	return g.AuthenticateToken(ctx, token)
}

// run fetches the issuers' keys and follows the file until ctx ends. Upstream's goroutines that fetch keys end with ctx
// too, but there is no way to wait for them.
func (i *issuers) run(ctx context.Context) error {
	if len(i.initial.JWT) > 0 {
		g, err := i.make(ctx, i.initial)
		if err != nil {
			return fmt.Errorf("authn: %w", err)
		}
		i.current.Store(g)
	}
	if i.settings.ConfigFile != "" {
		filesystem.WatchUntil(ctx, configLook, i.settings.ConfigFile, func() { i.reload(ctx) }, func(err error) {
			i.log.Warn("cannot watch the authentication configuration file; it is read once a minute instead", "err", err)
		})
	}
	<-ctx.Done()
	return nil
}

func (i *issuers) make(ctx context.Context, config *apiserver.AuthenticationConfiguration) (*generation, error) {
	g := &generation{}
	ctx, g.cancel = context.WithCancel(ctx)
	var all []authenticator.Token
	for _, jwt := range config.JWT {
		o := oidc.Options{JWTAuthenticator: jwt, SupportedSigningAlgs: i.settings.algorithms(), DisallowedIssuers: i.own}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			content, err := dynamiccertificates.NewStaticCAContent("oidc", []byte(ca))
			if err != nil {
				g.cancel()
				return nil, fmt.Errorf("certificate authority of issuer %s: %w", jwt.Issuer.URL, err)
			}
			o.CAContentProvider = content
		}
		one, err := oidc.New(ctx, o)
		if err != nil {
			g.cancel()
			return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		all, g.health = append(all, one), append(g.health, one.HealthCheck)
	}
	g.Token = authenticator.WrapAudienceAgnosticToken(i.audiences, tokenunion.NewFailOnError(all...))
	return g, nil
}

// reload uses a changed file if it is valid and its issuers answer. Otherwise the former configuration stays.
func (i *issuers) reload(ctx context.Context) {
	data, err := os.ReadFile(i.settings.ConfigFile)
	if err != nil {
		i.log.Warn("cannot read the authentication configuration; the former one stays", "err", err)
		return
	}
	if string(data) == i.data {
		return
	}
	config, err := i.settings.parse(data, i.own)
	if err == nil && !sameAnonymous(config.Anonymous, i.initial.Anonymous) {
		err = errors.New("a change of the anonymous part needs a restart")
	}
	var g *generation
	if err == nil {
		g, err = i.make(ctx, config)
	}
	if err != nil {
		i.data = string(data) // trying the same content again would not help
		i.log.Error("the changed authentication configuration is not used; the former one stays", "err", err)
		return
	}
	if err := g.healthy(ctx); err != nil {
		g.cancel()
		i.log.Error("the changed authentication configuration is not used yet, because its issuers do not answer; it is tried again", "err", err)
		return
	}
	i.data = string(data)
	before := i.current.Swap(g)
	i.log.Info("the authentication configuration has changed", "issuers", len(config.JWT))
	if before != nil {
		time.AfterFunc(issuersGrace, before.cancel)
	}
}

// healthy waits until every issuer has sent its keys.
func (g *generation) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, issuersWait)
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		var errs []error
		for _, check := range g.health {
			errs = append(errs, check())
		}
		err := errors.Join(errs...)
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

func sameAnonymous(a, b *apiserver.AnonymousAuthConfig) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.Enabled != b.Enabled || len(a.Conditions) != len(b.Conditions) {
		return false
	}
	for n := range a.Conditions {
		if a.Conditions[n] != b.Conditions[n] {
			return false
		}
	}
	return true
}
