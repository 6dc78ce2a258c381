package authz

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/util/filesystem"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"

	"github.com/balsahq/balsa/fault"
)

// configLook is how often the configuration is read when the kernel reports no change.
const configLook = time.Minute

// both authorizes requests and lists a user's rights.
type both interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// chain asks the authorizers of the newest valid configuration, in its order.
type chain struct {
	settings Settings
	here     map[apiserver.AuthorizerType]both // authorizers that stay when the configuration changes
	compiler cel.Compiler
	log      *slog.Logger

	current atomic.Pointer[order]
	data    string // content of the file that was checked last
}

type order struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// Authorize implements authorizer.Authorizer.
func (c *chain) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	fault.Point("control/authorizer")
	return c.current.Load().Authorize(ctx, a)
}

// RulesFor implements authorizer.RuleResolver.
func (c *chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.current.Load().RulesFor(ctx, u, namespace)
}

func (c *chain) start() error {
	if file := c.settings.ConfigFile; file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--authorization-config: %w", err)
		}
		c.data = string(data)
	}
	if file := c.settings.PolicyFile; file != "" {
		list, err := policies(file)
		if err != nil {
			return err
		}
		c.here[ModeABAC] = list
	}
	config, err := c.settings.configuration(c.compiler)
	if err != nil {
		return err
	}
	o, err := c.order(config)
	if err != nil {
		return err
	}
	c.current.Store(o)
	return nil
}

// policies reads the ABAC policy file.
func policies(file string) (abac.PolicyList, error) {
	list, err := abac.NewFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("--authorization-policy-file: %w", err)
	}
	return list, nil
}

// order makes the chain of one configuration. Members of system:masters are allowed before any authorizer is asked.
func (c *chain) order(config *apiserver.AuthorizationConfiguration) (*order, error) {
	deciders := []authorizer.Authorizer{authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}
	var listers []authorizer.RuleResolver // the rights of system:masters are listed from their role, as in upstream
	for i := range config.Authorizers {
		a := &config.Authorizers[i]
		one := c.here[a.Type]
		if a.Type == apiserver.TypeWebhook {
			var err error
			if one, err = c.webhook(a); err != nil {
				return nil, fmt.Errorf("authorizer %s: %w", a.Name, err)
			}
		}
		if one == nil {
			return nil, fmt.Errorf("authorizer %s: type %s is not supported", a.Name, a.Type)
		}
		deciders, listers = append(deciders, one), append(listers, one)
	}
	return &order{union.New(deciders...), union.NewRuleResolvers(listers...)}, nil
}

// silent is a webhook's metrics that count nothing.
type silent struct {
	metrics.NoopRequestMetrics
	metrics.NoopWebhookMetrics
	cel.NoopMatcherMetrics
}

func (c *chain) webhook(a *apiserver.AuthorizerConfiguration) (both, error) {
	w := a.Webhook
	client, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	if w.Timeout.Duration != 0 {
		client.Timeout = w.Timeout.Duration
	}
	onError := authorizer.DecisionNoOpinion
	if w.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	allowed, denied := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowed = 0
	}
	if !w.CacheUnauthorizedRequests {
		denied = 0
	}
	return webhook.New(client, w.SubjectAccessReviewVersion, allowed, denied, *webhook.DefaultRetryBackoff(), onError,
		w.MatchConditions, a.Name, silent{}, c.compiler)
}

// run follows the configuration's file until ctx ends.
func (c *chain) run(ctx context.Context) error {
	if c.settings.ConfigFile != "" {
		filesystem.WatchUntil(ctx, configLook, c.settings.ConfigFile, c.reload, func(err error) {
			c.log.Warn("cannot watch the authorization configuration file; it is read once a minute instead", "err", err)
		})
	}
	<-ctx.Done()
	return nil
}

// reload uses a changed file if it is valid. Otherwise the former configuration stays.
func (c *chain) reload() {
	data, err := os.ReadFile(c.settings.ConfigFile)
	if err != nil {
		c.log.Warn("cannot read the authorization configuration; the former one stays", "err", err)
		return
	}
	if string(data) == c.data {
		return
	}
	c.data = string(data)
	config, err := c.settings.parse(data, c.compiler)
	var o *order
	if err == nil {
		o, err = c.order(config)
	}
	if err != nil {
		c.log.Error("the changed authorization configuration is not used; the former one stays", "err", err)
		return
	}
	c.current.Store(o)
	c.log.Info("the authorization configuration has changed", "authorizers", len(config.Authorizers))
}
