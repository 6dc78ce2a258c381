package authz

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"
)

// The authorizers, by kube-apiserver's names.
const (
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeABAC        = "ABAC"
	ModeWebhook     = "Webhook"
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
)

// Modes are all supported authorizers.
var Modes = []string{ModeNode, ModeRBAC, ModeABAC, ModeWebhook, ModeAlwaysAllow, ModeAlwaysDeny}

// webhookTimeout bounds a call of the webhook that flags configure; upstream's figure.
const webhookTimeout = 30 * time.Second

// Settings name the authorizers and their order. The names in the comments are kube-apiserver's flags, which have the
// same meaning. The zero value is Node, then RBAC.
type Settings struct {
	// Modes are asked in this order until one allows or denies. --authorization-mode
	Modes []string
	// ConfigFile is an AuthorizationConfiguration (apiserver.config.k8s.io), instead of Modes and the webhook's fields.
	// A changed file is used without a restart. --authorization-config
	ConfigFile string
	// PolicyFile holds the ABAC policies, one a line. --authorization-policy-file
	PolicyFile string
	// WebhookFile is a kubeconfig of the server that answers SubjectAccessReviews. --authorization-webhook-config-file
	WebhookFile string
	// WebhookVersion is the version of the SubjectAccessReviews: v1, or v1beta1, the default.
	// --authorization-webhook-version
	WebhookVersion string
	// AuthorizedTTL and UnauthorizedTTL are how long the webhook's answers are used again; 0: never.
	// --authorization-webhook-cache-authorized-ttl, --authorization-webhook-cache-unauthorized-ttl
	AuthorizedTTL, UnauthorizedTTL time.Duration
}

// Validate reports every fault at once, those of the files too.
func (s Settings) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(s.ConfigFile != "" && (len(s.Modes) > 0 || s.WebhookFile != ""),
		"--authorization-config says what --authorization-mode and --authorization-webhook-config-file say: give one of them")
	for i, mode := range s.Modes {
		fault(!slices.Contains(Modes, mode), "--authorization-mode %q: give some of %s", mode, strings.Join(Modes, ", "))
		fault(slices.Contains(s.Modes[:i], mode), "--authorization-mode names %s twice", mode)
	}
	if s.ConfigFile == "" {
		abac, hook := slices.Contains(s.Modes, ModeABAC), slices.Contains(s.Modes, ModeWebhook)
		fault(abac != (s.PolicyFile != ""), "--authorization-policy-file and mode ABAC need each other")
		fault(hook != (s.WebhookFile != ""), "--authorization-webhook-config-file and mode Webhook need each other")
	}
	fault(!slices.Contains([]string{"", "v1", "v1beta1"}, s.WebhookVersion), "--authorization-webhook-version %q: give v1 or v1beta1", s.WebhookVersion)
	fault(s.AuthorizedTTL < 0 || s.UnauthorizedTTL < 0, "--authorization-webhook-cache-*-ttl: give 0 or more")
	if s.PolicyFile != "" {
		_, err := policies(s.PolicyFile)
		fault(err != nil, "%w", err)
	}
	if len(errs) == 0 && s.ConfigFile != "" {
		_, err := s.configuration(cel.NewDefaultCompiler())
		fault(err != nil, "%w", err)
	}
	return errors.Join(errs...)
}

// configuration returns the checked configuration, from the file or from the flags.
func (s Settings) configuration(compiler cel.Compiler) (*apiserver.AuthorizationConfiguration, error) {
	if s.ConfigFile == "" {
		return s.fromFlags(), nil
	}
	data, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config: %w", err)
	}
	return s.parse(data, compiler)
}

func (s Settings) parse(data []byte, compiler cel.Compiler) (*apiserver.AuthorizationConfiguration, error) {
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config %s: %w", s.ConfigFile, err)
	}
	faults := validation.ValidateAuthorizationConfiguration(compiler, nil, config, sets.New(Modes...), sets.New(ModeWebhook))
	if err := faults.ToAggregate(); err != nil {
		return nil, fmt.Errorf("--authorization-config %s: %w", s.ConfigFile, err)
	}
	for _, a := range config.Authorizers {
		if a.Type == ModeABAC && s.PolicyFile == "" {
			return nil, fmt.Errorf("--authorization-config %s: authorizer %s needs --authorization-policy-file", s.ConfigFile, a.Name)
		}
		if a.Webhook != nil && a.Webhook.ConnectionInfo.KubeConfigFile == nil {
			return nil, fmt.Errorf("--authorization-config %s: authorizer %s: connectionInfo must be of type KubeConfigFile", s.ConfigFile, a.Name)
		}
	}
	return config, nil
}

// fromFlags converts the flags to an AuthorizationConfiguration, as kube-apiserver does.
func (s Settings) fromFlags() *apiserver.AuthorizationConfiguration {
	modes := s.Modes
	if len(modes) == 0 {
		modes = []string{ModeNode, ModeRBAC}
	}
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == ModeWebhook {
			a.Name = "default"
			a.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL: metav1.Duration{Duration: s.AuthorizedTTL}, CacheAuthorizedRequests: s.AuthorizedTTL > 0,
				UnauthorizedTTL: metav1.Duration{Duration: s.UnauthorizedTTL}, CacheUnauthorizedRequests: s.UnauthorizedTTL > 0,
				Timeout: metav1.Duration{Duration: webhookTimeout}, FailurePolicy: apiserver.FailurePolicyNoOpinion,
				SubjectAccessReviewVersion: cmp.Or(s.WebhookVersion, "v1beta1"),
				ConnectionInfo: apiserver.WebhookConnectionInfo{
					Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &s.WebhookFile,
				},
			}
		}
		config.Authorizers = append(config.Authorizers, a)
	}
	return config
}
