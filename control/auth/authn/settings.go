package authn

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

// Settings are the authentication methods that an administrator may add to those of every cluster. The names in the
// comments are kube-apiserver's flags, which have the same meaning. The zero value adds none.
type Settings struct {
	// ConfigFile is an AuthenticationConfiguration (apiserver.config.k8s.io): issuers of tokens, anonymous requests. A
	// change of its issuers is used without a restart. --authentication-config
	ConfigFile string
	// OIDC is one issuer given by flags, instead of those in ConfigFile.
	OIDC OIDC
	// WebhookFile is a kubeconfig of the server that answers TokenReviews. --authentication-token-webhook-config-file
	WebhookFile string
	// WebhookVersion is the version of the TokenReviews: v1, or v1beta1, the default.
	// --authentication-token-webhook-version
	WebhookVersion string
	// WebhookTTL is how long an answer is used again; 0: never. --authentication-token-webhook-cache-ttl
	WebhookTTL time.Duration
	// TokenFile is a CSV: token, user, uid, "group,group". --token-auth-file
	TokenFile string
	// PasswordFile is a CSV: password, user, uid, "group,group". --basic-auth-file
	PasswordFile string
	// Anonymous "true" allows requests without credentials for every path, "false" for none. If it is empty, they are
	// allowed for health and discovery documents, or as ConfigFile says. --anonymous-auth
	Anonymous string
	// Audiences are the audiences of tokens for this API; default: the issuer of service-account tokens.
	// --api-audiences
	Audiences []string
	// Proxy authenticates its clients and names them in headers.
	Proxy Proxy
}

// OIDC is an issuer of OpenID Connect ID tokens. --oidc-issuer-url and so on
type OIDC struct {
	IssuerURL, ClientID, CAFile                              string
	UsernameClaim, UsernamePrefix, GroupsClaim, GroupsPrefix string
	SigningAlgs                                              []string
	RequiredClaims                                           map[string]string
}

func (o OIDC) set() bool {
	return o.IssuerURL != "" || o.ClientID != "" || o.CAFile != "" || o.UsernamePrefix != "" || o.GroupsClaim != "" || len(o.RequiredClaims) > 0
}

// Proxy is a proxy that authenticates its clients itself. --requestheader-client-ca-file and so on
type Proxy struct {
	// CAFile holds the CAs of the proxy's certificate. If it is empty, only the cluster's own front proxy is trusted.
	CAFile string
	// Names are the allowed common names; none: every certificate of CAFile is allowed.
	Names []string
	// The header names; default X-Remote-User, X-Remote-Uid, X-Remote-Group and X-Remote-Extra-.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// Validate reports every fault at once, those of the files too.
func (s Settings) Validate() error { return s.check(nil) }

func (s Settings) check(ownIssuers []string) error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(s.ConfigFile != "" && s.OIDC.set(), "--authentication-config and --oidc-* both name issuers: give one of them")
	fault(s.OIDC.set() && (s.OIDC.IssuerURL == "" || s.OIDC.ClientID == ""), "--oidc-issuer-url and --oidc-client-id are needed when any --oidc-* is given")
	for _, alg := range s.OIDC.SigningAlgs {
		fault(!slices.Contains(oidc.AllValidSigningAlgorithms(), alg), "--oidc-signing-algs %q: give some of %s", alg, strings.Join(oidc.AllValidSigningAlgorithms(), ", "))
	}
	fault(!slices.Contains([]string{"", "true", "false"}, s.Anonymous), "--anonymous-auth %q: give true or false", s.Anonymous)
	fault(!slices.Contains([]string{"", "v1", "v1beta1"}, s.WebhookVersion), "--authentication-token-webhook-version %q: give v1 or v1beta1", s.WebhookVersion)
	fault(s.WebhookTTL < 0, "--authentication-token-webhook-cache-ttl %v: give 0 or more", s.WebhookTTL)
	fault(s.Proxy.CAFile == "" && len(s.Proxy.Names) > 0, "--requestheader-allowed-names needs --requestheader-client-ca-file")
	for flag, file := range map[string]string{"authentication-token-webhook-config-file": s.WebhookFile, "requestheader-client-ca-file": s.Proxy.CAFile} {
		if file != "" {
			_, err := os.Stat(file)
			fault(err != nil, "--%s: %w", flag, err)
		}
	}
	if len(errs) == 0 {
		_, err := s.configuration(ownIssuers)
		fault(err != nil, "%w", err)
	}
	return errors.Join(errs...)
}

var configCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// configuration returns the checked configuration of issuers and anonymous requests, from the file or from the flags.
func (s Settings) configuration(ownIssuers []string) (*apiserver.AuthenticationConfiguration, error) {
	if s.ConfigFile == "" {
		return s.fromFlags(ownIssuers)
	}
	data, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %w", err)
	}
	return s.parse(data, ownIssuers)
}

func (s Settings) parse(data []byte, ownIssuers []string) (*apiserver.AuthenticationConfiguration, error) {
	object, err := runtime.Decode(configCodecs.UniversalDecoder(apiserver.SchemeGroupVersion), data)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config %s: %w", s.ConfigFile, err)
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("--authentication-config %s holds a %T: give an AuthenticationConfiguration", s.ConfigFile, object)
	}
	if config.Anonymous != nil && s.Anonymous != "" {
		return nil, fmt.Errorf("--anonymous-auth and the anonymous part of %s both configure anonymous requests: give one of them", s.ConfigFile)
	}
	return config, s.valid(config, ownIssuers)
}

func (s Settings) valid(config *apiserver.AuthenticationConfiguration, ownIssuers []string) error {
	errs := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config, ownIssuers)
	for i, jwt := range config.JWT {
		if t := jwt.Issuer.EgressSelectorType; t != "" {
			errs = append(errs, field.Invalid(field.NewPath("jwt").Index(i).Child("issuer", "egressSelectorType"), t, "leave it out: issuers are reached directly"))
		}
	}
	if err := errs.ToAggregate(); err != nil {
		from := "--oidc-*"
		if s.ConfigFile != "" {
			from = "--authentication-config " + s.ConfigFile
		}
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// fromFlags converts --oidc-* to an AuthenticationConfiguration, as kube-apiserver does.
func (s Settings) fromFlags(ownIssuers []string) (*apiserver.AuthenticationConfiguration, error) {
	config, o := &apiserver.AuthenticationConfiguration{}, s.OIDC
	if !o.set() {
		return config, nil
	}
	if o.UsernameClaim == "" {
		o.UsernameClaim = "sub"
	}
	switch {
	case o.UsernamePrefix == "-":
		o.UsernamePrefix = ""
	case o.UsernamePrefix == "" && o.UsernameClaim != "email":
		o.UsernamePrefix = o.IssuerURL + "#"
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer:        apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{Username: apiserver.PrefixedClaimOrExpression{Prefix: &o.UsernamePrefix, Claim: o.UsernameClaim}},
	}
	if o.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Prefix: &o.GroupsPrefix, Claim: o.GroupsClaim}
	}
	for claim, value := range o.RequiredClaims {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	config.JWT = []apiserver.JWTAuthenticator{jwt}
	return config, s.valid(config, ownIssuers)
}

// algorithms returns the allowed signature algorithms of issuers' tokens.
func (s Settings) algorithms() []string {
	if s.ConfigFile != "" {
		return oidc.AllValidSigningAlgorithms()
	}
	if len(s.OIDC.SigningAlgs) == 0 {
		return []string{"RS256"}
	}
	return s.OIDC.SigningAlgs
}

// anonymousUser returns the user of anonymous requests.
func anonymousUser() user.Info {
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
}
