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

// How often the configuration is read when the kernel tells of no change, how long issuers of a new one may take to
// answer before it is left for later, and how long tokens may still be verified with the one before.
const (
	configLook   = time.Minute
	issuersWait  = time.Minute
	issuersGrace = time.Minute
)

// issuers verifies tokens of other issuers, as the newest good configuration names them. Before run it knows none.
type issuers struct {
	settings  Settings
	own       []string // of service accounts: nobody else may claim to be them
	audiences authenticator.Audiences
	log       *slog.Logger

	current atomic.Pointer[generation]
	initial *apiserver.AuthenticationConfiguration
	data    string // the file's content that was last judged
}

// generation is the issuers of one configuration.
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

// run asks the issuers for their keys, and follows the file, until ctx ends. Upstream's goroutines that ask end with ctx
// too, but offer no way to wait for them.
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
			i.log.Warn("changes of the authentication configuration are looked for once a minute", "err", err)
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

// reload takes a changed file when it is good and its issuers answer. Otherwise what was before stays.
func (i *issuers) reload(ctx context.Context) {
	data, err := os.ReadFile(i.settings.ConfigFile)
	if err != nil {
		i.log.Warn("the authentication configuration cannot be read and stays as it was", "err", err)
		return
	}
	if string(data) == i.data {
		return
	}
	config, err := i.settings.parse(data, i.own)
	if err == nil && !sameAnonymous(config.Anonymous, i.initial.Anonymous) {
		err = errors.New("the anonymous part changes with a new start only")
	}
	var g *generation
	if err == nil {
		g, err = i.make(ctx, config)
	}
	if err != nil {
		i.data = string(data) // it will not become better by itself
		i.log.Error("the changed authentication configuration is not used", "err", err)
		return
	}
	if err := g.healthy(ctx); err != nil {
		g.cancel()
		i.log.Error("the changed authentication configuration is not used yet", "err", err)
		return
	}
	i.data = string(data)
	before := i.current.Swap(g)
	i.log.Info("the authentication configuration has changed", "issuers", len(config.JWT))
	if before != nil {
		time.AfterFunc(issuersGrace, before.cancel)
	}
}

// healthy waits until every issuer has told its keys.
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
