package bootstrap

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/balsahq/balsa/fault"
)

// SystemNamespaces exist in every cluster and cannot be deleted.
var SystemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// parallel bounds the concurrent writes, which the store groups.
const parallel = 48

// Policy is upstream's RBAC data for an empty cluster. Aggregating ClusterRoles already contain the aggregated rules.
type Policy struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Default returns upstream's policy and the roles that nodes need beside it. Each object has its namespace.
func Default() Policy {
	p := Policy{
		ClusterRoles:        append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...),
		ClusterRoleBindings: append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...),
	}
	for ns, roles := range bootstrappolicy.NamespaceRoles() {
		for _, r := range roles {
			r.Namespace = ns
			p.Roles = append(p.Roles, r)
		}
	}
	for ns, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range bindings {
			b.Namespace = ns
			p.RoleBindings = append(p.RoleBindings, b)
		}
	}
	role, binding := dnsSettings()
	p.Roles, p.RoleBindings = append(p.Roles, role), append(p.RoleBindings, binding)
	for _, own := range []func() (rbacv1.ClusterRole, rbacv1.ClusterRoleBinding){ingress, ingressStatus, localVolumes} {
		role, binding := own()
		p.ClusterRoles, p.ClusterRoleBindings = append(p.ClusterRoles, role), append(p.ClusterRoleBindings, binding)
	}
	pods, reader := networkPolicies()
	p.ClusterRoles, p.ClusterRoleBindings = append(p.ClusterRoles, pods), append(p.ClusterRoleBindings, reader)
	p.ClusterRoles = append(p.ClusterRoles, resourceMetrics())
	aggregate(p.ClusterRoles)
	return p
}

// aggregate fills the rules of aggregating roles until nothing changes (edit is part of admin).
func aggregate(roles []rbacv1.ClusterRole) {
	for range 3 {
		for i := range roles {
			if roles[i].AggregationRule != nil {
				roles[i].Rules = aggregated(roles[i], roles)
			}
		}
	}
}

func aggregated(of rbacv1.ClusterRole, roles []rbacv1.ClusterRole) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	have := map[string]bool{}
	for _, s := range of.AggregationRule.ClusterRoleSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			continue // upstream's constants are well-formed; a test checks that
		}
		for _, r := range roles {
			if r.Name == of.Name || !sel.Matches(labels.Set(r.Labels)) {
				continue
			}
			for _, rule := range r.Rules {
				if key := rule.String(); !have[key] {
					have[key] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// EnsureRBAC creates and repairs the objects of one policy.
func EnsureRBAC(ctx context.Context, client kubernetes.Interface, p Policy) error {
	have, err := readAll(ctx, client)
	if err != nil {
		return err
	}
	var w writes
	for i := range p.ClusterRoles {
		owner := reconciliation.ClusterRoleRuleOwner{ClusterRole: &p.ClusterRoles[i]}
		w.add("clusterrole "+p.ClusterRoles[i].Name, roleWrite(owner, clusterRoles{ctx, client, have}))
	}
	for i := range p.Roles {
		owner := reconciliation.RoleRuleOwner{Role: &p.Roles[i]}
		w.add("role "+p.Roles[i].Namespace+"/"+p.Roles[i].Name, roleWrite(owner, roles{ctx, client, have}))
	}
	for i := range p.ClusterRoleBindings {
		b := reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &p.ClusterRoleBindings[i]}
		w.add("clusterrolebinding "+b.GetName(), bindingWrite(b, clusterBindings{ctx, client, have}))
	}
	for i := range p.RoleBindings {
		b := reconciliation.RoleBindingAdapter{RoleBinding: &p.RoleBindings[i]}
		w.add("rolebinding "+b.GetNamespace()+"/"+b.GetName(), bindingWrite(b, bindings{ctx, client, have}))
	}
	return w.run()
}

func roleWrite(owner reconciliation.RuleOwner, m reconciliation.RuleOwnerModifier) func() error {
	return func() error {
		o := reconciliation.ReconcileRoleOptions{Role: owner, Client: m, Confirm: true}
		_, err := o.Run()
		return err
	}
}

func bindingWrite(b reconciliation.RoleBinding, m reconciliation.RoleBindingModifier) func() error {
	return func() error {
		o := reconciliation.ReconcileRoleBindingOptions{RoleBinding: b, Client: m, Confirm: true}
		_, err := o.Run()
		return err
	}
}

// writes runs independent writes in parallel and joins their errors. An object that exists already counts as written:
// another server was faster.
type writes struct {
	names []string
	fns   []func() error
}

func (w *writes) add(name string, fn func() error) {
	w.names = append(w.names, name)
	w.fns = append(w.fns, fn)
}

func (w *writes) run() error {
	errs := make([]error, len(w.fns))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, fn := range w.fns {
		g.Go(fault.ContainedErr("control/auth/bootstrap", func() error {
			if err := fn(); err != nil && !apierrors.IsAlreadyExists(err) {
				errs[i] = fmt.Errorf("bootstrap: %s: %w", w.names[i], err)
			}
			return nil
		}))
	}
	_ = g.Wait() // the functions return nil; their errors are in errs
	return errors.Join(errs...)
}
