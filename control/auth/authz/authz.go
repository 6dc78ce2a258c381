package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/cel"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/balsahq/balsa/control/auth/listers"
)

// Authorizers are the results of New: three interfaces to the same rules.
type Authorizers struct {
	// Authorizer decides requests.
	Authorizer authorizer.Authorizer
	// RuleResolver lists what a user may do, for SelfSubjectRulesReview.
	RuleResolver authorizer.RuleResolver
	// Rules resolves role references, for the escalation check on RBAC objects.
	Rules rbacvalidation.AuthorizationRuleResolver

	chain *chain
}

// Config configures New.
type Config struct {
	// Live reads the four RBAC kinds and the objects that nodes may see.
	Live *listers.Store
	// Settings name the authorizers.
	Settings Settings
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Live == nil {
		errs = append(errs, errors.New("authz: Live must be set"))
	}
	return errors.Join(append(errs, c.Settings.Validate())...)
}

// New returns the chain of authorizers over the store.
func New(cfg Config) (*Authorizers, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	store := cfg.Live
	src := &rbacSource{
		roles:           store.Kept(rbacResource("roles")),
		roleBindings:    store.Kept(rbacResource("rolebindings")),
		clusterRoles:    store.Kept(rbacResource("clusterroles")),
		clusterBindings: store.Kept(rbacResource("clusterrolebindings")),
	}
	c := &chain{settings: cfg.Settings, log: cfg.Logger, here: map[apiserver.AuthorizerType]both{
		ModeNode: NewNode(store), ModeRBAC: rbac.New(src, src, src, src),
		ModeAlwaysAllow: authorizerfactory.NewAlwaysAllowAuthorizer(), ModeAlwaysDeny: authorizerfactory.NewAlwaysDenyAuthorizer(),
	}}
	if cfg.Settings.ConfigFile != "" || cfg.Settings.WebhookFile != "" {
		c.compiler = cel.NewDefaultCompiler() // costs milliseconds and mebibytes, so it is made only for a configuration file
	}
	if err := c.start(); err != nil {
		return nil, fmt.Errorf("authz: %w", err)
	}
	return &Authorizers{
		Authorizer:   confirmed{c, store},
		RuleResolver: c,
		Rules:        rbacvalidation.NewDefaultRuleResolver(src, src, src, src),
		chain:        c,
	}, nil
}

// Run follows the configuration's file until ctx ends.
func (a *Authorizers) Run(ctx context.Context) error { return a.chain.run(ctx) }

func rbacResource(name string) schema.GroupResource {
	return schema.GroupResource{Group: rbacv1.GroupName, Resource: name}
}

// rbacSource reads the four RBAC kinds. The objects it returns are shared and read-only.
type rbacSource struct {
	roles, roleBindings, clusterRoles, clusterBindings *listers.Indexer

	// typed is the last listing of ClusterRoleBindings, which every request needs.
	typed atomic.Pointer[typedBindings]
}

type typedBindings struct {
	of       *listers.Listing
	bindings []*rbacv1.ClusterRoleBinding
}

func (s *rbacSource) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	return get[rbacv1.Role](s.roles, namespace+"/"+name, rbacResource("roles"), name)
}

func (s *rbacSource) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	return get[rbacv1.ClusterRole](s.clusterRoles, name, rbacResource("clusterroles"), name)
}

func (s *rbacSource) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return list[rbacv1.RoleBinding](s.roleBindings, namespace)
}

func (s *rbacSource) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	all, err := s.clusterBindings.All()
	if err != nil {
		return nil, err
	}
	if t := s.typed.Load(); t != nil && t.of == all {
		return t.bindings, nil
	}
	t := &typedBindings{of: all}
	for _, obj := range all.Objects {
		if b, ok := obj.(*rbacv1.ClusterRoleBinding); ok {
			t.bindings = append(t.bindings, b)
		}
	}
	s.typed.Store(t)
	return t.bindings, nil
}

func get[T any](i *listers.Indexer, key string, gr schema.GroupResource, name string) (*T, error) {
	obj, ok, err := i.GetByKey(key)
	if err != nil {
		return nil, err
	}
	t, is := obj.(*T)
	if !ok || !is {
		return nil, apierrors.NewNotFound(gr, name)
	}
	return t, nil
}

func list[T any](i *listers.Indexer, namespace string) ([]*T, error) {
	var out []*T
	err := i.Each(namespace, func(obj runtime.Object) bool {
		if t, ok := obj.(any).(*T); ok {
			out = append(out, t)
		}
		return true
	})
	return out, err
}
