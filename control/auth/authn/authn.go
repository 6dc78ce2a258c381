package authn

import (
	"cmp"
	"context"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	upstream "k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"

	"github.com/balsahq/balsa/control/auth/listers"
)

// DefaultIssuer is the issuer of service-account tokens for the cluster domain cluster.local.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// How long a verified token is accepted without reading its objects again; upstream's figures.
const (
	tokenSuccessTTL = 10 * time.Second
	tokenFailureTTL = 0
)

// Config configures New.
type Config struct {
	// Live reads the ServiceAccounts, Pods, Secrets and Nodes that tokens are bound to.
	Live *listers.Store
	// ClientVerify and FrontProxyVerify return the CAs of client certificates (pki.Authority has both). If
	// FrontProxyVerify is nil, no front proxy is trusted.
	ClientVerify, FrontProxyVerify x509.VerifyOptionFunc
	// OtherClientVerify returns further CAs of client certificates, beside the cluster's; nil: there are none.
	OtherClientVerify x509.VerifyOptionFunc
	// Refuse returns an error if the holder of a valid certificate of the cluster's CA was removed. It is called for
	// each request; nil refuses no certificate.
	Refuse func(*stdx509.Certificate) error
	// ServiceAccountKeys sign and verify tokens.
	ServiceAccountKeys TokenKeys
	// Issuer defaults to DefaultIssuer.
	Issuer string
	// Settings are the administrator's.
	Settings Settings
	// SecretsWriter records the use of legacy tokens in their Secrets; nil: the use is not recorded.
	SecretsWriter typedcorev1.SecretsGetter
	// ExternalAddress is the host:port of jwks_uri in the OpenID documents.
	ExternalAddress string
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Live == nil {
		errs = append(errs, errors.New("authn: Live must be set"))
	}
	if c.ClientVerify == nil {
		errs = append(errs, errors.New("authn: ClientVerify must be set"))
	}
	if c.ServiceAccountKeys == nil {
		errs = append(errs, errors.New("authn: ServiceAccountKeys must be set"))
	}
	errs = append(errs, c.Settings.check([]string{c.Issuer}))
	return errors.Join(errs...)
}

// Authenticators are the results of New, for the API server and its REST handlers.
type Authenticators struct {
	// Request authenticates HTTP requests.
	Request authenticator.Request
	// Token authenticates bearer tokens, for TokenReview.
	Token authenticator.Token
	// Issue makes service-account tokens, for serviceaccounts/token.
	Issue serviceaccount.TokenGenerator
	// Issuer and Audiences are the defaults for issued tokens.
	Issuer    string
	Audiences authenticator.Audiences
	// OpenIDConfig and OpenIDKeys serve /.well-known/openid-configuration and /openid/v1/jwks.
	OpenIDConfig, OpenIDKeys http.Handler
	// FrontProxy holds the header names of the front proxy; nil when none is trusted.
	FrontProxy *FrontProxy
	// Headers are the additional header names of the settings' proxy; nil when there is none. They must be removed from
	// requests that are passed on.
	Headers *authenticatorfactory.RequestHeaderConfig

	issuers *issuers
	keys    *keyring
}

// FrontProxy names the headers in which a trusted proxy names the user.
type FrontProxy struct {
	ClientNames, UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

var frontProxy = FrontProxy{
	ClientNames: []string{"front-proxy-client"}, UserHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
	GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
}

// New returns the chain of authenticators. Tokens of other issuers are verified once Run is called.
func New(cfg Config) (*Authenticators, error) {
	if cfg.Issuer == "" {
		cfg.Issuer = DefaultIssuer
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	out := &Authenticators{Issuer: cfg.Issuer, Audiences: cfg.Settings.Audiences}
	if len(out.Audiences) == 0 {
		out.Audiences = []string{cfg.Issuer}
	}
	keys, err := newKeyring(cfg, cmp.Or(cfg.ExternalAddress, "kubernetes.default.svc"))
	if err != nil {
		return nil, err
	}
	config, err := cfg.Settings.configuration([]string{cfg.Issuer})
	if err != nil {
		return nil, fmt.Errorf("authn: %w", err)
	}
	out.issuers = &issuers{settings: cfg.Settings, own: []string{cfg.Issuer}, audiences: out.Audiences, log: cfg.Logger, initial: config}
	if file := cfg.Settings.ConfigFile; file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("authn: --authentication-config: %w", err)
		}
		out.issuers.data = string(data)
	}
	if out.Token, err = out.tokens(cfg, keys); err != nil {
		return nil, err
	}
	out.keys, out.Issue = keys, keys
	out.OpenIDConfig = keys.document("application/json", serviceaccount.OpenIDMetadataProvider.GetConfigJSON)
	out.OpenIDKeys = keys.document("application/jwk-set+json", serviceaccount.OpenIDMetadataProvider.GetKeysetJSON)
	out.Request, err = out.requests(cfg)
	return out, err
}

