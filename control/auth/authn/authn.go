package authn

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"

	"github.com/balsahq/balsa/control/auth/live"
)

// DefaultIssuer is the issuer of service-account tokens for the cluster domain cluster.local.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// How long a verified token is believed without looking at its objects again; upstream's figures.
const (
	tokenSuccessTTL = 10 * time.Second
	tokenFailureTTL = 0
)

// Config names what authenticators need.
type Config struct {
	// Live answers for ServiceAccounts, Pods, Secrets and Nodes that tokens are bound to.
	Live *live.Store
	// ClientVerify and FrontProxyVerify give the CAs of client certificates (pki.Authority has both). FrontProxyVerify
	// may be nil: then no front proxy is believed.
	ClientVerify, FrontProxyVerify x509.VerifyOptionFunc
	// ServiceAccountKey signs tokens; its public part verifies them.
	ServiceAccountKey crypto.Signer
	// Issuer defaults to DefaultIssuer; Audiences to the issuer.
	Issuer    string
	Audiences []string
	// TokenFile is an optional CSV of static tokens, as kube-apiserver's --token-auth-file.
	TokenFile string
	// SecretsWriter records the use of legacy tokens on their Secrets; nil leaves that out.
	SecretsWriter typedcorev1.SecretsGetter
	// ExternalAddress is the host:port in the OpenID documents' jwks_uri.
	ExternalAddress string
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
	if c.ServiceAccountKey == nil {
		errs = append(errs, errors.New("authn: ServiceAccountKey must be set"))
	}
	return errors.Join(errs...)
}

// Authenticators are what the API server and its REST handlers use.
type Authenticators struct {
	// Request authenticates HTTP requests.
	Request authenticator.Request
	// Token authenticates bearer tokens, for TokenReview.
	Token authenticator.Token
	// Issue makes service-account tokens, for serviceaccounts/token.
	Issue serviceaccount.TokenGenerator
	// Issuer and Audiences are the defaults that apply to issued tokens.
	Issuer    string
	Audiences authenticator.Audiences
	// OpenIDConfig and OpenIDKeys serve /.well-known/openid-configuration and /openid/v1/jwks.
	OpenIDConfig, OpenIDKeys http.Handler
	// FrontProxy holds the header names a front proxy uses; nil when none is believed.
	FrontProxy *FrontProxy

	forSecrets serviceaccount.TokenGenerator
}

// FrontProxy names the headers by which a trusted proxy says who the user is.
type FrontProxy struct {
	ClientNames, UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

var frontProxy = FrontProxy{
	ClientNames: []string{"front-proxy-client"}, UserHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
	GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
}

// New builds the chain.
func New(cfg Config) (*Authenticators, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Issuer == "" {
		cfg.Issuer = DefaultIssuer
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{cfg.Issuer}
	}
	out := &Authenticators{Issuer: cfg.Issuer, Audiences: cfg.Audiences}
	keys, err := serviceaccount.StaticPublicKeysGetter([]any{cfg.ServiceAccountKey.Public()})
	if err != nil {
		return nil, fmt.Errorf("authn: service account key: %w", err)
	}
	if out.Token, err = tokens(cfg, keys, out.Audiences); err != nil {
		return nil, err
	}
	if out.Issue, err = serviceaccount.JWTTokenGenerator(cfg.Issuer, cfg.ServiceAccountKey); err != nil {
		return nil, fmt.Errorf("authn: token generator: %w", err)
	}
	if out.forSecrets, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, cfg.ServiceAccountKey); err != nil {
		return nil, fmt.Errorf("authn: generator of Secrets' tokens: %w", err)
	}
	if err := out.openID(cfg, keys); err != nil {
		return nil, err
	}
	out.Request = out.requests(cfg)
	return out, nil
}

func tokens(cfg Config, keys serviceaccount.PublicKeysGetter, auds authenticator.Audiences) (authenticator.Token, error) {
	getter := objects{cfg.Live}
	var all []authenticator.Token
	if cfg.TokenFile != "" {
		static, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("authn: token file: %w", err)
		}
		all = append(all, authenticator.WrapAudienceAgnosticToken(auds, static))
	}
	if cfg.SecretsWriter != nil {
		legacy, err := serviceaccount.NewLegacyValidator(true, getter, cfg.SecretsWriter)
		if err != nil {
			return nil, fmt.Errorf("authn: legacy tokens: %w", err)
		}
		all = append(all, serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, auds, legacy))
	}
	all = append(all,
		serviceaccount.JWTTokenAuthenticator([]string{cfg.Issuer}, keys, auds, serviceaccount.NewValidator(getter)),
		authenticator.WrapAudienceAgnosticToken(auds, bootstrap.NewTokenAuthenticator(getter.secrets().Secrets("kube-system"))))
	known := group.NewTokenGroupAdder(confirmed{tokenunion.New(all...), cfg.Live}, []string{user.AllAuthenticated}) // a TokenReview names it too
	return tokencache.New(known, true, tokenSuccessTTL, tokenFailureTTL), nil
}

func (a *Authenticators) requests(cfg Config) authenticator.Request {
	all := []authenticator.Request{authenticator.RequestFunc(inProcess)}
	if cfg.FrontProxyVerify != nil {
		fp := frontProxy
		a.FrontProxy = &fp
		all = append(all, withHeader(fp.UserHeaders[0], authenticator.WrapAudienceAgnosticRequest(a.Audiences, headerrequest.NewDynamicVerifyOptionsSecure(cfg.FrontProxyVerify,
			headerrequest.StaticStringSlice(fp.ClientNames), headerrequest.StaticStringSlice(fp.UserHeaders),
			headerrequest.StaticStringSlice(fp.UIDHeaders), headerrequest.StaticStringSlice(fp.GroupHeaders),
			headerrequest.StaticStringSlice(fp.ExtraPrefixes)))))
	}
	all = append(all, remember(x509.NewDynamic(cfg.ClientVerify, x509.CommonNameUserConversion), time.Now),
		bearertoken.New(a.Token), websocket.NewProtocolAuthenticator(a.Token))
	known := group.NewAuthenticatedGroupAdder(requestunion.New(all...))
	return requestunion.NewFailOnError(known, authenticator.RequestFunc(anonymous))
}

func (a *Authenticators) openID(cfg Config, keys serviceaccount.PublicKeysGetter) error {
	external := cfg.ExternalAddress
	if external == "" {
		external = "kubernetes.default.svc"
	}
	meta, err := serviceaccount.NewOpenIDMetadataProvider(cfg.Issuer, "", external, keys)
	if err != nil {
		return fmt.Errorf("authn: OpenID discovery: %w", err)
	}
	a.OpenIDConfig = document("application/json", meta.GetConfigJSON)
	a.OpenIDKeys = document("application/jwk-set+json", meta.GetKeysetJSON)
	return nil
}

func document(contentType string, body func() ([]byte, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, maxAge := body()
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(data) // the client has gone: nothing to tell
	})
}

type identityKey struct{}

// WithIdentity marks a request's context as coming from inside the process on behalf of u. Only code in this process
// can make such a context; nothing on the wire can.
func WithIdentity(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, identityKey{}, u)
}

// Identity returns what WithIdentity put there.
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

// objects looks up what tokens are bound to.
type objects struct{ store *live.Store }

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