// Run follows the issuers of other tokens until ctx ends. It returns an error if one of them cannot be used at all.
func (a *Authenticators) Run(ctx context.Context) error { return a.issuers.run(ctx) }

// tokens returns the token authenticators: first those that need only this process's memory, then those that call
// another server.
func (a *Authenticators) tokens(cfg Config, keys serviceaccount.PublicKeysGetter) (authenticator.Token, error) {
	getter, auds := objects{cfg.Live}, a.Audiences
	var here []authenticator.Token
	if file := cfg.Settings.TokenFile; file != "" {
		static, err := tokenfile.NewCSV(file)
		if err != nil {
			return nil, fmt.Errorf("authn: --token-auth-file: %w", err)
		}
		here = append(here, authenticator.WrapAudienceAgnosticToken(auds, static))
	}
	if cfg.SecretsWriter != nil {
		legacy, err := serviceaccount.NewLegacyValidator(true, getter, cfg.SecretsWriter)
		if err != nil {
			return nil, fmt.Errorf("authn: legacy tokens: %w", err)
		}
		here = append(here, serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, auds, legacy))
	}
	here = append(here,
		serviceaccount.JWTTokenAuthenticator([]string{cfg.Issuer}, keys, auds, serviceaccount.NewValidator(getter)),
		authenticator.WrapAudienceAgnosticToken(auds, bootstrap.NewTokenAuthenticator(getter.secrets().Secrets("kube-system"))))
	all := []authenticator.Token{confirmed{tokenunion.New(here...), cfg.Live}, a.issuers}
	if cfg.Settings.WebhookFile != "" {
		hook, err := webhookTokens(cfg.Settings, auds)
		if err != nil {
			return nil, fmt.Errorf("authn: --authentication-token-webhook-config-file: %w", err)
		}
		all = append(all, hook)
	}
	known := group.NewTokenGroupAdder(tokenunion.New(all...), []string{user.AllAuthenticated}) // TokenReviews return this group too
	return tokencache.New(known, true, tokenSuccessTTL, tokenFailureTTL), nil
}

func webhookTokens(s Settings, auds authenticator.Audiences) (authenticator.Token, error) {
	client, err := webhookutil.LoadKubeconfig(s.WebhookFile, nil)
	if err != nil {
		return nil, err
	}
	hook, err := webhook.New(client, cmp.Or(s.WebhookVersion, "v1beta1"), auds, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, err
	}
	return tokencache.New(hook, false, s.WebhookTTL, s.WebhookTTL), nil
}

func (a *Authenticators) requests(cfg Config) (authenticator.Request, error) {
	all := []authenticator.Request{authenticator.RequestFunc(inProcess)}
	if cfg.FrontProxyVerify != nil {
		fp := frontProxy
		a.FrontProxy = &fp
		all = append(all, a.proxy(cfg.FrontProxyVerify, fp))
	}
	if s := cfg.Settings.Proxy; s.CAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("authn: --requestheader-client-ca-file: %w", err)
		}
		other := s.headers()
		a.Headers = &authenticatorfactory.RequestHeaderConfig{
			UsernameHeaders: headerrequest.StaticStringSlice(other.UserHeaders), UIDHeaders: headerrequest.StaticStringSlice(other.UIDHeaders),
			GroupHeaders: headerrequest.StaticStringSlice(other.GroupHeaders), ExtraHeaderPrefixes: headerrequest.StaticStringSlice(other.ExtraPrefixes),
		}
		// A request whose proxy certificate does not verify may have other credentials.
		all = append(all, lenient{a.proxy(ca.VerifyOptions, other)})
	}
	all = append(all, cfg.certificates(),
		bearertoken.New(a.Token), websocket.NewProtocolAuthenticator(a.Token))
	if file := cfg.Settings.PasswordFile; file != "" {
		users, err := readPasswords(file)
		if err != nil {
			return nil, fmt.Errorf("authn: --basic-auth-file: %w", err)
		}
		cfg.Logger.Warn("passwords of --basic-auth-file are sent with every request, and changing one needs a restart; prefer tokens or certificates", "users", len(users))
		all = append(all, authenticator.WrapAudienceAgnosticRequest(a.Audiences, users))
	}
	known := group.NewAuthenticatedGroupAdder(requestunion.New(all...))
	return a.orAnonymous(known, cfg.Settings.Anonymous), nil
}

// proxy trusts the user that a proxy names in its headers. It runs only for requests with one of these headers.
func (a *Authenticators) proxy(verify x509.VerifyOptionFunc, fp FrontProxy) authenticator.Request {
	return withHeader(fp.UserHeaders, authenticator.WrapAudienceAgnosticRequest(a.Audiences, headerrequest.NewDynamicVerifyOptionsSecure(verify,
		headerrequest.StaticStringSlice(fp.ClientNames), headerrequest.StaticStringSlice(fp.UserHeaders),
		headerrequest.StaticStringSlice(fp.UIDHeaders), headerrequest.StaticStringSlice(fp.GroupHeaders),
		headerrequest.StaticStringSlice(fp.ExtraPrefixes))))
}

// headers returns the header names of the settings, or the defaults.
func (p Proxy) headers() FrontProxy {
	or := func(given, usual []string) []string {
		if len(given) > 0 {
			return given
		}
		return usual
	}
	return FrontProxy{
		ClientNames: p.Names, UserHeaders: or(p.UserHeaders, frontProxy.UserHeaders), UIDHeaders: or(p.UIDHeaders, frontProxy.UIDHeaders),
		GroupHeaders: or(p.GroupHeaders, frontProxy.GroupHeaders), ExtraPrefixes: or(p.ExtraPrefixes, frontProxy.ExtraPrefixes),
	}
}

// orAnonymous makes requests without credentials anonymous, as far as the settings allow it. Wrong credentials are
// refused.
func (a *Authenticators) orAnonymous(known authenticator.Request, setting string) authenticator.Request {
	config := a.issuers.initial.Anonymous
	switch {
	case setting == "false", config != nil && !config.Enabled:
		return known
	case setting == "true":
		return requestunion.NewFailOnError(known, upstream.NewAuthenticator(nil))
	case config != nil:
		return requestunion.NewFailOnError(known, upstream.NewAuthenticator(config.Conditions))
	}
	return requestunion.NewFailOnError(known, authenticator.RequestFunc(anonymous))
}

type identityKey struct{}

// WithIdentity marks a request's context as coming from this process on behalf of u. Only code in this process can make
// such a context; no request over the network can.
func WithIdentity(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, identityKey{}, u)
}

// Identity returns the user of WithIdentity.
func Identity(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(identityKey{}).(user.Info)
	return u, ok
}

func inProcess(req *http.Request) (*authenticator.Response, bool, error) {
	u, ok := Identity(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

// objects reads the objects that tokens are bound to.
type objects struct{ store *listers.Store }

func (o objects) secrets() corelisters.SecretLister {
	return corelisters.NewSecretLister(o.store.Fresh(schema.GroupResource{Resource: "secrets"}))
}

func (o objects) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return corelisters.NewServiceAccountLister(o.store.Kept(schema.GroupResource{Resource: "serviceaccounts"})).ServiceAccounts(namespace).Get(name)
}

func (o objects) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return corelisters.NewPodLister(o.store.Fresh(schema.GroupResource{Resource: "pods"})).Pods(namespace).Get(name)
}

func (o objects) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return o.secrets().Secrets(namespace).Get(name)
}

func (o objects) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return corelisters.NewNodeLister(o.store.Fresh(schema.GroupResource{Resource: "nodes"})).Get(name)
}
